"""How a key looks in a message."""

from stager.text import shown

__all__ = ["shown"]
