"""What makes room, decided by pure functions."""
