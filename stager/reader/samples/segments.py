"""The segments of a list of samples: records of each, or a rule that all of them follow from."""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.errors import CacheError
from stager.reader.samples.computed.rules import Rule, open_rule
from stager.reader.samples.runs import Runs
from stager.reader.samples.sealed import read_tables
from stager.reader.values import (
    Numbers,
    ObjectInfo,
    Part,
    SampleInfo,
    canonical_json,
    decode_key,
    encode_key,
    key_hash,
    sample_tag,
)

# Of samples that are not one whole object each, the columns of PARTS come after these, and the objects that
# parts refer to are a second table of the file.
RECORD: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("size", pa.int64()),
        ("version", pa.large_string()),
        ("key_hash", pa.uint64()),
        ("tag", pa.uint64()),
    ]
)
PARTS: Final = pa.schema(
    [
        ("parts", pa.list_(pa.struct([("object", pa.int32()), ("start", pa.int64()), ("stop", pa.int64())]))),
        ("at", pa.large_string()),  # JSON
        ("inputs", pa.large_string()),  # JSON
    ]
)
OBJECT: Final = pa.schema([("key", pa.large_binary()), ("size", pa.int64()), ("version", pa.large_string())])
# What the schema of a computed segment has. It is no "stager": segments of upgraded caches may have that.
COMPUTED: Final = b"computed"

Rows = Numbers | slice  # of a segment


