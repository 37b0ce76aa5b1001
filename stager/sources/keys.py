"""How a key looks in a message."""


def shown(key: str) -> str:
    """The key on one line, whatever bytes are in it."""
    return key if key.isprintable() else repr(key)
