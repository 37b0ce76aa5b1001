"""The one loop that owns all state, and what it can be asked."""
