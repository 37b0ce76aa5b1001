"""A source's samples at one time, in order, with a digest: a version of the data set.

A manifest says of each place which sample is there, by its number in the data set's list, and its label and
split. It is listed, a row a place, or computed: a few runs of numbers, however many places they are. Both
answer the same questions. The digest is of keys, sizes, versions, labels and splits, or of the rules: the
same on every machine.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.errors import CacheError
from stager.reader.samples.by_number import ByNumber
from stager.reader.samples.runs import Collection, Runs
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.sealed import read_tables
from stager.reader.values import Attribute, Mask, Numbers, ObjectInfo, key_hash

MANIFEST_FORMAT: Final = 2
COMPUTED_FORMAT: Final = 3  # a stager that knows no computed ones says so
SCAN_AGAIN: Final = "run: stager prefetch, to scan again"

# A column for each attribute comes after these, under its name with a prefix.
PLACE: Final = pa.schema([("number", pa.uint32()), ("label", pa.int32()), ("split", pa.int8())])
WHERE: Final = "where"  # the last column, if samples are rows of a table: "line 17"


class Counts(NamedTuple):
    """Of each brick of a volume, in order, how many voxels are foreground; and the digest of that."""

    voxels: npt.NDArray[np.uint32]
    digest: str


class Manifest(ABC):
    """An open manifest, and the list that its numbers are of."""

    numbers: Collection  # of the samples, by place

    def __init__(self, about: Mapping[str, Any], records: SampleList) -> None:
        self.records = records
        self.digest: str = about["digest"]
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.splits: tuple[str, ...] = tuple(about["splits"])
        self.attributes = tuple(Attribute(*told) for told in about.get("attributes", ()))
        # A later scan may list some folders alone, and have the rest of this one.
        self.is_whole: bool = about.get("is_whole", False)

    @staticmethod
    def open(path: Path, records: SampleList) -> "ListedManifest | ComputedManifest":
        """Raise CacheError if it is missing, damaged, or of another list."""
        table, *more = read_tables(path)
        try:
            about = json.loads(table.schema.metadata[b"stager"])
            if about["format"] == COMPUTED_FORMAT:
                return ComputedManifest(about, records, *more)
            if about["format"] == MANIFEST_FORMAT:
                return ListedManifest(about, records, table)
        except (KeyError, ValueError, TypeError) as error:
            raise CacheError(f"{path} cannot be read: {error}", hint=SCAN_AGAIN) from None
        raise CacheError(
            f"the manifest has format {about['format']}, this stager reads {MANIFEST_FORMAT}",
            hint="use one version of stager for the service and the clients",
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def key(self, place: int) -> str:
        return self.records.key(int(self.numbers[place]))

    @abstractmethod
    def find(self, key: str) -> int | None:
        """The place of a key, or None."""

    @abstractmethod
    def places_of(self, numbers: Numbers) -> Numbers:
        """The place of each of these samples; -1: it is not in it."""

    @abstractmethod
    def has(self, numbers: Numbers) -> Mask:
        """Which of these samples are in it."""

    @abstractmethod
    def labels_at(self, places: Collection) -> npt.NDArray[np.integer[Any]]:
        """The labels of places. They are not to be written to."""

    @abstractmethod
    def class_sizes(self) -> Numbers:
        """How many samples each class has."""

    def table_row(self, place: int) -> str:
        """Where the row of a sample stands in its table, as a person finds it; nothing, if it is of none."""
        return ""

    def foreground(self, field: str) -> Counts | None:
        """How much of it each sample has; None: nobody has counted."""
        return None

    @abstractmethod
    def attribute(self, name: str, places: Numbers) -> Any:
        """The values of an attribute at these places, as Arrow has them. A null: it has none."""

    def _check(self, highest: int) -> None:
        """Raise CacheError if the list has no such number."""
        if highest >= len(self.records):
            raise CacheError(f"the manifest {self.digest[:8]} is of another list of samples", hint=SCAN_AGAIN)


class ListedManifest(Manifest):
    """A row a place."""

    numbers: Numbers

    def __init__(self, about: Mapping[str, Any], records: SampleList, table: pa.Table) -> None:
        super().__init__(about, records)
        (batch,) = table.to_batches() or [_empty()]
        self._attributes = {
            attribute.name: batch.column(attribute_column(attribute.name)) for attribute in self.attributes
        }
        self._table_rows = batch.column(WHERE) if WHERE in batch.schema.names else None
        self.labels: npt.NDArray[np.int32] = batch.column("label").to_numpy(zero_copy_only=True)
        self.split_of: npt.NDArray[np.int8] = batch.column("split").to_numpy(zero_copy_only=True)
        self.numbers = batch.column("number").to_numpy(zero_copy_only=True).astype(np.int64)
        self._check(int(self.numbers.max(initial=-1)))

    @cached_property
    def key_hashes(self) -> npt.NDArray[np.uint64]:
        return self.records.values("key_hash", self.numbers)

    @cached_property
    def tags(self) -> npt.NDArray[np.uint64]:
        return self.records.values("tag", self.numbers)

    def attribute(self, name: str, places: Numbers) -> Any:
        return self._attributes[name].take(pa.array(places))

    def table_row(self, place: int) -> str:
        return "" if self._table_rows is None else str(self._table_rows[place])

    def column(self, name: str) -> Any:
        """A column as Arrow has it, for predicates."""
        if name in self._attributes:
            return self._attributes[name]
        if name in ("label", "split"):
            return pa.array(self.labels if name == "label" else self.split_of)
        return self.records.column(name, self.numbers)

    def find(self, key: str) -> int | None:
        for place in np.flatnonzero(self.key_hashes == np.uint64(key_hash(key))).tolist():
            if self.key(place) == key:
                return int(place)
        return None

    def object_of(self, key: str) -> ObjectInfo | None:
        """The object that the sample of a key is, where each is one; None: there is no such sample."""
        place = self.find(key)
        return None if place is None else self.records.infos(self.numbers[place : place + 1])[0].parts[0].info

    def places_of(self, numbers: Numbers) -> Numbers:
        return self._places[numbers] - 1

    def has(self, numbers: Numbers) -> Mask:
        return self._members[numbers]

    @cached_property
    def _places(self) -> ByNumber:
        """The place of each number, and 1; 0: it is not in it."""
        places = np.zeros(len(self.records), dtype=np.int64)
        places[self.numbers] = np.arange(1, len(self) + 1)
        return ByNumber(np.int64, places)

    @cached_property
    def _members(self) -> ByNumber:
        members = np.zeros(len(self.records), dtype=np.bool_)
        members[self.numbers] = True
        return ByNumber(np.bool_, members)

    def labels_at(self, places: Collection) -> npt.NDArray[np.integer[Any]]:
        return np.asarray(self.labels[places[:]])

    def class_sizes(self) -> Numbers:
        return np.bincount(self.labels, minlength=len(self.classes))


class ComputedManifest(Manifest):
    """Runs of numbers, of samples that follow from rules. All are of one class."""

    numbers: Runs

    def __init__(
        self, about: Mapping[str, Any], records: SampleList, foreground: pa.Table | None = None
    ) -> None:
        """`foreground`: a column for each field that was counted."""
        super().__init__(about, records)
        self._foreground, self._digests = foreground, about.get("foreground", {})
        self.numbers = Runs((first, count) for first, count in about["runs"])
        self._check(int((self.numbers.firsts + self.numbers.counts).max(initial=0)) - 1)

    def find(self, key: str) -> int | None:
        for start, segment in self.records.computed():
            row = segment.find(key)
            if row is not None and self.has(found := np.asarray([start + row]))[0]:
                return int(self.places_of(found)[0])
        return None

    def places_of(self, numbers: Numbers) -> Numbers:
        return self.numbers.find(numbers)

    def has(self, numbers: Numbers) -> Mask:
        return self.numbers.find(numbers) >= 0

    def labels_at(self, places: Collection) -> npt.NDArray[np.integer[Any]]:
        return np.broadcast_to(np.int64(0), (len(places),))  # of any length, in eight bytes

    def class_sizes(self) -> Numbers:
        return np.asarray([len(self)])

    def foreground(self, field: str) -> Counts | None:
        if self._foreground is None or field not in self._digests:
            return None
        (chunk,) = self._foreground[field].chunks
        return Counts(chunk.to_numpy(zero_copy_only=True), self._digests[field])

    def attribute(self, name: str, places: Numbers) -> Any:
        raise KeyError(name)


def attribute_column(name: str) -> str:
    """The column of an attribute in a manifest's file."""
    return f"attribute.{name}"


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in PLACE], schema=PLACE)
