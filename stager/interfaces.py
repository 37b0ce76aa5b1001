"""What sources, layouts, recipes and shard formats promise, and what they hand to one another."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from stager.errors import shown
from stager.reader.samples.runs import Runs
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

if TYPE_CHECKING:
    from stager.reader.samples.computed.rules import Rule

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
    "member": (
        "member of a tar that is no file, or whose name leads out of it",
        "members of tars that are no files, or whose names lead out of them",
    ),
    "no_ending": ("member of a tar without an ending", "members of tars without an ending"),
    "twice": ("member that its tar has twice", "members that their tars have twice"),
    "no_member": ("sample that lacks a member", "samples that lack a member"),
    "no_text": ("member that should say something in text", "members that should say something in text"),
    "damaged": ("file of the table that cannot be read", "files of the table that cannot be read"),
    "lists": ("column of lists", "columns of lists"),
    "column": ("column that has the name of something else", "columns that have the name of something else"),
    "other_kind": ("file that is no {one}", "files that are no {many}"),
}


_LACKS: Final = frozenset({"no_object", "damaged"})  # reasons for which somebody's sample is not there
_ENDING: Final = re.compile(r"\.[a-z0-9]{1,10}")  # others may be anything, and are shown to nobody
ENDINGS_COUNTED: Final = 100
ENDINGS_SHOWN: Final = 5
EXAMPLE_LENGTH: Final = 120  # characters
WHOLE_MAX: Final = 1 << 53  # a float has all whole numbers up to this one


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
        self._examples: dict[str, str] = {}  # the first one of a reason
        self._endings: Counter[str] = Counter()  # of what is of another kind
        self._remark = ""
        self._has_damage = False

    @property
    def lacks_samples(self) -> bool:
        """Whether samples are not there that the data say there are."""
        return self._has_damage or any(self._counts[reason] for reason in _LACKS)

    def remark(self, text: str, has_damage: bool = False) -> None:
        """Have something else told of the source, in front of what was left out."""
        self._remark, self._has_damage = text, has_damage

    def count(self, reason: str, number: int = 1, example: str = "") -> None:
        """So many more for this reason. `example`: which one, or where it is; the first one is shown."""
        assert reason in _LEFT_OUT, reason
        self._counts[reason] += number
        if example:
            self._examples.setdefault(reason, example)

    def count_file(self, key: str) -> None:
        """One more file of another kind."""
        self._counts["other_kind"] += 1
        ending = key[key.rfind(".") :].lower()
        known = ending in self._endings or len(self._endings) < ENDINGS_COUNTED
        self._endings[ending if known and _ENDING.fullmatch(ending) else ""] += 1

    def clear(self) -> None:
        self._counts.clear()
        self._examples.clear()
        self._endings.clear()
        self.remark("")

    def add(self, other: "LeftOut") -> None:
        self._remark = self._remark or other._remark
        self._has_damage = self._has_damage or other._has_damage
        self._counts += other._counts
        self._examples = {**other._examples, **self._examples}
        self._endings += other._endings

    @property
    def ending(self) -> str:
        """The ending that most files of another kind have; nothing, if there is none."""
        return max(sorted(self._endings), key=self._endings.__getitem__, default="")

    def line(self) -> str:
        """As a person is told it; nothing, if nothing was left out."""
        told = [
            f"{self._counts[reason]:,} {words[self._counts[reason] > 1].format(**self._kind._asdict())}"
            f"{self._shown_example(reason)}"
            for reason, words in _LEFT_OUT.items()
            if self._counts[reason]
        ]
        endings = f": {', '.join(self._shown_endings())}" if self._endings else ""
        lines = [self._remark, f"left out: {', '.join(told)}{endings}" if told else ""]
        return "; ".join(line for line in lines if line)

    def _shown_example(self, reason: str) -> str:
        if reason not in self._examples:
            return ""
        example = shown(self._examples[reason])
        short = example if len(example) <= EXAMPLE_LENGTH else f"{example[:EXAMPLE_LENGTH]}..."
        return f" ({'first: ' if self._counts[reason] > 1 else ''}{short})"

    def _shown_endings(self) -> list[str]:
        named = [(ending, count) for ending, count in self._endings.items() if ending]
        shown = sorted(named, key=lambda item: (-item[1], item[0]))[:ENDINGS_SHOWN]
        others = self._endings.total() - sum(count for _, count in shown)
        told = [f"{count:,} {ending}" for ending, count in shown]
        return [*told, f"{others:,} other{'s' * (others > 1)}"] if others else told


class Scanning:
    """What goes with a scan: which keys it looks for, that it goes on, and what it left out.

    `under`: how the keys begin that are listed, and no others: the source's listing begins there. A source
    calls `went_on` whenever it has heard from the place it lists, from any thread.
    """

    def __init__(self, went_on: Callable[[], None] = lambda: None, under: str = "") -> None:
        self.went_on, self.under = went_on, under
        self.left_out = LeftOut()
        self.has_links = False  # one object or more is, or may be, under several keys


Fetched = memoryview | Exception  # a part's bytes, or why they cannot be had


class Source(Protocol):
    """A read-only place objects come from. Two verbs; everything else is a wrapper."""

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        """Yield every object once, in key order; of `scanning.under`, if it says one, only what is there.

        Raise SourceError if the place cannot be listed.
        """

    def start(self, part: Part, done: Callable[[Fetched], None]) -> None:
        """Begin to read exactly this part of this version, and return at once.

        `done` gets its bytes, or SampleError if they cannot be had (missing, changed, forbidden, unreadable;
        truncated, if the object has no such bytes), SourceBusy if asking again may help, another SourceError
        if the whole source is out of reach. It is called once, in a thread of the source's; it must be quick.

        Of an Unlisted object, the version that is there is read; a `start` below 0 counts from its end.
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
    table_row: str = ""  # where its row stands in a table, as a person finds it


