"""Where a table is: an object of the source, a file of this machine, or metadata.* beside what it names."""

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from stager.errors import UsageError, nearest
from stager.interfaces import LeftOut, Listing
from stager.layouts.folder import SPLITS
from stager.layouts.table.csv import read_csv
from stager.layouts.table.json import read_json, read_jsonl
from stager.layouts.table.parquet import read_parquet
from stager.layouts.table.rows import TableRows, joined
from stager.layouts.table.voc import read_voc
from stager.reader.values import ObjectInfo, Part

READERS: Final[dict[str, Callable[[str, bytes], TableRows]]] = {
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
}
VOC: Final = ".xml"
ENDINGS: Final = (*READERS, VOC)
METADATA: Final = tuple(f"metadata{ending}" for ending in (".csv", ".jsonl", ".parquet"))

NO_ROWS: Final = "a line of names, then a line a sample"

Files = Iterator[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table; for each row the folder that its paths start from, and its split; and the objects seen."""

    rows: TableRows
    folders: Sequence[str]
    splits: Sequence[str]
    objects: dict[str, ObjectInfo] | None = None  # None: none were listed on the way


def find_table(name: str, listing: Listing, left_out: LeftOut) -> FoundTable:
    """The table of that name, or of a pattern with stars; "": metadata.* of Hugging Face, in any folder."""
    if Path(name).is_absolute():
        return _read(name, _local(name), left_out)
    objects = {info.key: info for info in listing.objects()}
    if name:
        keys = [name] if name in objects else [key for key in objects if fnmatchcase(key, name)]
        if not keys:
            raise _not_there(name, objects)
        return _read(name, _bytes_of(keys, objects, listing), left_out, objects)
    keys = [key for key in objects if key.rsplit("/", 1)[-1] in METADATA]
    if not keys:
        raise UsageError(
            f"the layout table has no table, and no {', '.join(METADATA)} is in the source",
            hint='add table = "samples.csv"',
        )
    if len({key.rsplit(".", 1)[-1] for key in keys}) > 1:
        raise UsageError(f"{' and '.join(keys[:2])} are of two kinds", hint="name one: table = ...")
    tables = [read_rows(key, data) for key, data in _bytes_of(keys, objects, listing)]
    if len(tables) > 1:  # a line alone would not say which
        tables = [
            replace(table, lines=[f"{key} {line}" for line in table.lines])
            for key, table in zip(keys, tables, strict=True)
        ]
    if not any(map(len, tables)):
        raise UsageError(f"{keys[0]} has no rows", hint=NO_ROWS)
    folders = [key.rpartition("/")[0] + "/" * ("/" in key) for key in keys]
    splits = [SPLITS.get(folder.split("/", 1)[0].lower(), "") for folder in folders]
    return FoundTable(
        joined(tables),
        [folder for folder, table in zip(folders, tables, strict=True) for _ in table.lines],
        [split for split, table in zip(splits, tables, strict=True) for _ in table.lines],
        objects,
    )


def _read(
    name: str, files: Files, left_out: LeftOut, objects: dict[str, ObjectInfo] | None = None
) -> FoundTable:
    if name.lower().endswith(VOC):
        rows = read_voc(files, left_out)
    else:
        rows = joined([read_rows(key, data) for key, data in files])
    if not len(rows):
        raise UsageError(f"{name} has no rows", hint=NO_ROWS)
    return FoundTable(rows, [""] * len(rows), [""] * len(rows), objects)


def read_rows(name: str, data: bytes) -> TableRows:
    """A table, by the ending of its name. Raise UsageError if it is none."""
    ending = Path(name).suffix.lower()
    if ending not in READERS:
        raise UsageError(f"{name} is no table", hint=f"tables end with {', '.join(ENDINGS)}")
    return READERS[ending](name, data)


def _bytes_of(keys: Sequence[str], objects: dict[str, ObjectInfo], listing: Listing) -> Files:
    infos = [objects[key] for key in keys]
    data = listing.side_by_side(infos, lambda info: bytes(listing.read(Part(info))))
    return zip(keys, data, strict=True)


def _local(name: str) -> Files:
    """A file of this machine, or those of a pattern."""
    try:
        paths = [name] if Path(name).is_file() else sorted(glob.glob(name))  # noqa: PTH207 (it is absolute)
        for path in paths or [name]:
            yield path, Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror}", hint="is the path of the table right?") from None


def _not_there(name: str, objects: dict[str, ObjectInfo]) -> UsageError:
    tables = [key for key in objects if key.lower().endswith(ENDINGS)]
    return UsageError(
        f"there is no table {name!r} in the source, nor was one beside the config when that was read",
        hint=nearest(name, tables) or "put it beside stager.toml, and reload the service, if one runs",
    )