class Segment(Protocol):
    """Samples of a list, one after the other. A row is a place in the segment."""

    is_plain: bool  # each sample is one whole object, under the object's key

    def __len__(self) -> int: ...

    def key(self, row: int) -> str: ...

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        """What these samples are made of."""

    def column(self, name: str, rows: Rows) -> Any:
        """A column of RECORD as Arrow has it."""

    def values(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        """`size`, `key_hash` or `tag`."""

    def mates(self, rows: Numbers) -> Numbers:
        """Those, and all rows that share their first part with one of them."""

    def ranks(self, rows: Numbers) -> Numbers:
        """What sorts them as the source has them: by object, then by place in it."""


class ListedSegment:
    """A record of each sample, and the objects that their parts refer to, if they have any."""

    def __init__(self, batch: pa.RecordBatch, objects: pa.RecordBatch | None = None) -> None:
        self._batch, self._objects = batch, objects
        self.is_plain = objects is None
        self._columns: dict[str, npt.NDArray[Any]] = {
            name: batch.column(name).to_numpy(zero_copy_only=True) for name in ("size", "key_hash", "tag")
        }

    def __len__(self) -> int:
        return len(self._batch)

    def key(self, row: int) -> str:
        return decode_key(self._batch.column("key")[row].as_py())

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        """All at once: one by one costs ten times as much."""
        if self._objects is not None:
            return self._infos_of_parts(rows, self._objects)
        keys, sizes, versions = (self.column(name, rows).to_pylist() for name in ("key", "size", "version"))
        objects = map(ObjectInfo, map(decode_key, keys), sizes, versions)
        return [SampleInfo(info.key, info.version, (Part(info),)) for info in objects]

    def _infos_of_parts(self, rows: Numbers, objects: pa.RecordBatch) -> list[SampleInfo]:
        """Their objects are made once."""
        columns = [self.column(name, rows) for name in ("key", "version", *PARTS.names)]
        keys, versions, parts, places, inputs = (column.to_pylist() for column in columns)
        wanted = sorted({part["object"] for of_one in parts for part in of_one})
        told = objects.take(pa.array(wanted, pa.int64())).to_pydict()
        infos = map(ObjectInfo, map(decode_key, told["key"]), told["size"], told["version"])
        info_of = dict(zip(wanted, infos, strict=True))
        return [
            SampleInfo(
                decode_key(key),
                version,
                tuple(_part(info_of[part["object"]], part["start"], part["stop"]) for part in of_one),
                None if at is None else json.loads(at),
                () if given is None else tuple(json.loads(given)),
            )
            for key, version, of_one, at, given in zip(keys, versions, parts, places, inputs, strict=True)
        ]

    def column(self, name: str, rows: Rows) -> Any:
        column = self._batch.column(name)
        if isinstance(rows, slice):
            return column.slice(rows.start, rows.stop - rows.start)
        return column.take(pa.array(rows))

    def values(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        return self._columns[name][rows]

    def mates(self, rows: Numbers) -> Numbers:
        if self._objects is None:
            return rows
        return np.flatnonzero(np.isin(self._first_parts, self._first_parts[rows])).astype(np.int64)

    def ranks(self, rows: Numbers) -> Numbers:
        return rows if self._objects is None else self._first_parts[rows]

    def by_object(self) -> Iterator[tuple[ObjectInfo, Numbers]]:
        """The objects that first parts are of, and their rows."""
        if self._objects is None:
            return
        parts = self._batch.column("parts")
        objects, ends = parts.flatten().field("object").to_numpy(), parts.offsets.to_numpy()
        with_parts = np.flatnonzero(np.diff(ends))
        first = objects[ends[with_parts]]
        order = np.argsort(first, kind="stable")
        numbers, starts = np.unique(first[order], return_index=True)
        told = self._objects.take(pa.array(numbers)).to_pydict()
        infos = map(ObjectInfo, map(decode_key, told["key"]), told["size"], told["version"])
        yield from zip(infos, np.split(with_parts[order], starts[1:]), strict=True)

    @cached_property
    def _first_parts(self) -> Numbers:
        """A number for the first part of each sample, in the order in which the source has them."""
        parts = self._batch.column("parts")
        told, ends = parts.flatten(), parts.offsets.to_numpy()
        has_parts = np.diff(ends) > 0
        columns = [
            told.field(name).to_numpy().astype(np.int64)[ends[:-1][has_parts]]
            for name in ("stop", "start", "object")
        ]
        order = np.lexsort(columns)
        is_another = np.zeros(len(order), np.bool_)
        for column in columns:
            is_another[1:] |= np.diff(column[order]) != 0
        found = -1 - np.arange(len(parts))  # without a part: like no other
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(is_another)
        found[has_parts] = numbers
        return found


class ComputedSegment:
    """Samples that follow from a rule: some of its rows, in rising order."""

    is_plain = False

    def __init__(self, rule: Rule, of_rule: Runs) -> None:
        assert not of_rule.less(Runs([(0, rule.count)])), "a rule has no other samples"
        self.rule, self.of_rule = rule, of_rule

    def __len__(self) -> int:
        return len(self.of_rule)

    def key(self, row: int) -> str:
        return self.rule.keys(np.asarray([self.of_rule[row]]))[0]

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        return self.rule.infos(self.of_rule[rows])

    def rows_among(self, numbers: Runs, first: int) -> Runs:
        """The rule's rows of those of these samples that are here. `first`: the number of its first one."""
        here = numbers.both(Runs([(first, len(self))]))
        return self.of_rule.at(Runs.of(here.firsts - first, here.counts)).rising()

    def numbers_of(self, rows: Runs, first: int) -> Runs:
        """The numbers of rows of the rule, which are all here."""
        return Runs.of(self.of_rule.find(rows.firsts) + first, rows.counts)

    def column(self, name: str, rows: Rows) -> Any:
        of_rule = self.of_rule[_numbers(rows)]
        if name == "key":
            return pa.array(map(encode_key, self.rule.keys(of_rule)), RECORD.field(name).type)
        if name == "version":
            return pa.array(self.rule.versions(of_rule), RECORD.field(name).type)
        return pa.array(self.values(name, rows))

    def values(self, name: str, rows: Rows) -> npt.NDArray[Any]:
        of_rule = self.of_rule[_numbers(rows)]
        if name == "size":
            return np.asarray([info.size for info in self.rule.infos(of_rule)], dtype=np.int64)
        keys = self.rule.keys(of_rule)
        if name == "key_hash":
            return np.asarray([key_hash(key) for key in keys], dtype=np.uint64)
        versions = self.rule.versions(of_rule)
        return np.asarray([sample_tag(*of) for of in zip(keys, versions, strict=True)], dtype=np.uint64)

    def mates(self, rows: Numbers) -> Numbers:
        mates = self.of_rule.find(self.rule.mates(self.of_rule[rows]))
        return mates[mates >= 0]

    def ranks(self, rows: Numbers) -> Numbers:
        return rows

    def find(self, key: str) -> int | None:
        """The row of a key, or None."""
        found = self.rule.find(key)
        row = -1 if found is None else int(self.of_rule.find(np.asarray([found]))[0])
        return row if row >= 0 else None

    def tables(self) -> list[pa.Table]:
        """As a file has it: no records, the rule beside them, and what a listing told."""
        runs = self.of_rule.runs
        about: dict[str, Any] = {"rule": self.rule.to_json()}
        if len(runs) == 1:
            about |= {"start": runs[0][0], "stop": sum(runs[0])}
        else:
            about["rows"] = runs
        empty = RECORD.empty_table().replace_schema_metadata({COMPUTED: canonical_json(about)})
        return [empty] if self.rule.table is None else [empty, self.rule.table]


def read_segment(path: Path) -> Segment:
    """Raise CacheError if it is missing, damaged, or no segment."""
    table, *objects = read_tables(path)
    if not set(RECORD.names) <= set(table.schema.names):
        raise CacheError(f"{path} has no records", hint="use one version of stager on both sides")
    if told := (table.schema.metadata or {}).get(COMPUTED):
        try:
            about = json.loads(told)
            rows = about.get("rows") or [(about["start"], about["stop"] - about["start"])]
            return ComputedSegment(open_rule(about["rule"], *objects), Runs(rows))
        except (KeyError, ValueError, TypeError) as error:
            raise CacheError(f"{path} cannot be read: {error}", hint="scan again: stager prefetch") from None
    (batch,) = table.to_batches() or [empty_batch()]
    return ListedSegment(batch, objects[0].combine_chunks().to_batches()[0] if objects else None)


def empty_batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in RECORD], schema=RECORD)


def by_segment(ends: Numbers, numbers: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
    """For segments that end at these numbers: which segment, which places of the numbers, and its rows."""
    segments = np.searchsorted(ends, numbers, side="right")
    for segment in np.unique(segments).tolist():
        here = np.flatnonzero(segments == segment)
        yield segment, here, numbers[here] - (int(ends[segment - 1]) if segment else 0)


def _numbers(rows: Rows) -> Numbers:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _part(info: ObjectInfo, start: int, stop: int) -> Part:
    return Part(info, start, None if stop < 0 else stop)
