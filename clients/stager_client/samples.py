"""A staged data set without a framework: subset, labels, and samples by position."""

import copy
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager import errors
from stager.errors import CacheError, NoService, ShardCorrupt, StagerError, UsageError, WaitTimeout, many
from stager.reader.cuts.cut import Cut, Draws
from stager.reader.record import (
    DatasetRecord,
    datasets_dir,
    is_source,
    kept_versions,
    manifest_path,
    name_for_url,
    source_url,
    version_named,
)
from stager.reader.samples.changes import Changes, VersionRows, compare_numbers, compare_rows
from stager.reader.samples.manifest import Counts, Manifest
from stager.reader.samples.runs import Runs, positions_of, without
from stager.reader.samples.subset import Subset, draw
from stager.reader.service import Service, find_socket
from stager.reader.settings import WANT_SAMPLES_MAX, WANT_WAIT_S, load_settings
from stager.reader.values import Arrays, Field, Numbers, canonical_json, digest_of
from stager_client.columns import Columns, Values, attribute_values, choose_columns
from stager_client.reading.finding import ANSWER_S, POLL_S, find_dataset, warn_of_other_recipe
from stager_client.reading.reader import Batches, Corrupt, Missing, Reader
from stager_client.reading.session import Session

Take = Callable[[int, Arrays], None]
Look = Callable[[list[int]], tuple[Missing, Corrupt]]
Positions = Sequence[int] | Numbers
Missed = dict[int, str]  # places of samples that had to be waited for, and why

CORRUPT_TRIES: Final = 3
COUNTED_AT_ONCE: Final = 1 << 20  # numbers of a computed list are made when they are asked for
CHECKS: Final = ("first", "always")  # when a sample is compared with its checksum: at which reads
NONE: Final = np.zeros(0, dtype=np.int64)
NOT_STOPPED: Final = threading.Event()


