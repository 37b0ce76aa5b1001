"""What is read most, and that it is there."""
