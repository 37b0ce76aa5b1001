"""A staged data set without a framework: subset, labels, and samples by position."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.config import WANT_WAIT_S, load_config
from stager.control import Service, find_socket
from stager.dataset import DatasetRecord, datasets_dir
from stager.errors import NoService, ShardCorrupt, StagerError, UsageError, WaitTimeout
from stager.index import is_failed
from stager.model import Arrays
from stager.subset import Subset, draw
from stager_client.reader import Reader
from stager_client.session import Session

POLL_S: Final = 0.2
CORRUPT_TRIES: Final = 3


class StagedSamples:
    """The samples of a subset, in the manifest's order; labels count from 0 over the subset's classes."""

    def __init__(
        self, name: str, subset: Subset, service: str | None, timeout_s: float, skip_failed: bool
    ) -> None:
        config = load_config()
        self.name, self.timeout_s = name, timeout_s
        self._service = Service(find_socket(service, config.socket))
        self._directory = self._find(datasets_dir(config.cache_dir) / name)
        self._record = DatasetRecord.read(self._directory)
        self._reader: Reader | None = Reader(self._directory, self._record)
        drawn = draw(self.reader.manifest, subset)
        numbers = drawn.numbers
        if skip_failed:
            numbers = numbers[~is_failed(self.reader.index.words[numbers])]
        self.numbers = numbers
        self.classes = list(drawn.classes)
        self.class_to_idx = {known: label for label, known in enumerate(self.classes)}
        label_of = np.zeros(len(self.reader.manifest.classes), dtype=np.int64)
        label_of[[self.reader.manifest.classes.index(known) for known in self.classes]] = np.arange(
            len(self.classes)
        )
        self.labels: npt.NDArray[np.int64] = label_of[self.reader.manifest.labels[self.numbers]]
        self.session = Session(self._service, name, max(len(self.numbers), 1))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def reader(self) -> Reader:
        if self._reader is None:  # unpickled: mapped again where it is used
            self._reader = Reader(self._directory, self._record)
        return self._reader

    def key(self, position: int) -> str:
        """The source's key of a sample."""
        return self.reader.manifest.key(int(self.numbers[position]))

    def read(self, positions: Sequence[int]) -> list[Arrays]:
        """The samples at these positions. What is not resident is asked for, once for all, and waited for."""
        numbers = self.numbers[np.asarray(positions, dtype=np.int64)].tolist()
        found, missing, corrupt = self.reader.read(numbers)
        reasons: Counter[str] = Counter()
        waited_s = 0.0
        if missing or corrupt:
            began = time.monotonic()
            more, reasons = self._wait(missing, corrupt, began + self.timeout_s)
            found |= more
            waited_s = time.monotonic() - began
        self.session.count(len(numbers), dict(reasons), waited_s)
        return [found[number] for number in numbers]

    def _wait(
        self, missing: list[int], corrupt: list[int], deadline: float
    ) -> tuple[dict[int, Arrays], Counter[str]]:
        """Ask the service until all are there. A service that is away has until the deadline to come back."""
        found: dict[int, Arrays] = {}
        reason_of: dict[int, str] = {}
        bad_again: Counter[int] = Counter(corrupt)
        away: NoService | None = None
        while missing or corrupt:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._timeout(missing + corrupt, away)
            body = {
                "manifest": self._record.manifest,
                "samples": missing + corrupt,
                "corrupt": corrupt,
                "wait_s": min(WANT_WAIT_S, left_s),
            }
            try:
                answer = self._service.post(f"/datasets/{self.name}/want", body, timeout_s=left_s + 5)
                for number, reason in answer["reasons"].items():
                    reason_of.setdefault(int(number), reason)
                away = None
            except NoService as error:
                away = error
                reason_of |= dict.fromkeys(missing + corrupt, "service_down")
                time.sleep(min(POLL_S, left_s))
            more, missing, corrupt = self.reader.read(missing + corrupt)
            found |= more
            bad_again.update(corrupt)
            if corrupt and away is None and bad_again[corrupt[0]] > CORRUPT_TRIES:
                key = self.reader.manifest.key(corrupt[0])
                raise ShardCorrupt(
                    f"{key} of {self.name} reads wrong again and again", hint="check memory and disk"
                )
        # One that came in between looking and asking was late, too.
        return found, Counter(reason_of.get(number, "late") for number in {**found, **reason_of})

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

    def _scan(self) -> None:
        """Have the service look at a data set of its config for the first time."""
        job = self._service.post("/jobs", {"dataset": self.name, "stop_after": "scan"})
        deadline = time.monotonic() + self.timeout_s
        while job["state"] not in ("done", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise WaitTimeout(
                    f"{self.name} was not scanned within {self.timeout_s:.0f} s",
                    hint="stager status shows how far it is; open it again later",
                )
            time.sleep(POLL_S)
            job = self._service.get(f"/jobs/{job['id']}")
        if job["error"]:
            raise StagerError(job["error"]["message"], job["error"]["hint"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}
