"""A source's samples at one time, in order, with a digest: a version of the data set.

A manifest says of each place which sample is there, by its number in the data set's records, and its label
and split. The digest is of keys, sizes, versions, labels and splits: the same on every machine.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.errors import CacheError
from stager.reader.sample_list import SampleList
from stager.reader.sealed import read_sealed
from stager.reader.values import Attribute, Numbers, key_hash

MANIFEST_FORMAT: Final = 2
SCAN_AGAIN: Final = "run: stager prefetch, to scan again"

# A column for each attribute comes after these, under its name with a prefix.
PLACE: Final = pa.schema([("number", pa.uint32()), ("label", pa.int32()), ("split", pa.int8())])


class Manifest:
    """An open manifest, and the records that its numbers are of."""

    def __init__(self, table: pa.Table, records: SampleList) -> None:
        about = json.loads(table.schema.metadata[b"stager"])
        if about["format"] != MANIFEST_FORMAT:
            raise CacheError(
                f"the manifest has format {about['format']}, this stager reads {MANIFEST_FORMAT}",
                hint="use one version of stager for the service and the clients",
            )
        self.records = records
        self.digest: str = about["digest"]
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.splits: tuple[str, ...] = tuple(about["splits"])
        self.attributes = tuple(Attribute(*told) for told in about.get("attributes", ()))
        (batch,) = table.to_batches() or [_empty()]
        self._attributes = {
            attribute.name: batch.column(attribute_column(attribute.name)) for attribute in self.attributes
        }
        self.labels: npt.NDArray[np.int32] = batch.column("label").to_numpy(zero_copy_only=True)
        self.split_of: npt.NDArray[np.int8] = batch.column("split").to_numpy(zero_copy_only=True)
        self.numbers: Numbers = batch.column("number").to_numpy(zero_copy_only=True).astype(np.int64)
        if len(self.numbers) and self.numbers.max() >= len(records):
            raise CacheError(
                f"the manifest {self.digest[:8]} is of other records",
                hint=SCAN_AGAIN,
            )

    @classmethod
    def open(cls, path: Path, records: SampleList) -> "Manifest":
        """Raise CacheError if it is missing, damaged, or of other records."""
        table = read_sealed(path)
        try:
            return cls(table, records)
        except (KeyError, ValueError, TypeError) as error:
            raise CacheError(f"{path} cannot be read: {error}", hint=SCAN_AGAIN) from None

    def __len__(self) -> int:
        return len(self.numbers)

    def key(self, place: int) -> str:
        return self.records.key(int(self.numbers[place]))

    @cached_property
    def key_hashes(self) -> npt.NDArray[np.uint64]:
        return self.records.values("key_hash", self.numbers)

    @cached_property
    def tags(self) -> npt.NDArray[np.uint64]:
        return self.records.values("tag", self.numbers)

    def attribute(self, name: str, places: Numbers) -> Any:
        """The values of an attribute at these places, as Arrow has them. A null: it has none."""
        return self._attributes[name].take(pa.array(places))

    def column(self, name: str) -> Any:
        """A column as Arrow has it, for predicates."""
        if name in self._attributes:
            return self._attributes[name]
        if name in ("label", "split"):
            return pa.array(self.labels if name == "label" else self.split_of)
        return self.records.column(name, self.numbers)

    def find(self, key: str) -> int | None:
        """The place of a key, or None."""
        for place in np.flatnonzero(self.key_hashes == np.uint64(key_hash(key))).tolist():
            if self.key(place) == key:
                return int(place)
        return None

    def has(self, count: int) -> npt.NDArray[np.bool_]:
        """Which of the first `count` numbers are in it."""
        mask = np.zeros(count, dtype=np.bool_)
        mask[self.numbers] = True
        return mask

    @cached_property
    def places(self) -> npt.NDArray[np.int64]:
        """The place of each number, or -1."""
        places = np.full(len(self.records), -1, dtype=np.int64)
        places[self.numbers] = np.arange(len(self))
        return places


def attribute_column(name: str) -> str:
    """The column of an attribute in a manifest's file."""
    return f"attribute.{name}"


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in PLACE], schema=PLACE)
