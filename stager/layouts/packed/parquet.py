"""Parquet files with bytes in their rows, as Hugging Face has them: each row is a sample, read in place."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from stager.errors import SampleError, StagerError, UsageError, nearest
from stager.interfaces import Entry, Folders, LeftOut, Listing, Needs, Recalled, Recipe
from stager.layouts.packed.columns import SeenAttributes, as_class, labels_in_order, splits_of, values_of
from stager.layouts.packed.ranged import RangedFile
from stager.layouts.packed.row_groups import bytes_type, is_text, range_of
from stager.layouts.packed.seen import ANY, known_again, needs_of, objects_of, tell_damage
from stager.reader.samples.predicate import COLUMNS
from stager.reader.values import Attribute, ObjectInfo, Part

LABEL: Final = "label"  # the column that has the label, if there is one and no other is named
ENDINGS: Final = (".parquet", ".pq")
TAIL_BYTES: Final = 8  # behind the footer
HINT: Final = 'add the name of the column, as path = "photo", to each recipe'


@dataclass(slots=True)
class File:
    """What a Parquet file has: as its footer says, or as the last scan found."""

    info: ObjectInfo
    metadata: pq.FileMetaData | None = None
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    values: dict[str, tuple[str, pa.ChunkedArray]] = field(default_factory=dict)  # types, and plain columns
    recalled: Recalled | None = None
    damage: str = ""

    def with_bytes(self) -> list[str]:
        """Columns that fields can be made of, without those of texts."""
        return [one.name for one in self.schema if bytes_type(one.type) and not is_text(one.type)]

    def with_texts(self) -> list[str]:
        """Columns of texts, that fields can be made of if named."""
        return [one.name for one in self.schema if is_text(one.type)]


class ParquetLayout:
    """A sample's key is its file's, a slash, and its row, from 0. Footers of a version are read once.

    A recipe's `path` names a column. Columns of truths, numbers and texts that no field is made of are
    attributes. Rows of one row group share it: it is fetched and opened once for them.
    """

    is_computed: Literal[False] = False
    is_plain = False

    def __init__(self, label: str, recipe: Recipe, left_out: LeftOut) -> None:
        self._label, self._recipe, self._left_out = label, recipe, left_out
        self.attributes: tuple[Attribute, ...] = ()

    def entries(self, listing: Listing) -> Iterator[Entry]:
        infos = objects_of(listing, ENDINGS, self._left_out)
        files = list(listing.side_by_side(infos, partial(look, listing)))
        fresh = [file for file in files if not file.recalled and not file.damage]
        known = _known_columns([file.recalled for file in files if file.recalled], self._label)
        names = list({name: None for file in fresh for name in file.schema.names} | known)
        if self._label and fresh and self._label not in names:
            raise UsageError(
                f"no file has a column {self._label!r} (label)", hint=nearest(self._label, names)
            )
        label = self._label or (LABEL if LABEL in names else "")
        needs = self._needs(fresh, names, [name for name, has_bytes in known.items() if has_bytes])
        for file in fresh:
            plain = [*filter(None, [label]), *(given.column for given in needs.inputs)]
            file.damage = _lacks(file, [*needs.paths], plain) or _lies_outside(file, needs.paths)
        tell_damage(self._left_out, {file.info.key: file.damage for file in files})
        self.attributes = self._attributes(files, {*needs.paths, *({label} & {*COLUMNS})})
        split_of = splits_of([info.key for info in infos])
        for file in files:
            split = split_of[file.info.key]
            if file.recalled:
                yield from known_again(file.recalled, self.attributes, split)
            elif not file.damage:
                yield from self._found(file, needs, label, split)

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        return labels_in_order(paths)

    def _needs(self, files: Sequence[File], names: Sequence[str], known: Sequence[str]) -> Needs:
        """The columns that fields are made of: those that recipes name, or the only one that has bytes.

        `known`: those that they were made of in files that are known. Of files that differ, most count.
        """
        if not files:
            return Needs(())
        commonest = Counter(tuple(file.with_bytes()) for file in files if file.with_bytes()).most_common(1)
        found = known or [name for names_of, _ in commonest for name in names_of]
        hint = f"{HINT}; with bytes: {', '.join(found) or 'none'}"
        needs = needs_of(self._recipe, names, len(found) == 1, hint)
        needs = needs._replace(paths=tuple(found[0] if path == ANY else path for path in needs.paths))
        for path in needs.paths:
            if path not in names:
                raise UsageError(f"no file has a column {path!r} (path)", hint=nearest(path, names))
        return needs

    def _attributes(self, files: Sequence[File], used: set[str]) -> tuple[Attribute, ...]:
        columns = SeenAttributes()
        for file in files:
            for name, (type_name, _) in file.values.items():
                if not file.damage and name not in used:
                    columns.add_type(name, type_name)
            for attribute in file.recalled.attributes if file.recalled else ():
                columns.add_type(*attribute)
        return columns.attributes(self._left_out)

    def _found(self, file: File, needs: Needs, label: str, split: str) -> Iterator[Entry]:
        assert file.metadata is not None
        told = {name: column.to_pylist() for name, (_, column) in file.values.items()}
        class_of = _class_names(file.schema, label)
        size = file.info.size
        footer = Part(file.info, size - TAIL_BYTES - file.metadata.serialized_size, size)
        row = -1
        for group in range(file.metadata.num_row_groups):
            parts = Part(file.info, *range_of(file.metadata, group, needs.paths)), footer
            for at in range(file.metadata.row_group(group).num_rows):
                row += 1
                values = {name: column[row] for name, column in told.items()}
                if label and values[label] is None:
                    self._left_out.count("no_label")
                    continue
                yield Entry(
                    f"{file.info.key}/{row}",
                    parts,
                    (split, class_of.get(values[label], as_class(values[label])) if label else ""),
                    values_of(values, self.attributes),
                    [group, at, *needs.paths],
                    tuple(given.of(values.get(given.column)) for given in needs.inputs),
                )


def look(listing: Listing, info: ObjectInfo) -> File:
    """Read a file's footer and its plain columns, unless they are known."""
    file = File(info, recalled=listing.known(info))
    if file.recalled is not None:
        return file
    try:
        opened = pq.ParquetFile(pa.PythonFile(RangedFile(info, listing.read), mode="r"))
        file.metadata, file.schema = opened.metadata, opened.schema_arrow
        types = {one.name: _TYPES.get(_value_type(one.type)) for one in file.schema}
        plain = [name for name, known in types.items() if known]
        table = opened.read(columns=plain, use_threads=False)
        for name in plain:
            type_name, arrow_type = types[name] or ("", pa.null())
            file.values[name] = type_name, table.column(name).cast(arrow_type)
    except SampleError as error:
        file.damage = error.message
    except StagerError:
        raise
    except Exception as error:  # whatever Arrow makes of a damaged file
        file.damage = (str(error).splitlines() or [type(error).__name__])[0]
    return file


