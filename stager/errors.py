"""Every error stager raises on purpose.

StagerError                 what went wrong, and a hint: what to try
├── UsageError              the command or the call asks for something that makes no sense (exit 2)
│   └── ConfigError         stager.toml says something we do not understand (exit 2)
├── NoService               nothing answers on the socket (exit 4)
│   └── ServiceSilent       somebody listens there, and did not answer in time: it hangs, or is busy
├── CacheError              the cache directory cannot be used
│   ├── CacheOwned          another process owns it
│   └── NoSpace             the budget or the disk is full
├── SourceError             the source as a whole cannot be read
│   ├── SourceNotFound      no such bucket or directory
│   ├── SourceForbidden     credentials are missing, wrong or not enough
│   └── SourceBusy          asked again it may answer: time-outs, 5xx, SlowDown
│       ├── ObjectBusy      one object is at stake, and not the source: it came damaged
│       └── SourceSilent    no whole answer came in its time
├── NotReady                this machine lacks what a recipe needs
├── SampleError             one sample cannot be had; `reason` is from REASONS
├── ShardError              one shard cannot be read
│   ├── ShardGone           there is no such file (any more)
│   └── ShardCorrupt        its bytes are not what was written
└── WaitTimeout             a reader's deadline passed
"""

import difflib
import errno
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

# Why a sample failed, and whether asking again could help.
REASONS: Final[dict[str, bool]] = {
    "corrupt": False,  # the decoder refused it
    "truncated": False,  # it ends too early
    "unknown_format": False,  # no format that the recipe reads
    "too_large": False,  # more bytes or pixels than we accept
    "function": False,  # the person's own function raised, or did not do what it should
    "bad_row": False,  # what its row of the table says of it makes no sense: a box outside of the image
    "crashed": False,  # it took the worker down with it, twice
    "missing": True,  # listed, but no longer there
    "changed": True,  # no longer the version that was listed
    "forbidden": True,  # listed, but not readable
    "unreadable": True,  # the source failed while we read it
    "unprepared": True,  # this machine lacked what it takes: memory, most likely
}
REASONS_BEFORE: Final = {"not_an_image": "unknown_format"}  # as the version before called them

DONE_IN_PART: Final = 3  # the exit code of what was done in part, or stopped by Ctrl-C


def many(count: int, noun: str) -> str:
    """So many of them, for people: 1 class, 1,500 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def shown(text: str) -> str:
    """The text on one line. What cannot be seen, moves the cursor or turns the line around is escaped."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


class StagerError(Exception):
    """One line that says what and where, and a hint that says what to try."""

    exit_code = 1
    more: ClassVar[tuple[str, ...]] = ()  # what a kind says besides; its constructor takes each by name

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = shown(message)  # it may have names of others in it
        self.hint = shown(hint)
        super().__init__(self.message)
        if self.hint:
            self.add_note(f"hint: {self.hint}")  # a traceback shows it


class UsageError(StagerError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class NoService(StagerError):
    exit_code = 4


class ServiceSilent(NoService):
    pass


class CacheError(StagerError):
    pass


class CacheOwned(CacheError):
    """`pid` and `what` (the command, or "service") are as the owner says."""

    more = ("pid", "what")

    def __init__(self, message: str, hint: str = "", pid: str = "", what: str = "") -> None:
        super().__init__(message, hint)
        self.pid, self.what = pid, what


class NoSpace(CacheError):
    pass


class SourceError(StagerError):
    pass


class SourceNotFound(SourceError):
    pass


class SourceForbidden(SourceError):
    pass


class SourceBusy(SourceError):
    pass


class ObjectBusy(SourceBusy):
    pass


class SourceSilent(SourceBusy):
    pass


class NotReady(StagerError):
    pass


class SampleError(StagerError):
    """One sample cannot be had. The job goes on without it."""

    more = ("reason",)

    part: int | None = None  # which of the sample's parts is to blame, as an opener tells it

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        assert reason in REASONS, reason
        super().__init__(message, hint)
        self.reason = reason


class ShardError(StagerError):
    pass


class ShardGone(ShardError):
    pass


class ShardCorrupt(ShardError):
    pass


class WaitTimeout(StagerError):
    pass


KINDS: Final = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, StagerError)
}


def to_json(error: StagerError) -> dict[str, Any]:
    """The error for another process: `from_json` makes it again there."""
    names = ("message", "hint", *error.more)
    return {"error": type(error).__name__, **{name: getattr(error, name) for name in names}}


def from_json(value: Mapping[str, Any]) -> StagerError:
    """The error that it was. Of a version that knows more than ours, it is a StagerError at least."""
    kind = KINDS.get(str(value.get("error")), StagerError)
    if kind is SampleError:
        reason = str(value.get("reason"))
        reason = REASONS_BEFORE.get(reason, reason)
        kind, value = (kind if reason in REASONS else StagerError), {**value, "reason": reason}
    return kind(**{name: str(value.get(name, "")) for name in ("message", "hint", *kind.more)})


def known_error(error: Exception, path: str) -> StagerError:
    """An error as one of ours. `path`: what was being written. Even a bug of ours has one line and a hint."""
    if isinstance(error, StagerError):
        return error
    if not isinstance(error, OSError):
        return StagerError(f"{type(error).__name__}: {error}", hint="this is a bug: please report it")
    message = f"{error.filename or path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(message, hint="free some disk, or stager evict DATASET")
    return CacheError(message, hint="check the disk of the cache")


def nearest(word: str, known: Collection[str]) -> str:
    """A hint for a word nobody knows."""
    close = difflib.get_close_matches(word, known, 1, 0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(sorted(known)[:20]) if known else ""