class StagedSamples:
    """The samples of a subset, in the manifest's order; labels count from 0 over the subset's classes."""

    def __init__(
        self,
        name: str,
        subset: Subset,
        service: str | None,
        timeout_s: float,
        skip_failed: bool,
        check: str = "first",
        version: str | None = None,
    ) -> None:
        """`version`: an older one that is kept, by the beginning of its digest; None: the newest."""
        if check not in CHECKS:
            raise UsageError(f"check is {check!r}", hint="use one of " + ", ".join(CHECKS))
        self._checks_always, self._skips_failed = check == "always", skip_failed
        settings = load_settings()
        given, name = name, name_for_url(source_url(name)) if is_source(name) else name
        self.name, self.subset, self.timeout_s = name, subset, timeout_s
        self._service = Service(find_socket(service, settings.socket))
        local = datasets_dir(settings.cache_dir) / name
        self._directory = find_dataset(self._service, given, local, timeout_s)
        self._reader: Reader | None = None
        self._whole_of: StagedSamples | None = None
        manifest = self._open(version)
        warn_of_other_recipe(name, settings, self._record.spec.recipe)
        self._draw(manifest, is_named=version is not None)

    def _draw(self, manifest: Manifest, is_named: bool) -> None:
        """Take what the subset is of a version, and tell the service that we read it.

        `is_named`: somebody wants this very version, which nobody else may be reading.
        """
        drawn = draw(manifest, self.subset)
        failed = self.reader.index.failed() if self._skips_failed else NONE
        self._skipped = positions_of(failed, drawn.numbers)
        self.is_whole = not len(self._skipped)  # the service draws the same ones
        self.numbers = without(drawn.numbers, self._skipped)  # for life: whatever is scanned, these are ours
        self.classes = list(drawn.classes)
        self.class_to_idx = {known: label for label, known in enumerate(self.classes)}
        label_of = np.zeros(len(manifest.classes), dtype=np.int64)
        number_of = {known: number for number, known in enumerate(manifest.classes)}
        label_of[[number_of[known] for known in self.classes]] = np.arange(len(self.classes))
        labels = manifest.labels_at(without(drawn.places, self._skipped))
        self.labels = np.asarray(label_of[labels] if len(label_of) > 1 else labels, dtype=np.int64)
        self._attributes = manifest.attributes
        self._values: dict[str, Values] = {}  # of attributes that were asked for
        self._drawn = drawn.numbers if len(self._skipped) else self.numbers
        self.digest = self._digest()
        self.session = Session(
            self._service, self.name, max(len(self.numbers), 1), self.version, self._record.manifest
        )
        if is_named and self.session.refused is not None:
            raise self.session.refused
        weakref.finalize(self, self.session.end).atexit = False

    def at(self, version: str | None = None) -> "StagedSamples":
        """The same subset by the same recipe of another version: the newest, or one by its digest.

        That is this one itself, if it is of that version. What it reads stays as it is, in any case.
        """
        record = self._record_of(version, self._record)
        if (record.manifest, record.lineage) == (self._record.manifest, self._record.lineage):
            return self
        other = copy.copy(self)
        other._draw(other._open(version, self._record), is_named=version is not None)
        return other

    def changes_since(self, before: "StagedSamples") -> Changes:
        """What these have that those before have not, and the other way round."""
        if before is self:
            return Changes(len(self), len(self))
        if isinstance(self.numbers, Runs) or isinstance(before.numbers, Runs):
            is_alike = self._record.lineage == before._record.lineage
            return compare_numbers(before.numbers if is_alike else NONE, self.numbers, self.reader.records)
        return compare_rows(before._rows(), self._rows())

    def keeps(self, version: str) -> bool:
        """Whether a version is kept, by its digest."""
        return version in kept_versions(self._directory, DatasetRecord.read(self._directory))

    def _rows(self) -> VersionRows:
        records, numbers = self.reader.records, np.asarray(self.numbers[:])
        tags, hashes = records.values("tag", numbers), records.values("key_hash", numbers)
        none = np.zeros(len(numbers), dtype=np.int8)
        return VersionRows(self.key, tags, hashes, self.labels, tuple(self.classes), none, ("",))

    def __len__(self) -> int:
        return len(self.numbers)

    def __str__(self) -> str:
        """For people: what is read, and how much of it is here."""
        fields = ", ".join(str(field) for field in self.reader.record.fields)
        parts = (self.numbers[at : at + COUNTED_AT_ONCE] for at in range(0, len(self), COUNTED_AT_ONCE))
        resident = sum(self.reader.count_resident(part) for part in parts)
        return (
            f"{self.name!r}, {many(len(self), 'sample')} of {many(len(self.classes), 'class')},"
            f" {fields}, {resident:,} resident"
        )

    @property
    def reader(self) -> Reader:
        if self._reader is None:  # unpickled: opened again where it is used
            self._reader = Reader(self._directory, self._record, self._checks_always)
        return self._reader

    def _open(self, version: str | None, ours: DatasetRecord | None = None) -> Manifest:
        """Open a version. It may be replaced while we do: then there is a newer one."""
        for is_last in (False, True):
            self._record = self._record_of(version, ours)
            try:
                self._reader = Reader(self._directory, self._record, self._checks_always)
                return self._manifest()
            except CacheError:
                if is_last or self._record_of(version, ours) == self._record:
                    raise
        raise AssertionError("the last try returns or raises")

    def _record_of(self, version: str | None, ours: DatasetRecord | None) -> DatasetRecord:
        """What to know of a version. `ours`: what we have open, whose recipe we stay with."""
        record = DatasetRecord.read(self._directory)
        if version is not None:
            kept = kept_versions(self._directory, record)
            record = replace(record, manifest=version_named(self.name, version, kept))
        if ours is not None:
            record = replace(record, spec=ours.spec, recipe=ours.recipe, fields=ours.fields)
        return record

    def _manifest(self) -> Manifest:
        """Not kept: it is mapped for a moment, and what is needed of it is taken."""
        path = manifest_path(self._directory, self._record.manifest, self._record.lineage)
        return Manifest.open(path, self.reader.records)

    def with_failed(self) -> tuple["StagedSamples", Numbers]:
        """All samples of the subset, and the positions of those that are known not to be had."""
        if self.is_whole:
            return self, NONE
        whole = copy.copy(self)
        whole._whole_of = self  # whose session it has
        whole.is_whole, whole.numbers, whole._skipped = True, self._drawn, NONE
        whole.labels = np.zeros(len(whole.numbers), np.int64)
        whole.digest = whole._digest()
        return whole, self._skipped

    def foreground(self, field: str) -> Counts | None:
        """How much each sample has, as it was counted when the data set was scanned; None: it was not."""
        return self._manifest().foreground(field)

    def field(self, name: str) -> Field:
        """A field as it is staged."""
        return next(field for field in self._record.fields if field.name == name)

    def choose(self, columns: Sequence[str] | None) -> Columns:
        """The fields and attributes of these names; None: the only field, or all there are."""
        return choose_columns(self.name, self._record.fields, self._attributes, columns)

    def attribute(self, name: str) -> Values:
        """The values of an attribute, by position. Raise UsageError if some have none, and need one."""
        if name not in self._values:
            manifest = self._manifest()
            found = manifest.attribute(name, manifest.places_of(self.numbers[:]))
            (about,) = (attribute for attribute in self._attributes if attribute.name == name)
            self._values[name] = attribute_values(self.name, about, found)
        return self._values[name]

    def _digest(self) -> str:
        """Of which samples these are, in which order, by which recipe: the same on every machine."""
        about = [self._record.manifest, self._record.recipe, self.subset.to_json(), len(self.numbers)]
        told = canonical_json(about).encode()
        if self.is_whole:  # the manifest and the subset say which ones
            return digest_of(told)
        if isinstance(self.numbers, Runs):  # which ones are not told by all, of which there may be millions
            return digest_of(told, self._skipped.tobytes())
        return digest_of(told, self.reader.records.values("tag", self.numbers).tobytes())

    @property
    def manifest_digest(self) -> str:
        return self._record.manifest

    @property
    def version(self) -> dict[str, str]:
        """What our sample numbers are of, as the service is told."""
        return {"recipe": self._record.recipe, "lineage": self._record.lineage}

    def key(self, position: int) -> str:
        """The source's key of a sample."""
        return self.reader.records.key(int(self.numbers[position]))

    def key_hashes(self, positions: Numbers) -> npt.NDArray[np.uint64]:
        """A number for the key of each of these samples, the same on every machine."""
        return self.reader.records.values("key_hash", self.numbers[positions])

    def read(self, positions: Sequence[int], names: Collection[str] | None = None) -> list[Arrays]:
        """The samples at these positions, in arrays of their own. `names`: of the fields; None: all."""
        found: dict[int, Arrays] = {}

        def take(at: int, arrays: Arrays) -> None:
            found[at] = arrays

        self._count(positions, lambda: self.visit(positions, take, NOT_STOPPED, names))
        return [found.get(at, {}) for at in range(len(positions))]

    def read_into(self, positions: Sequence[int], out: Batches) -> None:
        """Read the samples at these positions into buffers, row by row: fields of one size only."""
        self._count(positions, lambda: self.fill(positions, out, NOT_STOPPED))

    def read_cut(self, cut: Cut, draws: Draws, out: Batches) -> None:
        """Copy what a cut takes to the arrays, which have a row for each draw."""
        self._count(draws.positions, lambda: self.cut(cut, draws, out, NOT_STOPPED))

    def _count(self, positions: Positions, read: Callable[[], Missed]) -> None:
        began = time.monotonic()
        reasons = dict(Counter(read().values()))
        waited_s = time.monotonic() - began if reasons else 0.0
        self.session.count(len(positions), reasons, waited_s, self.numbers[np.asarray(positions, np.int64)])

    def fill(self, positions: Positions, out: Batches, stopped: threading.Event) -> Missed:
        """Read the samples at these positions into buffers, row by row; say why any had to be waited for.

        For threads that work ahead: the caller counts. `stopped`: nobody waits any more.
        """
        numbers = self.numbers[np.asarray(positions, dtype=np.int64)]

        def look(places: list[int]) -> tuple[Missing, Corrupt]:
            rows = np.asarray(places, dtype=np.int64)
            return _placed(places, self.reader.fill(numbers[rows], out, rows))

        return self._wait(numbers, self.reader.fill(numbers, out), look, stopped)

    def visit(
        self,
        positions: Positions,
        take: Take,
        stopped: threading.Event,
        names: Collection[str] | None = None,
    ) -> Missed:
        """Give each sample to `take`. What is not resident is asked for, once for all, and waited for.

        `names`: of the fields that are wanted; None: all. For none of them, nothing is read.
        """
        if names is not None and not names:
            return {}
        samples = self.numbers[np.asarray(positions, dtype=np.int64)]
        numbers = samples.tolist()

        def look(places: list[int]) -> tuple[Missing, Corrupt]:
            wanted = [numbers[at] for at in places]
            found = self.reader.visit(wanted, lambda at, arrays: take(places[at], arrays), names)
            return _placed(places, found)

        return self._wait(samples, self.reader.visit(numbers, take, names), look, stopped)

    def cut(self, cut: Cut, draws: Draws, out: Batches, stopped: threading.Event) -> Missed:
        """Copy what a cut takes to the arrays, which have a row for each draw; say which draws had to wait.

        A draw that waited for several samples has the reason of one.
        """
        rows = cut.rows(draws)
        numbers, draw_of = self.numbers[rows.positions], rows.draw_of()

        def look(places: list[int]) -> tuple[Missing, Corrupt]:
            again = np.unique(draw_of[places])  # whole draws: also what they have beside these rows
            of, some = rows.some(again)
            found = self.reader.cut(numbers[of], cut, draws.some(again), some, out)
            return _placed(of.tolist(), found)

        missed = self._wait(numbers, self.reader.cut(numbers, cut, draws, rows, out), look, stopped)
        return {int(draw_of[at]): reason for at, reason in missed.items()}

    def _wait(
        self, samples: Numbers, found: tuple[Missing, Corrupt], look: Look, stopped: threading.Event
    ) -> Missed:
        """Ask the service for what was not found of these samples, until all are there.

        `look` reads the samples at some places of these, and says at which they are not to be had. A
        service that is away has until the deadline to come back.
        """
        missing, corrupt = found
        if not missing and not corrupt:
            return {}
        numbers = samples.tolist()
        deadline = time.monotonic() + self.timeout_s
        places = missing + corrupt
        reason_of: dict[int, str] = {}
        tries: Counter[int] = Counter(corrupt)
        away: NoService | None = None
        while (missing or corrupt) and not stopped.is_set():
            wanted = [numbers[at] for at in missing + corrupt][:WANT_SAMPLES_MAX]
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._timeout(wanted, away)
            if self.reader.index.is_retired:
                raise CacheError(
                    f"the version of {self.name} that was opened is not kept any more",
                    hint="open the data set again",
                )
            place = self.session.told_place(left_s / 2)
            left_s = deadline - time.monotonic()
            body = {
                **self.version,
                "samples": wanted,
                "corrupt": [numbers[at] for at in corrupt][:WANT_SAMPLES_MAX],
                "wait_s": min(WANT_WAIT_S, left_s),
                **place,
            }
            try:
                answer = self._service.post(f"/datasets/{self.name}/want", body, left_s + ANSWER_S, stopped)
                reason_of = {int(number): reason for number, reason in answer["reasons"].items()} | reason_of
                away = None
                for failed in answer["failed"]:
                    what = self.reader.what(failed["sample"])
                    message = f"{what} of {self.name}: {failed['detail']}"
                    told = {"error": "SampleError", "reason": failed["reason"], "message": message}
                    raise errors.from_json(told)  # the service may be of another version
            except NoService as error:
                away = error
                reason_of |= dict.fromkeys(wanted, "service_down")
                stopped.wait(max(min(POLL_S, deadline - time.monotonic()), 0.0))
            missing, corrupt = look(missing + corrupt)
            tries.update(corrupt)
            if corrupt and away is None and tries[corrupt[0]] > CORRUPT_TRIES:
                key = self.reader.records.key(numbers[corrupt[0]])
                raise ShardCorrupt(
                    f"{key} of {self.name} was staged again {CORRUPT_TRIES} times and is still corrupt",
                    hint="check memory and disk",
                )
        # One that came between our look and our question was late, too.
        return {at: reason_of.get(numbers[at], "late") for at in places}

    def _timeout(self, numbers: list[int], away: NoService | None) -> StagerError:
        what = f"{len(numbers)} samples of {self.name} (first: {self.reader.records.key(numbers[0])})"
        if away is not None:
            return WaitTimeout(f"{what} are not staged, and {away.message}", hint=away.hint)
        return WaitTimeout(
            f"{what} were not staged within {self.timeout_s:.0f} s",
            hint="stager status shows what the service does; a larger timeout_s waits longer",
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


def _placed(places: list[int], found: tuple[Missing, Corrupt]) -> tuple[Missing, Corrupt]:
    """What was found of the samples at some places, as those places."""
    missing, corrupt = found
    return [places[at] for at in missing], [places[at] for at in corrupt]
