"""A scan becomes a manifest: labels, order, digest, and for each sample its number in the data set's records.

All of it happens in a worker: the loop that adopts a scan only renames files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stager.errors import CacheError
from stager.interfaces import ComputedLayout, Layout, Listing
from stager.reader.samples.manifest import (
    COMPUTED_FORMAT,
    MANIFEST_FORMAT,
    PLACE,
    ListedManifest,
    Manifest,
    attribute_column,
)
from stager.reader.samples.rules import Rule
from stager.reader.samples.runs import Runs
from stager.reader.samples.sample_list import NUMBERS_MAX, SampleList
from stager.reader.samples.sealed import write_sealed
from stager.reader.samples.segments import PARTS, RECORD, ComputedSegment
from stager.reader.values import (
    Numbers,
    canonical_json,
    digest_of,
)
from stager.scan.found import Found, find


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan wrote: a manifest, and beside it whatever the data set's records do not have yet."""

    path: Path  # of the manifest

    @property
    def segments(self) -> list[Path]:
        """What the data set's list does not have yet, in order."""
        return sorted(self.path.parent.glob(f"{self.path.name}.samples-*"))

    def add_segment(self, *tables: pa.Table) -> None:
        """Write one more segment."""
        write_sealed(self._next_segment, *tables)

    @property
    def _next_segment(self) -> Path:
        return self.path.with_name(f"{self.path.name}.samples-{len(self.segments):06d}")

    @property
    def joins(self) -> Path:
        """How the scan's numbers came to be: `Joins`."""
        return self.path.with_suffix(".npz")

    def read_joins(self) -> "Joins":
        with np.load(self.joins) as found:
            compared = str(found["lineage"]), int(found["count"])
            return Joins(*compared, found["replaced"], found["moved"], int(found["samples"]))

    def unlink(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)

    @property
    def paths(self) -> list[Path]:
        """All files of it that may be there."""
        return [self.path, *self.segments, self._next_segment, self.joins]


@dataclass(frozen=True, slots=True)
class Joins:
    """The list of samples that a scan was compared with, and what became of its numbers."""

    lineage: str
    count: int  # of its samples
    replaced: npt.NDArray[np.int64]  # numbers before and now, of keys that have another version
    moved: Numbers  # the number that each has now, or -1, if the list is made anew; else empty
    samples: int  # that the scan found


@dataclass(frozen=True, slots=True)
class Known:
    """What a scan is compared with: the data set's records and its newest manifest.

    `relist`: the list has outgrown what is live. The scan's samples get new numbers, from 0, and `moved` says
    for each old number which one it has now, or -1.
    """

    records: SampleList
    newest: Manifest | None = None
    relist: bool = False


NOTHING_KNOWN: Final = Known(SampleList("", (), ()))


def write_manifest(
    path: Path,
    layout: Layout | ComputedLayout,
    listing: Listing,
    known: Known = NOTHING_KNOWN,
    progress: Callable[[int], None] = lambda scanned: None,
) -> str:
    """Write a `Scan` of what a layout finds; return the manifest's digest."""
    if layout.is_computed:
        return write_computed(Scan(path), layout.rules(listing), known)
    return write_scan(Scan(path), find(layout, listing, progress), known)


def write_computed(scan: Scan, rules: Sequence[Rule], known: Known) -> str:
    """Write a `Scan` of what rules say. What follows from a rule that is known has its numbers."""
    runs: list[tuple[int, int]] = []
    first = len(known.records)
    for rule in rules:
        row = 0
        for number, segment in known.records.computed():
            if segment.rule.identity == rule.identity and segment.start == row < rule.count:
                count = min(segment.stop, rule.count) - row
                runs.append((number, count))
                row += count
        if row < rule.count:
            scan.add_segment(ComputedSegment(rule, row, rule.count).table())
            runs.append((first, rule.count - row))
            first += rule.count - row
    _check_room(first)
    none = np.zeros((2, 0), dtype=np.int64)
    _write_joins(scan, known, none, none[0], len(Runs(runs)))
    classes, splits, told = [""], [""], [rule.to_json() for rule in rules]
    digest = digest_of(canonical_json([classes, splits, told]).encode())
    about = {"format": COMPUTED_FORMAT, "digest": digest, "classes": classes, "splits": splits, "runs": runs}
    write_sealed(scan.path, PLACE.empty_table().replace_schema_metadata({"stager": canonical_json(about)}))
    return digest


