"""What waits to become a task, and in which company."""
