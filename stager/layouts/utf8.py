"""Texts as columns have them."""


def in_utf8(text: str) -> str:
    """JSON may have halves of characters, which no bytes are: a question mark each."""
    return text.encode("utf-8", "replace").decode()
