"""The objects that chunks of a volume lie in, as a scan listed them: which there were, of what version."""

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stager.reader.values import Numbers, digest_of

# In rising order: by array, then by the object's number in it.
LISTED: Final = pa.schema(
    [("array", pa.int16()), ("object", pa.int64()), ("size", pa.int64()), ("version", pa.large_string())]
)
_EMPTY: Final = pa.table([pa.array([], field.type) for field in LISTED], schema=LISTED)


class OfArray(NamedTuple):
    """The objects of one array: their numbers, sizes and versions."""

    numbers: "array[int]"
    sizes: "array[int]"
    versions: list[str]


class Listed:
    """Of each array of a volume, its objects. What is not here was not there.

    Numbers count an array's objects in C order. Nothing is held but the table, which is mapped.
    """

    def __init__(self, table: pa.Table) -> None:
        columns = [table[name].combine_chunks() for name in LISTED.names]
        self._batch = batch = pa.RecordBatch.from_arrays(columns, schema=LISTED)
        self._arrays = batch.column("array").to_numpy(zero_copy_only=True)
        self._objects = batch.column("object").to_numpy(zero_copy_only=True)
        self._sizes = batch.column("size").to_numpy(zero_copy_only=True)
        self._versions = batch.column("version")

    @classmethod
    def of(cls, found: Sequence["OfArray"]) -> "Listed":
        """`found`: of each array, its objects in any order."""
        tables = [_EMPTY]
        for at, (numbers, sizes, versions) in enumerate(found):
            columns = np.full(len(numbers), at), numbers, sizes, versions
            values = [pa.array(of, field.type) for of, field in zip(columns, LISTED, strict=True)]
            tables.append(pa.table(values, schema=LISTED).take(pa.array(np.argsort(numbers))))
        return cls(pa.concat_tables(tables))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches([self._batch])

    @cached_property
    def digest(self) -> str:
        columns = (np.ascontiguousarray(of).data for of in (self._arrays, self._objects, self._sizes))
        versions = "\0".join(self._versions.to_pylist())
        return digest_of(*(column.cast("B") for column in columns if len(column)), versions.encode())

    def find(self, of_array: int, number: int) -> tuple[int, str] | None:
        """Size and version of an object of an array; None: it was not there."""
        of = self._rows(of_array)
        at = of.start + int(np.searchsorted(self._objects[of], number))
        if at == of.stop or self._objects[at] != number:
            return None
        return int(self._sizes[at]), self._versions[at].as_py()

    def differing(self, other: "Listed", of_array: int) -> Numbers:
        """The objects of an array that only one of them has, or that have another version."""
        of, of_other = self._rows(of_array), other._rows(of_array)
        mine, theirs = self._objects[of], other._objects[of_other]
        shared, here, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        versions = self._versions.take(pa.array(of.start + here))
        of_theirs = other._versions.take(pa.array(of_other.start + there))
        is_other = pc.not_equal(versions, of_theirs).to_numpy(zero_copy_only=False).astype(np.bool_)
        return np.union1d(shared[is_other], np.setxor1d(mine, theirs, assume_unique=True))

    def lacking(self, other: "Listed", of_array: int) -> Numbers:
        """The objects of an array that only the other one has."""
        theirs = other._objects[other._rows(of_array)]
        return np.setdiff1d(theirs, self._objects[self._rows(of_array)], assume_unique=True)

    def only(self, wanted: Iterable[Numbers]) -> "Listed":
        """Of each array, these objects, as far as they were there."""
        kept = []
        for at, numbers in enumerate(wanted):
            of = self._rows(at)
            kept.append(of.start + np.flatnonzero(np.isin(self._objects[of], numbers)))
        return Listed(self.table.take(pa.array(np.concatenate(kept))))

    def alone(self, of_array: int) -> "Listed":
        """What it has of one array, as if there were no others."""
        of = self._rows(of_array)
        table = self.table.slice(of.start, of.stop - of.start)
        zeros = pa.array(np.zeros(len(table)), pa.int16())
        return Listed(table.set_column(0, LISTED.field("array"), zeros))

    def _rows(self, of_array: int) -> slice:
        start, stop = np.searchsorted(self._arrays, [of_array, of_array + 1]).tolist()
        return slice(start, stop)
