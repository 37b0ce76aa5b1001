"""How a key looks in a message."""

from stager.errors import shown

__all__ = ["shown"]
