"""Which table of a place names its objects, and by which column."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from stager.errors import UsageError
from stager.interfaces import Listing
from stager.layouts.folder import SPLITS
from stager.layouts.kind import Guess
from stager.layouts.table.finding import METADATA, READERS, read_rows
from stager.layouts.table.types import Column, column_of
from stager.reader.values import ObjectInfo, Part

SIZE_MAX: Final = 16 << 20  # bytes of a table that is looked into
ROWS_TRIED: Final = 200
LABELS: Final = ("label", "labels", "class", "class_name", "category", "species", "breed", "target")
SPLIT: Final = ("split", "subset", "set", "partition")
BOXES: Final = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("minx", "miny", "maxx", "maxy"),
    ("x1", "y1", "x2", "y2"),
    ("x0", "y0", "x1", "y1"),
    ("left", "top", "right", "bottom"),
)
NO_NAME: Final = frozenset("{}!:")  # in a path, these mean something else


def guesses(objects: Sequence[ObjectInfo], listing: Listing) -> Iterator[Guess]:
    """Tables whose rows name objects that are there."""
    keys = [info.key for info in objects]
    for info in objects:
        if not info.key.lower().endswith(tuple(READERS)) or info.size > SIZE_MAX:
            continue
        with suppress(UsageError):  # then it is no table
            rows = read_rows(info.key, bytes(listing.read(Part(info))))
            found = ((name, column_of(values, rows.is_written)) for name, values in rows.columns.items())
            columns = {name: column for name, column in found if column is not None}
            is_metadata = info.key.rpartition("/")[2] in METADATA  # which name their objects by themselves
            path = "" if is_metadata else path_of(columns, keys)
            if path or is_metadata:
                named = {} if is_metadata else {"table": info.key}
                yield Guess({**named, **_naming(columns, path)}, path, objects, box=_box_of(columns))


def path_of(columns: Mapping[str, Column], keys: Iterable[str]) -> str:
    """The path by which most rows have an object; nothing, if none does for half of them."""
    found: dict[str, str] = {}  # a key by its name, without its ending and with it
    for key in keys:
        name = key.rpartition("/")[2]
        found.setdefault(name.rpartition(".")[0], key)
        found[name] = key
    best, most = "", 0
    for name, column in columns.items():
        texts = column.texts[:: max(len(column.texts) // ROWS_TRIED, 1)]
        around: Counter[tuple[str, str]] = Counter()  # what is in front of a text and behind it in a key
        for text in filter(None, texts):
            key = found.get(text.rpartition("/")[2], "")
            before, is_in, behind = key.rpartition(text)
            if is_in:
                around[before, behind] += 1
        if around and not NO_NAME & set(name):
            ((before, behind), count), *_ = around.most_common(1)
            if count > most and 2 * count >= len(texts) and not NO_NAME & set(before + behind):
                best, most = f"{before}{{{name}}}{behind}", count
    return best


def _naming(columns: Mapping[str, Column], path: str) -> dict[str, str]:
    """The columns with the label and the split, by what people call them."""
    free = {name.lower(): name for name in columns if f"{{{name}}}" not in path}
    label = next((free[name] for name in LABELS if name in free), "")
    split = next((free[name] for name in SPLIT if name in free and _are_splits(columns[free[name]])), "")
    return {key: name for key, name in (("label", label), ("split", split)) if name}


def _box_of(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The columns of left, top, right and bottom, by what people call them; none, if they are not there."""
    known = {name.lower().replace("_", "").removeprefix("bbox"): name for name in columns}
    return next((tuple(known[side] for side in box) for box in BOXES if known.keys() >= set(box)), ())


def _are_splits(column: Column) -> bool:
    return all(text.lower() in SPLITS for text in column.texts)
