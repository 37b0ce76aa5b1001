"""What a place has, and which layout and recipe fit: all of them guess, and their guesses are tried."""
