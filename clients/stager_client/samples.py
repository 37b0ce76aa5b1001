"""A staged data set without a framework: subset, labels, and samples by position."""

import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.config import WANT_SAMPLES_MAX, WANT_WAIT_S, Config, load_config
from stager.control import Service, find_socket
from stager.dataset import DatasetRecord, datasets_dir, say_recipe_change
from stager.errors import NoService, ShardCorrupt, StagerError, UsageError, WaitTimeout
from stager.index import is_failed
from stager.model import Arrays, Field, Numbers, canonical_json, digest_of
from stager.subset import Subset, draw
from stager_client.reader import Batches, Corrupt, Missing, Reader
from stager_client.session import Session

Take = Callable[[int, Arrays], None]
Look = Callable[[list[int]], tuple[Missing, Corrupt]]
Positions = Sequence[int] | Numbers
Reasons = dict[str, int]  # why samples had to be waited for, and how many

POLL_S: Final = 0.2
CORRUPT_TRIES: Final = 3
NEVER: Final = threading.Event()


class StagedSamples:
    """The samples of a subset, in the manifest's order; labels count from 0 over the subset's classes."""

    def __init__(
        self, name: str, subset: Subset, service: str | None, timeout_s: float, skip_failed: bool
    ) -> None:
        config = load_config()
        self.name, self.subset, self.timeout_s = name, subset, timeout_s
        self._service = Service(find_socket(service, config.socket))
        self._directory = self._find(datasets_dir(config.cache_dir) / name)
        self._record = DatasetRecord.read(self._directory)
        self._reader: Reader | None = Reader(self._directory, self._record)
        self._compare(config)
        drawn = draw(self.reader.manifest, subset)
        numbers = drawn.numbers
        if skip_failed:
            numbers = numbers[~is_failed(self.reader.index.words[numbers])]
        self.numbers = numbers
        self.is_whole = len(numbers) == len(drawn.numbers)  # the service draws the same ones
        self.classes = list(drawn.classes)
        self.class_to_idx = {known: label for label, known in enumerate(self.classes)}
        label_of = np.zeros(len(self.reader.manifest.classes), dtype=np.int64)
        number_of = {known: number for number, known in enumerate(self.reader.manifest.classes)}
        label_of[[number_of[known] for known in self.classes]] = np.arange(len(self.classes))
        self.labels: npt.NDArray[np.int64] = label_of[self.reader.manifest.labels[self.numbers]]
        about = [self._record.manifest, self._record.recipe, subset.to_json(), len(self.numbers)]
        self.digest = digest_of(canonical_json(about).encode())
        self.session = Session(self._service, name, max(len(self.numbers), 1))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def reader(self) -> Reader:
        if self._reader is None:  # unpickled: opened again where it is used
            self._reader = Reader(self._directory, self._record)
        return self._reader

    @property
    def manifest_digest(self) -> str:
        return self._record.manifest

    def key(self, position: int) -> str:
        """The source's key of a sample."""
        return self.reader.manifest.key(int(self.numbers[position]))

    def read(self, positions: Sequence[int]) -> list[Arrays]:
        """The samples at these positions, in arrays of their own."""
        found: dict[int, Arrays] = {}
        began = time.monotonic()

        def take(at: int, arrays: Arrays) -> None:
            found[at] = arrays

        reasons = self.visit(positions, take, NEVER)
        waited_s = time.monotonic() - began if reasons else 0.0
        self.session.count(len(positions), reasons, waited_s, self.numbers[np.asarray(positions, np.int64)])
        return [found[at] for at in range(len(positions))]

    def fill(self, positions: Positions, out: Batches, stopped: threading.Event) -> Reasons:
        """Read the samples at these positions into buffers, row by row; say why any had to be waited for.

        For threads that work ahead: the caller counts. `stopped`: nobody waits any more.
        """
        numbers = self.numbers[np.asarray(positions, dtype=np.int64)]

        def look(places: list[int]) -> tuple[Missing, Corrupt]:
            rows = np.asarray(places, dtype=np.int64)
            return _placed(places, self.reader.fill(numbers[rows], out, rows))

        return self._wait(numbers, self.reader.fill(numbers, out), look, stopped)

    def fixed_fields(self) -> list[tuple[Field, tuple[int, ...]]]:
        """The fields and their shapes, which must be known for all samples alike."""
        for field in self._record.fields:
            if None in field.shape:
                raise UsageError(
                    f"the samples of {self.name} differ in size ({field.name}: {field.shape})",
                    hint="crop them in the recipe, or read them one by one with StagedDataset",
                )
        return [(field, tuple(side or 0 for side in field.shape)) for field in self._record.fields]

    def visit(self, positions: Positions, take: Take, stopped: threading.Event) -> Reasons:
        """Give each sample to `take`. What is not resident is asked for, once for all, and waited for."""
        samples = self.numbers[np.asarray(positions, dtype=np.int64)]
        numbers = samples.tolist()

        def look(places: list[int]) -> tuple[Missing, Corrupt]:
            wanted = [numbers[at] for at in places]
            return _placed(places, self.reader.visit(wanted, lambda at, arrays: take(places[at], arrays)))

        return self._wait(samples, self.reader.visit(numbers, take), look, stopped)

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
            body = {
                "manifest": self._record.manifest,
                "samples": wanted,
                "corrupt": [numbers[at] for at in corrupt][:WANT_SAMPLES_MAX],
                "wait_s": min(WANT_WAIT_S, left_s),
                **self.session.where(),
            }
            try:
                answer = self._service.post(f"/datasets/{self.name}/want", body, timeout_s=left_s + 5)
                reason_of = {int(number): reason for number, reason in answer["reasons"].items()} | reason_of
                away = None
            except NoService as error:
                away = error
                reason_of |= dict.fromkeys(wanted, "service_down")
                stopped.wait(min(POLL_S, left_s))
            missing, corrupt = look(missing + corrupt)
            tries.update(corrupt)
            if corrupt and away is None and tries[corrupt[0]] > CORRUPT_TRIES:
                key = self.reader.manifest.key(numbers[corrupt[0]])
                raise ShardCorrupt(
                    f"{key} of {self.name} reads wrong again and again", hint="check memory and disk"
                )
        # One that came between our look and our question was late, too.
        return dict(Counter(reason_of.get(numbers[at], "late") for at in places))

    def _timeout(self, numbers: list[int], away: NoService | None) -> StagerError:
        what = f"{len(numbers)} samples of {self.name} (first: {self.reader.manifest.key(numbers[0])})"
        if away is not None:
            return WaitTimeout(f"{what} are not staged, and {away.message}", hint=away.hint)
        return WaitTimeout(
            f"{what} were not staged within {self.timeout_s:.0f} s",
            hint="stager status shows what the service does; a larger timeout_s waits longer",
        )

    def _find(self, local: Path) -> Path:
        """Where the data set lies: as the service says; if none answers, where the config has its cache."""
        try:
            return Path(self._service.get(f"/datasets/{self.name}")["directory"])
        except NoService:
            if (local / "dataset.json").exists():
                return local
            raise
        except UsageError:
            self._scan()
            return Path(self._service.get(f"/datasets/{self.name}")["directory"])

    def _compare(self, config: Config) -> None:
        """Say if what is staged is not what the config asks for: nothing is staged anew in silence."""
        asked = config.datasets.get(self.name)
        changed = say_recipe_change(self._record.spec, asked) if asked else ""
        if changed:
            warnings.warn(
                f"{self.name} is staged with another recipe than {config.path} has ({changed}):"
                f" you read what is staged; to stage it anew: stager prefetch {self.name}",
                stacklevel=4,
            )

    def _scan(self) -> None:
        """Have the service look at a data set of its config for the first time."""
        job = self._service.post("/jobs", {"dataset": self.name, "stop_after": "scan"})
        began = time.monotonic()
        deadline = began + self.timeout_s
        while job["state"] not in ("done", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise WaitTimeout(
                    f"{self.name} was not scanned within {self.timeout_s:.0f} s",
                    hint="stager status shows how far it is; open it again later",
                )
            waited_s = time.monotonic() - began
            time.sleep(min(0.01 + waited_s / 10, POLL_S))  # a small source is scanned soon
            job = self._service.get(f"/jobs/{job['id']}")
        if job["error"]:
            raise StagerError(job["error"]["message"], job["error"]["hint"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


def _placed(places: list[int], found: tuple[Missing, Corrupt]) -> tuple[Missing, Corrupt]:
    """What was found of the samples at some places, as those places."""
    missing, corrupt = found
    return [places[at] for at in missing], [places[at] for at in corrupt]
