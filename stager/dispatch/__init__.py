"""What the workers do now, and what the loop hears of it."""
