"""A staged data set without a framework: subset, labels, and samples by position."""

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager import errors
from stager.errors import (
    CacheError,
    NoService,
    ShardCorrupt,
    StagerError,
    UsageError,
    WaitTimeout,
)
from stager.reader.record import DatasetRecord, datasets_dir, manifest_path, say_recipe_change
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Runs, positions_of, without
from stager.reader.samples.subset import Subset, draw
from stager.reader.service import Service, find_socket
from stager.reader.settings import WANT_SAMPLES_MAX, WANT_WAIT_S, Settings, load_settings
from stager.reader.values import Arrays, Numbers, canonical_json, digest_of
from stager_client.columns import Columns, Values, attribute_values, choose_columns
from stager_client.reader import Batches, Corrupt, Missing, Reader, WindowsOf
from stager_client.session import Session

Take = Callable[[int, Arrays], None]
Look = Callable[[list[int]], tuple[Missing, Corrupt]]
Positions = Sequence[int] | Numbers
Reasons = dict[str, int]  # why samples had to be waited for, and how many

POLL_S: Final = 0.2
ANSWER_S: Final = 0.25  # that a service may take to say that the samples have not come in time
OPEN_WAIT_S: Final = 1.0  # for a service that hangs, where the data set can be opened without one
CORRUPT_TRIES: Final = 3
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
    ) -> None:
        if check not in CHECKS:
            raise UsageError(f"check is {check!r}", hint="use one of " + ", ".join(CHECKS))
        self._checks_always = check == "always"
        settings = load_settings()
        self.name, self.subset, self.timeout_s = name, subset, timeout_s
        self._service = Service(find_socket(service, settings.socket))
        self._directory = self._find(datasets_dir(settings.cache_dir) / name)
        self._reader: Reader | None = None
        manifest = self._open()
        self._compare(settings)
        drawn = draw(manifest, subset)
        failed = self.reader.index.failed() if skip_failed else NONE
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
        self.digest = self._digest()
        self.session = Session(
            self._service, name, max(len(self.numbers), 1), self.version, self._record.manifest
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def reader(self) -> Reader:
        if self._reader is None:  # unpickled: opened again where it is used
            self._reader = Reader(self._directory, self._record, self._checks_always)
        return self._reader

    def _open(self) -> Manifest:
        """Open the newest version. It may be replaced while we do: then there is a newer one."""
        for is_last in (False, True):
            self._record = DatasetRecord.read(self._directory)
            try:
                self._reader = Reader(self._directory, self._record, self._checks_always)
                return self._manifest()
            except CacheError:
                if is_last or DatasetRecord.read(self._directory) == self._record:
                    raise
        raise AssertionError("the last try returns or raises")

    def _manifest(self) -> Manifest:
        """Not kept: it is mapped for a moment, and what is needed of it is taken."""
        path = manifest_path(self._directory, self._record.manifest, self._record.lineage)
        return Manifest.open(path, self.reader.records)

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

    def _count(self, positions: Sequence[int], read: Callable[[], Reasons]) -> None:
        began = time.monotonic()
        reasons = read()
        waited_s = time.monotonic() - began if reasons else 0.0
        self.session.count(len(positions), reasons, waited_s, self.numbers[np.asarray(positions, np.int64)])

    def fill(self, positions: Positions, out: Batches, stopped: threading.Event) -> Reasons:
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
        part: WindowsOf | None = None,
    ) -> Reasons:
        """Give each sample to `take`. What is not resident is asked for, once for all, and waited for.

        `names`: of the fields that are wanted; None: all. For none of them, nothing is read. `part`: and
        which part of them, by a sample's place in `positions`.
        """
        if names is not None and not names:
            return {}
        samples = self.numbers[np.asarray(positions, dtype=np.int64)]
        numbers = samples.tolist()

        def look(places: list[int]) -> tuple[Missing, Corrupt]:
            wanted = [numbers[at] for at in places]
            placed = None if part is None else lambda at, shapes: part(places[at], shapes)
            found = self.reader.visit(wanted, lambda at, arrays: take(places[at], arrays), names, placed)
            return _placed(places, found)

        return self._wait(samples, self.reader.visit(numbers, take, names, part), look, stopped)

    def _wait(
        self, samples: Numbers, found: tuple[Missing, Corrupt], look: Look, stopped: threading.Event
    ) -> Reasons:
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
                    f"{self.name} is not kept any more as it was when it was opened",
                    hint="open the data set again",
                )
            where = self.session.where(left_s / 2)
            left_s = deadline - time.monotonic()
            body = {
                **self.version,
                "samples": wanted,
                "corrupt": [numbers[at] for at in corrupt][:WANT_SAMPLES_MAX],
                "wait_s": min(WANT_WAIT_S, left_s),
                **where,
            }
            try:
                answer = self._service.post(f"/datasets/{self.name}/want", body, left_s + ANSWER_S, stopped)
                reason_of = {int(number): reason for number, reason in answer["reasons"].items()} | reason_of
                away = None
                for failed in answer["failed"]:
                    key = self.reader.records.key(failed["sample"])
                    message = f"{key} of {self.name}: {failed['detail']}"
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
                    f"{key} of {self.name} reads wrong again and again", hint="check memory and disk"
                )
        # One that came between our look and our question was late, too.
        return dict(Counter(reason_of.get(numbers[at], "late") for at in places))

    def _timeout(self, numbers: list[int], away: NoService | None) -> StagerError:
        what = f"{len(numbers)} samples of {self.name} (first: {self.reader.records.key(numbers[0])})"
        if away is not None:
            return WaitTimeout(f"{what} are not staged, and {away.message}", hint=away.hint)
        return WaitTimeout(
            f"{what} were not staged within {self.timeout_s:.0f} s",
            hint="stager status shows what the service does; a larger timeout_s waits longer",
        )

    def _find(self, local: Path) -> Path:
        """Where the data set lies: as the service says; if none answers, where the config has its cache."""
        deadline = time.monotonic() + self.timeout_s
        is_here = (local / "dataset.json").exists()
        wait_s = min(self.timeout_s, OPEN_WAIT_S) if is_here else self.timeout_s
        try:
            return Path(self._service.get(f"/datasets/{self.name}", wait_s)["directory"])
        except NoService:
            if is_here:
                return local
            raise
        except UsageError:
            self._scan(deadline)
            return Path(self._service.get(f"/datasets/{self.name}", _left_s(deadline))["directory"])

    def _compare(self, settings: Settings) -> None:
        """Say if what is staged is not what the config asks for: nothing is staged anew in silence.

        Keys that the config does not name are those of the recipe that is staged: only the service knows
        what they are by default.
        """
        before = self._record.spec.recipe
        changed = say_recipe_change(before, _with_defaults(settings.recipes.get(self.name, {}), before))
        if changed:
            warnings.warn(
                f"{self.name} is staged with another recipe than {settings.path} has ({changed}):"
                f" you read what is staged; to stage it anew: stager prefetch {self.name}",
                stacklevel=4,
            )

    def _scan(self, deadline: float) -> None:
        """Have the service look at a data set of its config for the first time."""
        began = time.monotonic()
        job = self._service.post("/jobs", {"dataset": self.name, "stop_after": "scan"}, _left_s(deadline))
        while job["state"] not in ("done", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise WaitTimeout(
                    f"{self.name} was not scanned within {self.timeout_s:.0f} s",
                    hint="stager status shows how far it is; open it again later",
                )
            waited_s = time.monotonic() - began
            time.sleep(min(0.01 + waited_s / 10, POLL_S))  # a small source is scanned soon
            job = self._service.get(f"/jobs/{job['id']}", _left_s(deadline))
        if job["error"]:
            raise StagerError(job["error"]["message"], job["error"]["hint"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


def _with_defaults(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table, and for each of its tables of fields, with what is not given as it was before."""
    return {**before} | {
        key: _with_defaults(value, before.get(key, {})) if isinstance(value, Mapping) else value
        for key, value in given.items()
    }


def _left_s(deadline: float) -> float:
    """Until the deadline; a moment at least, so that an answer that is ready is taken."""
    return max(deadline - time.monotonic(), ANSWER_S)


def _placed(places: list[int], found: tuple[Missing, Corrupt]) -> tuple[Missing, Corrupt]:
    """What was found of the samples at some places, as those places."""
    missing, corrupt = found
    return [places[at] for at in missing], [places[at] for at in corrupt]
