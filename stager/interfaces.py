"""What sources, layouts, recipes and shard formats promise, and what they hand to one another."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from stager.reader.values import Arrays, Field, ObjectInfo, Part, Prepared, ShardHeader, ShardReader

# What a scan may leave out: one, and several of it.
_LEFT_OUT: Final = {
    "link_out": ("link that leads out", "links that lead out"),
    "link_nowhere": ("link that leads nowhere", "links that lead nowhere"),
    "link_in_circle": ("link in a circle", "links in a circle"),
    "no_folder": ("image in no folder", "images in no folder"),
    "no_class": (
        "image of a split that is in no class folder",
        "images of a split that are in no class folder",
    ),
    "no_image": ("file that is no image", "files that are no images"),
}


_ENDING: Final = re.compile(r"\.[a-z0-9]{1,10}")  # others may be anything, and are shown to nobody
ENDINGS_COUNTED: Final = 100
ENDINGS_SHOWN: Final = 5


class LeftOut:
    """What a scan left out, counted by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._endings: Counter[str] = Counter()  # of what is no image

    def count(self, reason: str, number: int = 1) -> None:
        assert reason in _LEFT_OUT, reason
        self._counts[reason] += number

    def count_file(self, key: str) -> None:
        """One more file that is no image."""
        self._counts["no_image"] += 1
        ending = key[key.rfind(".") :].lower()
        known = ending in self._endings or len(self._endings) < ENDINGS_COUNTED
        self._endings[ending if known and _ENDING.fullmatch(ending) else ""] += 1

    def clear(self) -> None:
        self._counts.clear()
        self._endings.clear()

    def add(self, other: "LeftOut") -> None:
        self._counts += other._counts
        self._endings += other._endings

    def line(self) -> str:
        """As a person is told it; nothing, if nothing was left out."""
        told = [
            f"{self._counts[reason]:,} {words[self._counts[reason] > 1]}"
            for reason, words in _LEFT_OUT.items()
            if self._counts[reason]
        ]
        endings = f": {', '.join(self._shown_endings())}" if self._endings else ""
        return f"left out: {', '.join(told)}{endings}" if told else ""

    def _shown_endings(self) -> list[str]:
        named = [(ending, count) for ending, count in self._endings.items() if ending]
        shown = sorted(named, key=lambda item: (-item[1], item[0]))[:ENDINGS_SHOWN]
        others = self._endings.total() - sum(count for _, count in shown)
        told = [f"{count:,} {ending}" for ending, count in shown]
        return [*told, f"{others:,} other{'s' * (others > 1)}"] if others else told


class Scanning:
    """What a scan tells beside its objects: that it goes on, and what it left out.

    A source calls `went_on` whenever it has heard from the place it lists, from any thread.
    """

    def __init__(self, went_on: Callable[[], None] = lambda: None) -> None:
        self.went_on = went_on
        self.left_out = LeftOut()


Fetched = memoryview | Exception  # a part's bytes, or why they cannot be had


class Source(Protocol):
    """A read-only place objects come from. Two verbs; everything else is a wrapper."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        """Yield every object once, in key order. Raise SourceError if the place cannot be listed."""

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        """Begin to read exactly this part of this version, and return at once.

        `done` gets its bytes, or SampleError if they cannot be had (missing, changed, forbidden, unreadable;
        truncated, if the object has no such bytes), SourceBusy if asking again may help, another SourceError
        if the whole source is out of reach. It is called once, in a thread of the source's; it must be quick.
        """


class BlockingSource(Protocol):
    """A source that reads one part a call. `ThreadedSource` makes a Source of it."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]: ...

    def read(self, part: Part) -> memoryview:
        """Return the bytes, or raise what `Source.start` tells of."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object that is a sample, and the folders that decide its split and class."""

    info: ObjectInfo
    path: tuple[str, ...]


class Layout(Protocol):
    """How a source's objects become samples with labels."""

    def entries(self, objects: Iterable[ObjectInfo]) -> Iterator[Entry]:
        """Keep the objects that are samples, in the order they come."""

    def label(self, paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, str]]:
        """Say (split, class) for each path, once all are known. No splits: the split is ''.

        Samples of a path that it does not name are left out.
        """


class Recipe(Protocol):
    """How an object's bytes become a sample's arrays. Equal digests give equal samples."""

    @property
    def digest(self) -> str: ...

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def prepare(self, data: memoryview) -> Arrays:
        """Return one array a field, as stored (a jpeg field: its bytes as uint8). Raise SampleError."""


class ShardWriter(Protocol):
    """A shard that is being written. Left without `finish`, there is no file."""

    def add(self, row: Prepared) -> int:
        """Take one more row and return its number. Any thread may; an OSError spoils the whole shard."""

    def finish(self) -> None:
        """Complete the file. Not durable yet: the caller syncs it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ShardFormat(Protocol):
    """A way to keep samples in one immutable file."""

    suffix: str

    def begin(self, path: Path, header: ShardHeader, rows_max: int, room_bytes: int) -> ShardWriter:
        """Begin a new file of at most so many rows, for which so many bytes are reserved.

        It takes its room now: raise OSError if the disk has none.
        """

    def write(self, path: Path, header: ShardHeader, rows: Sequence[Prepared]) -> None:
        """Write a whole shard to a new file. Not durable yet: the caller syncs it."""

    def open(self, path: Path) -> ShardReader:
        """Raise ShardGone if there is no such file, ShardCorrupt if it is not whole."""
