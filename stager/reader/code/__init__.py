"""What decides the result of a person's function: its code, and all that it reaches."""
