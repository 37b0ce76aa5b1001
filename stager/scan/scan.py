"""A scan becomes a manifest: labels, order, digest, and for each sample its number in the data set's records.

All of it happens in a worker: the loop that adopts a scan only renames files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stager.errors import CacheError
from stager.interfaces import ComputedLayout, Layout, Listing
from stager.reader.samples.changes import join
from stager.reader.samples.computed.rules import Rule
from stager.reader.samples.manifest import (
    COMPUTED_FORMAT,
    MANIFEST_FORMAT,
    PLACE,
    WHERE,
    ListedManifest,
    Manifest,
    attribute_column,
)
from stager.reader.samples.sample_list import NUMBERS_MAX, SampleList
from stager.reader.samples.sealed import write_sealed
from stager.reader.samples.segments import PARTS, RECORD, read_segment
from stager.reader.values import (
    Numbers,
    canonical_json,
    digest_of,
)
from stager.scan.foreground import foreground_of
from stager.scan.found import FoundSamples, find
from stager.scan.numbering import Numbered, number_rules, replaced


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
        """How the manifest was joined with what was known: what it was compared with, and what moved."""
        with np.load(self.joins) as found:
            compared = str(found["lineage"]), int(found["count"])
            of_version = str(found["newest"]), bool(found["is_part"])
            return Joins(*compared, found["replaced"], found["moved"], int(found["samples"]), *of_version)

    def open(self, records: SampleList) -> Manifest:
        """The manifest, while `records`, which it was compared with, do not have its samples yet."""
        records = SampleList("", (), ()) if len(self.read_joins().moved) else records
        for path in self.segments:
            records = records.plus(path.name, read_segment(path))
        return Manifest.open(self.path, records)

    def unlink(self) -> None:
        """Leave nothing of it; what is missing is no error."""
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
    replaced: npt.NDArray[np.int64]  # runs of keys that have another version: numbers before, now, how many
    moved: Numbers  # the number that each has now, or -1, if the list is made anew; else empty
    samples: int  # that the scan found
    newest: str  # the digest of the version that was the newest; "": there was none
    is_part: bool  # what the scan did not look at it has of that version


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
    is_whole: Callable[[], bool] = lambda: False,
) -> str:
    """Write a `Scan` of what a layout finds; return the manifest's digest.

    `is_whole`: whether the listing, now that it is over, is one of which a later scan may list folders alone.
    """
    if layout.is_computed:
        rules = layout.rules(listing)
        numbered = number_rules(rules, known.records)
        counted = foreground_of(layout, rules, numbered.numbers, listing, known.newest, progress)
        return write_computed(Scan(path), rules, numbered, known, *counted)
    found = find(layout, listing, progress)
    return write_scan(Scan(path), replace(found, is_whole=found.is_whole and is_whole()), known)


def write_computed(
    scan: Scan,
    rules: Sequence[Rule],
    numbered: Numbered,
    known: Known,
    counted: Sequence[pa.Table] = (),
    digests: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Write a `Scan` of what rules say.

    `counted`: a table of what was counted in fields, if any, and `digests` of its columns.
    """
    numbers, added = numbered
    _check_room(len(known.records) + sum(map(len, added)))
    for segment in added:
        scan.add_segment(*segment.tables())
    nothing_moved = np.zeros(0, dtype=np.int64)
    _write_joins(scan, known, replaced(rules, numbers, known.newest), nothing_moved, len(numbers))
    classes, splits, told = [""], [""], [rule.to_json() for rule in rules]
    of_what = [classes, splits, told, *([dict(digests)] if digests else [])]
    digest = digest_of(canonical_json(of_what).encode())
    about: dict[str, Any] = {
        "format": COMPUTED_FORMAT,
        "digest": digest,
        "classes": classes,
        "splits": splits,
        "runs": numbers.runs,
        **({"foreground": dict(digests)} if digests else {}),
    }
    empty = PLACE.empty_table().replace_schema_metadata({"stager": canonical_json(about)})
    write_sealed(scan.path, empty, *counted)
    return digest


def write_scan(scan: Scan, samples: FoundSamples, known: Known, is_part: bool = False) -> str:
    """Give samples their numbers, and write what that makes. `is_part`: see `Joins`."""
    table, digest = samples.table, samples.digest()
    found = match(table, known.records)
    is_new = np.ones(len(found), np.bool_) if known.relist else found < 0
    first = 0 if known.relist else len(known.records)
    numbers = np.where(is_new, first + np.cumsum(is_new) - 1, found)
    _check_room(first + int(is_new.sum()))
    moved = np.full(len(known.records) if known.relist else 0, -1, dtype=np.int64)
    if known.relist:
        moved[found[found >= 0]] = numbers[found >= 0]
    replaced = _replaced(table, found < 0, numbers, known.newest)
    _write_joins(scan, known, replaced, moved, len(table), is_part)
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
    if samples.is_whole:
        about["is_whole"] = True
    schema = PLACE
    for attribute, values in zip(samples.attributes, samples.values, strict=True):
        schema = schema.append(pa.field(attribute_column(attribute.name), values.type))
    columns = [pa.array(numbers, pa.uint32()), table["label"], table["split"], *samples.values]
    if samples.table_rows is not None:
        schema = schema.append(pa.field(WHERE, samples.table_rows.type))
        columns.append(samples.table_rows)
    write_sealed(scan.path, pa.table(columns, schema=schema.with_metadata({"stager": canonical_json(about)})))
    return digest


def _check_room(numbers: int) -> None:
    if numbers >= NUMBERS_MAX:
        raise CacheError("the data set has had too many samples", hint="evict it, and prefetch it again")


def _write_joins(
    scan: Scan,
    known: Known,
    replaced: npt.NDArray[np.int64],
    moved: Numbers,
    samples: int,
    is_part: bool = False,
) -> None:
    lineage, count = np.asarray(known.records.lineage), len(known.records)
    newest = "" if known.newest is None else known.newest.digest
    np.savez(
        scan.joins,
        lineage=lineage,
        count=count,
        replaced=replaced,
        moved=moved,
        samples=samples,
        newest=np.asarray(newest),
        is_part=is_part,
    )


def segment_of(samples: FoundSamples, is_new: npt.NDArray[np.bool_]) -> list[pa.Table]:
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
    """Runs, of one each, of keys that the newest manifest has in another version."""
    if not isinstance(newest, ListedManifest) or not is_new.any():
        return np.zeros((3, 0), dtype=np.int64)
    places = join(table["key_hash"].to_numpy()[is_new], newest.key_hashes)
    before, now = newest.numbers[places[places >= 0]], numbers[is_new][places >= 0]
    return np.stack([before, now, np.ones_like(now)])
