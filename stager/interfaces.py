"""What sources, layouts, recipes and shard formats promise, and what they hand to one another."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

import numpy.typing as npt

from stager.reader.samples.rules import Rule
from stager.reader.values import (
    Arrays,
    Attribute,
    Field,
    ObjectInfo,
    Part,
    Prepared,
    ShardHeader,
    ShardReader,
)

# What a scan may leave out: one, and several of it.
_LEFT_OUT: Final = {
    "link_out": ("link that leads out", "links that lead out"),
    "link_nowhere": ("link that leads nowhere", "links that lead nowhere"),
    "link_in_circle": ("link in a circle", "links in a circle"),
    "no_folder": ("{one} in no folder", "{many} in no folder"),
    "no_class": (
        "{one} of a split that is in no class folder",
        "{many} of a split that are in no class folder",
    ),
    "no_object": (
        "row of the table whose object is not there",
        "rows of the table whose objects are not there",
    ),
    "no_label": ("row of the table without a label", "rows of the table without a label"),
    "column": ("column that has the name of something else", "columns that have the name of something else"),
    "other_kind": ("file that is no {one}", "files that are no {many}"),
}


_ENDING: Final = re.compile(r"\.[a-z0-9]{1,10}")  # others may be anything, and are shown to nobody
ENDINGS_COUNTED: Final = 100
ENDINGS_SHOWN: Final = 5


class Kind(NamedTuple):
    """What a recipe takes, as people say it, and how the keys of such objects end; (): as they like."""

    one: str
    many: str
    endings: tuple[str, ...]


class LeftOut:
    """What a scan left out, counted by reason. `kind`: what the recipe takes."""

    def __init__(self, kind: "Kind | None" = None) -> None:
        self._kind = kind or Kind("sample", "samples", ())
        self._counts: Counter[str] = Counter()
        self._endings: Counter[str] = Counter()  # of what is of another kind

    def count(self, reason: str, number: int = 1) -> None:
        assert reason in _LEFT_OUT, reason
        self._counts[reason] += number

    def count_file(self, key: str) -> None:
        """One more file of another kind."""
        self._counts["other_kind"] += 1
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
            f"{self._counts[reason]:,} {words[self._counts[reason] > 1].format(**self._kind._asdict())}"
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


Folders = tuple[str, ...]  # what labels a sample: the folders above it, or what a table says


class Entry(NamedTuple):
    """A sample as a layout finds it."""

    key: str
    parts: tuple[Part, ...]
    path: Folders  # decides its split and class
    values: tuple[Any, ...] = ()  # of the layout's attributes, in their order; None: it has none
    at: Any = None  # the place inside what the parts open to
    inputs: tuple[Any, ...] = ()  # what the recipe needs of the attributes


class Listing(Protocol):
    """A source as a layout sees it."""

    def objects(self) -> Iterator[ObjectInfo]:
        """Every object once, in key order."""

    def read(self, part: Part) -> memoryview:
        """The bytes of a table or a header. Raise SampleError or SourceError."""


class Layout(Protocol):
    """How a source's objects become samples with labels and attributes. One is opened for each scan."""

    is_computed: Literal[False]
    is_plain: bool  # each sample is one whole object, under the object's key

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """What every sample has a value of. Known once the first entry has come."""

    def entries(self, listing: Listing) -> Iterator[Entry]:
        """Each sample once, keys unlike one another, always in the same order."""

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        """Say (split, class) for each path, once all are known. No splits: the split is ''.

        Samples of a path that it does not name are left out.
        """


class ComputedLayout(Protocol):
    """How samples follow from rules: a few values for any number of them. Nothing is listed."""

    is_computed: Literal[True]

    def rules(self, listing: Listing) -> Sequence[Rule]:
        """All rules, in order. A rule that only has more samples than before keeps those that it had."""


Data = memoryview | npt.NDArray[Any]  # the bytes of a part, or what an opener took from them
Opened = Any  # what an object opens to: an array, a row group, a chunk


class Opener(Protocol):
    """How several samples are taken from one object, which is fetched and opened once for all of them."""

    def open(self, data: memoryview) -> Opened:
        """Raise SampleError if it cannot be."""

    def take(self, opened: Opened, at: Any) -> Data:
        """What the recipe is given of one sample. Raise SampleError if there is no such place."""


class Needs(NamedTuple):
    """What a recipe takes of a row of a table."""

    paths: tuple[str, ...]  # keys of objects, with {columns} in them
    inputs: tuple[str, ...] = ()  # columns whose values it is given


class Recipe(Protocol):
    """How a sample's parts and inputs become its fields. Equal digests give equal samples."""

    @property
    def digest(self) -> str: ...

    @property
    def fields(self) -> tuple[Field, ...]: ...

    @property
    def takes(self) -> Kind: ...

    def needs(self, columns: Sequence[str]) -> Needs:
        """What it takes of a table with these columns. Raise UsageError if one that it needs is missing."""

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
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