Asked = TypeVar("Asked")
Looked = TypeVar("Looked")


class Recalled(NamedTuple):
    """What the last scan found in an object that has not changed since."""

    attributes: tuple[Attribute, ...]  # that its entries have values of
    entries: list[Entry]


class Listing(Protocol):
    """A source as a layout sees it."""

    def objects(self, under: str = "") -> Iterator[ObjectInfo]:
        """Every object once whose key begins so, in key order."""

    def read(self, part: Part) -> memoryview:
        """The bytes of a table or a header. Raise SampleError or SourceError. Any thread may ask."""

    def side_by_side(self, objects: Iterable[Asked], look: Callable[[Asked], Looked]) -> Iterator[Looked]:
        """What a look at each object gives, in their order; at several at once, each in a thread."""

    def known(self, info: ObjectInfo) -> Recalled | None:
        """What the last scan found in this version of an object, by the same layout and recipe."""


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


@runtime_checkable
class FoldersLayout(Layout, Protocol):
    """A plain layout that labels each object by its folders alone: what is known need not be listed again."""

    def again(self, folder: str, samples: int) -> Folders:
        """The path of so many samples right in a folder, which were found there by an earlier scan."""


# What counts it, for these rows of a rule. It is given how to tell how many are done.
Count = Callable[[Any, Runs, Listing, Callable[[int], None]], npt.NDArray[np.uint32]]


class ComputedLayout(Protocol):
    """How samples follow from rules: a few values for any number of them. Nothing is listed."""

    is_computed: Literal[True]

    @property
    def counters(self) -> Mapping[str, Count]:
        """Of fields of which a scan is to count how much of each sample is foreground: what does that."""

    def rules(self, listing: Listing) -> "Sequence[Rule]":
        """All rules, in order. A rule that only has more samples than before keeps those that it had."""


Data = memoryview | npt.NDArray[Any]  # the bytes of a part, or what an opener took from them
Opened = Any  # what an object opens to: an array, a row group, a chunk


class Opener(Protocol):
    """How several samples are taken from parts that they share, each of which is fetched and opened once."""

    def open(self, number: int, data: memoryview) -> Opened:
        """Open what is part `number` of its samples, from 0. Raise SampleError if it cannot be."""

    def take(self, opened: Sequence[Opened], at: Any) -> Sequence[Data]:
        """What the recipe is given of one sample, from all its parts.

        Raise SampleError if it is not there; with the number of a part, if that is to blame.

        Any thread may take, also while others do.
        """


class Made(Arrays):
    """Arrays of a sample that another process made, and for how long it worked on them."""

    def __init__(self, arrays: Arrays, seconds: float) -> None:
        super().__init__(arrays)
        self.seconds = seconds


class Input(NamedTuple):
    """A column whose values a recipe is given."""

    column: str
    is_number: bool = False  # one that is written as a text, or as 10.0 for 10, is the same

    def of(self, value: Any) -> Any:
        """What the recipe is given for a value of the column."""
        if not self.is_number:
            return value
        if isinstance(value, str):
            value = value.strip() or None
            with suppress(ValueError, TypeError):
                value = float(value)
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < WHOLE_MAX
        return int(value) if is_whole else value


class Needs(NamedTuple):
    """What a recipe takes of a row of a table."""

    paths: tuple[str, ...]  # keys of objects, with {columns} in them
    inputs: tuple[Input, ...] = ()


class Recipe(Protocol):
    """How a sample's parts and inputs become its fields. Equal digests give equal samples."""

    @property
    def digest(self) -> str: ...

    @property
    def fields(self) -> tuple[Field, ...]: ...

    @property
    def takes(self) -> Kind: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of a table whose values `prepare` is given."""

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        """What it takes of a table with these columns, as the field of this name if there are several.

        Raise UsageError if one that it needs is missing.
        """

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