def write_scan(scan: Scan, samples: Found, known: Known) -> str:
    """Give samples their numbers, and write what that makes."""
    table, digest = samples.table, samples.digest()
    found = match(table, known.records)
    is_new = np.ones(len(found), np.bool_) if known.relist else found < 0
    first = 0 if known.relist else len(known.records)
    numbers = np.where(is_new, first + np.cumsum(is_new) - 1, found)
    _check_room(first + int(is_new.sum()))
    moved = np.full(len(known.records) if known.relist else 0, -1, dtype=np.int64)
    if known.relist:
        moved[found[found >= 0]] = numbers[found >= 0]
    _write_joins(scan, known, _replaced(table, found < 0, numbers, known.newest), moved, len(table))
    if is_new.any():
        scan.add_segment(*segment_of(samples, is_new))
    about: dict[str, Any] = {
        "format": MANIFEST_FORMAT,
        "digest": digest,
        "classes": samples.classes,
        "splits": samples.splits,
    }
    if samples.attributes:
        about["attributes"] = samples.attributes
    schema = PLACE
    for attribute, values in zip(samples.attributes, samples.values, strict=True):
        schema = schema.append(pa.field(attribute_column(attribute.name), values.type))
    columns = [pa.array(numbers, pa.uint32()), table["label"], table["split"], *samples.values]
    write_sealed(scan.path, pa.table(columns, schema=schema.with_metadata({"stager": canonical_json(about)})))
    return digest


def _check_room(numbers: int) -> None:
    if numbers >= NUMBERS_MAX:
        raise CacheError("the data set has had too many samples", hint="evict it, and prefetch it again")


def _write_joins(
    scan: Scan, known: Known, replaced: npt.NDArray[np.int64], moved: Numbers, samples: int
) -> None:
    lineage, count = np.asarray(known.records.lineage), len(known.records)
    np.savez(scan.joins, lineage=lineage, count=count, replaced=replaced, moved=moved, samples=samples)


def segment_of(samples: Found, is_new: npt.NDArray[np.bool_]) -> list[pa.Table]:
    """The records of the samples that are new; and, if they are not plain, the objects of their parts."""
    added = samples.table.select(RECORD.names)
    places = None if is_new.all() else pa.array(np.flatnonzero(is_new))
    if samples.parts is None or samples.objects is None:
        return [added if places is None else added.take(places)]
    for name in PARTS.names:
        added = added.append_column(PARTS.field(name), samples.parts[name])
    if places is None:
        return [added, samples.objects]
    return _with_own_objects(added.take(places).combine_chunks(), samples.objects)


def _with_own_objects(added: pa.Table, objects: pa.Table) -> list[pa.Table]:
    """Records with the objects that they refer to, and no others."""
    parts = added["parts"].chunk(0)
    told = parts.flatten()
    used, numbers = np.unique(told.field("object").to_numpy(), return_inverse=True)
    columns = [pa.array(numbers.astype(np.int32)), told.field("start"), told.field("stop")]
    struct = pa.StructArray.from_arrays(columns, ["object", "start", "stop"])
    again = pa.ListArray.from_arrays(parts.offsets, struct)
    at = added.schema.get_field_index("parts")
    return [added.set_column(at, PARTS.field("parts"), again), objects.take(pa.array(used))]


def match(table: pa.Table, records: SampleList) -> Numbers:
    """The number of each sample that the records have, by tag and key and version; else -1."""
    listed = records.listed()
    found = join(table["tag"].to_numpy(), records.values("tag", listed))
    found[found >= 0] = listed[found[found >= 0]]
    places = np.flatnonzero(found >= 0)
    for name in ("key", "version"):
        ours = (
            table[name].combine_chunks() if len(places) == len(found) else table[name].take(pa.array(places))
        )
        same = pc.equal(ours, records.column(name, found[places])).to_numpy(zero_copy_only=False)
        found[places[~same]] = -1
        places = places[same]
    return found


def _replaced(
    table: pa.Table, is_new: npt.NDArray[np.bool_], numbers: Numbers, newest: Manifest | None
) -> npt.NDArray[np.int64]:
    """Numbers before and now, two rows, of keys that the newest manifest has in another version."""
    if not isinstance(newest, ListedManifest) or not is_new.any():
        return np.zeros((2, 0), dtype=np.int64)
    places = join(table["key_hash"].to_numpy()[is_new], newest.key_hashes)
    return np.stack([newest.numbers[places[places >= 0]], numbers[is_new][places >= 0]])


def join(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> Numbers:
    """For each of ours, which are all different, its place among the others; -1: it is not there.

    Two scans of one source are mostly alike: what they begin and end with needs no search. For the rest,
    both are sorted: a million look-ups all over a sorted array take seconds, in rising order a moment.
    """
    shortest = min(len(ours), len(others))
    head = _alike(ours[:shortest], others[:shortest])
    tail = _alike(ours[len(ours) - shortest + head :][::-1], others[len(others) - shortest + head :][::-1])
    found = np.full(len(ours), -1, dtype=np.int64)
    found[:head] = np.arange(head)
    found[len(ours) - tail :] = np.arange(len(others) - tail, len(others))
    ours, others = ours[head : len(ours) - tail], others[head : len(others) - tail]
    if len(ours) and len(others):
        order, other_order = np.argsort(ours), np.argsort(others)
        ours, others = ours[order], others[other_order]
        places = np.searchsorted(others, ours).clip(max=len(others) - 1)
        found[head + order] = np.where(others[places] == ours, head + other_order[places], -1)
    return found


def _alike(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many of the first are the same in both, which are equally long."""
    differ = ours != others
    return int(np.argmax(differ)) if differ.any() else len(differ)
