"""How a name or a message looks on a terminal and in a log, whatever others put into it."""


def shown(text: str) -> str:
    """The text on one line. What cannot be seen, moves the cursor or turns the line around is escaped."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)
