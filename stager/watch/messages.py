"""What the service and a watcher's process say to each other. Each message is one line of JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from stager.lines import Message, by_name, read_line
from stager.watch.hint import Hint

# To a watcher


@dataclass(frozen=True, slots=True)
class WatchPlace(Message):
    """What is to be watched: the first message."""

    source: Mapping[str, Any]  # as a SourceSpec has it
    every_s: float
    events: str = ""
    endings: tuple[str, ...] = ()  # of files that count; (): all do
    watches_most: int | None = None  # None: what the system allows


@dataclass(frozen=True, slots=True)
class KnownFiles(Message):
    """The newest version: where a watcher finds which files there should be."""

    directory: str
    lineage: str
    segments: tuple[str, ...]
    manifest: str


# From a watcher


@dataclass(frozen=True, slots=True)
class Watching(Message):
    """The source is there, and from here on no change of it is missed.

    `note`: why it is not done in a better way.
    """

    by: str  # inotify | rescan | events
    watches: int | None = None
    stats_per_s: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Hinted(Message):
    """Something may have changed."""

    hint: Hint

    def to_json(self) -> dict[str, Any]:
        return {"hint": self.hint.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Hinted":
        return cls(Hint.from_json(value["hint"]))


@dataclass(frozen=True, slots=True)
class Gone(Message):
    """The source is not there, or another is in its place."""

    why: str


@dataclass(frozen=True, slots=True)
class Beat(Message):
    """It is alive, and nothing has happened."""


ToWatcher = WatchPlace | KnownFiles
FromWatcher = Watching | Hinted | Gone | Beat

_TO_WATCHER: Final = by_name(WatchPlace, KnownFiles)
_FROM_WATCHER: Final = by_name(Watching, Hinted, Gone, Beat)


def read_by_watcher(line: str) -> ToWatcher:
    """What the service says in a line."""
    return cast(ToWatcher, read_line(line, _TO_WATCHER))


def read_by_service(line: str) -> FromWatcher:
    """What a watcher says in a line. Raise ValueError if it was cut off."""
    return cast(FromWatcher, read_line(line, _FROM_WATCHER))