def _known_columns(recalled: Sequence[Recalled], label: str) -> dict[str, bool]:
    """The columns that files had which are known, as far as they were used; and whether fields are of it."""
    found: dict[str, bool] = {}
    for file in recalled:
        found |= {attribute.name: False for attribute in file.attributes}
        first = file.entries[0]
        found |= dict.fromkeys([label or LABEL] if first.path[1] else [], False)
        found |= dict.fromkeys(first.at[2:], True)
    return found


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_TYPES: Final = {
    pa.bool_(): ("bool", pa.bool_()),
    **{
        kind: ("int64", pa.int64())
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
    },
    **{kind: ("float64", pa.float64()) for kind in (pa.float16(), pa.float32(), pa.float64())},
    **{kind: ("string", pa.large_string()) for kind in (pa.string(), pa.large_string())},
}


def _lacks(file: File, fields: Sequence[str], plain: Sequence[str]) -> str:
    """What a file has not that others have; nothing, if it has all that is needed."""
    for name in [*fields, *plain]:
        if name not in file.schema.names:
            return f"it has no column {name}"
    for name in fields:
        if not bytes_type(file.schema.field(name).type):
            return f"its column {name} has no bytes, but {file.schema.field(name).type}"
    for name in plain:
        if name not in file.values:
            return f"its column {name} is {file.schema.field(name).type}"
    return ""


def _lies_outside(file: File, fields: Sequence[str]) -> str:
    """What is wrong with where its row groups lie; nothing, if they are in the file."""
    assert file.metadata is not None
    for group in range(file.metadata.num_row_groups):
        try:
            start, stop = range_of(file.metadata, group, fields)
        except Exception as error:  # whatever Arrow makes of a damaged footer
            return f"row group {group}: {(str(error).splitlines() or [type(error).__name__])[0]}"
        if not 0 <= start <= stop <= file.info.size:
            return f"row group {group} is not in the file, says its footer"
    return ""


def _class_names(schema: pa.Schema, label: str) -> dict[Any, str]:
    """The names of labels that are numbers, if Hugging Face's note in the file has some."""
    try:
        told = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]
        names = told["names"] if told["_type"] == "ClassLabel" else []
        return {number: str(name) for number, name in enumerate(names)}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
