"""Readers of a simulated world: real ones, in this process. Each compares all it reads with its version."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from stager.owner.meter import Totals
from stager.owner.readers import Version
from stager.reader.index import shard_of
from stager.reader.record import DatasetRecord, manifest_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.subset import Subset
from stager.reader.values import Numbers
from stager.sessions.session import OrderRequest
from stager_client.reading.reader import Reader
from stager_client.reading.rows import ReadableShards
from world_parts import Shown, pixels, shown_by


class WrongBytes(AssertionError):
    """A reader was handed what is not the sample of its version."""


@dataclass(eq=False)
class SimulatedReader:
    """A process that has a data set open."""

    reader: Reader
    manifest: Manifest
    session: str
    pid: int
    expected: dict[int, Shown]  # by number
    totals: Totals = field(default_factory=Totals)
    sent: list[Totals] = field(default_factory=lambda: [Totals()])  # since it last had an answer
    reads: list[int] = field(default_factory=list)
    epoch: int = 0
    order: Numbers | None = None  # of a session that was begun
    position: int = 0
    is_leased: bool = False  # it said hello, and nobody has lost that since
    held: ReadableShards | None = None  # a table of shards, made before

    def __post_init__(self) -> None:
        directory, record = self.reader.directory, self.record
        manifest = manifest_path(directory, record.manifest, record.lineage)
        self._files = [str(path) for path in (manifest, *(directory / name for name in record.segments))]

    @classmethod
    def open(
        cls, directory: Path, session: str, pid: int, listed: Mapping[str, Mapping[str, Shown]]
    ) -> "SimulatedReader":
        """Open the newest version, as clients do. Raise StagerError if it cannot be opened."""
        record = DatasetRecord.read(directory)
        reader = Reader(directory, record)
        manifest = Manifest.open(manifest_path(directory, record.manifest, record.lineage), reader.records)
        infos = reader.records.infos(manifest.numbers)
        shown = listed[record.manifest]
        assert {info.key: shown_by(info) for info in infos} == shown, "the manifest is not what was listed"
        expected = {
            int(number): shown[info.key] for number, info in zip(manifest.numbers, infos, strict=True)
        }
        return cls(reader, manifest, session, pid, expected)

    @property
    def record(self) -> DatasetRecord:
        return self.reader.record

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def crop(self) -> int:
        return int(self.record.spec.recipe["crop"])

    @property
    def version(self) -> Version:
        return Version(self.name, self.record.recipe, self.record.lineage)

    def pick(self, rng: Random, count: int) -> Numbers:
        """The next of its order, or any."""
        if self.order is not None and self.position < len(self.order):
            return self.order[self.position : self.position + count]
        return np.asarray([rng.choice(self.manifest.numbers.tolist()) for _ in range(count)], dtype=np.int64)

    def buffer(self, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.zeros((count, self.crop, self.crop, 3), np.uint8)

    def fill(self, numbers: Numbers) -> tuple[list[int], list[int]]:
        """Read into a batch, as loaders do; return the places that were missing and that were corrupt."""
        out = self.buffer(len(numbers))
        missing, corrupt = self.reader.fill(numbers, {"image": out})
        absent = {*missing, *corrupt}
        for at, number in enumerate(numbers.tolist()):
            if at not in absent:
                self.compare(number, out[at])
        return missing, corrupt

    def visit(self, numbers: Numbers, between: Callable[[], None]) -> tuple[list[int], list[int]]:
        """Read one by one and slowly: after each sample, `between` happens. The words were loaded before."""
        taken: dict[int, Any] = {}

        def take(at: int, arrays: dict[str, Any]) -> None:
            taken[at] = arrays["image"]
            between()

        missing, corrupt = self.reader.visit(numbers.tolist(), take)
        for at, array in taken.items():
            if at not in {*missing, *corrupt}:
                self.compare(int(numbers[at]), array)
        return missing, corrupt

    def read_held(self, numbers: Numbers) -> int:
        """Read by a table of open shards that was made before; return how many were read."""
        assert self.held is not None
        out = self.buffer(len(numbers))
        words, _ = self.held.read(numbers, None, [out], only_checked=True)
        for at in np.flatnonzero(words != 0).tolist():
            self.compare(int(numbers[at]), out[at])
        return int(np.count_nonzero(words))

    def compare(self, number: int, array: Any) -> None:
        key, version = self.expected[number]
        if not np.array_equal(array, pixels(key, version, self.crop)):
            word = self.reader.index.words[number : number + 1]
            zeros = int(np.count_nonzero(np.asarray(array) == 0))
            raise WrongBytes(
                f"{key} {version} crop {self.crop} number {number} shard {int(shard_of(word)[0]):08x}:"
                f" {zeros} of {array.size} bytes are zero"
            )

    def count(self, numbers: Numbers, missed: int) -> None:
        """Note requests, hits and misses, as a session of a client does."""
        more = Totals(
            len(numbers), len(numbers) - missed, missed, 0.01 * missed, {"late": missed} if missed else {}
        )
        self.totals = self.totals.plus(more)
        self.reads += numbers.tolist()

    def reading(self, rng: Random) -> OrderRequest:
        """What it says of itself when it begins an epoch."""
        shuffle = rng.random() < 0.8
        about = (self.name, self.record.recipe, self.record.lineage, self.record.manifest)
        orders: tuple[Numbers, ...] = ()
        if rng.random() < 0.2:
            known = self.manifest.numbers.tolist()
            orders = tuple(np.asarray(rng.choices(known, k=len(known)), dtype=np.int64) for _ in range(2))
        return OrderRequest(
            self.session, *about, Subset(), shuffle, 7, self.epoch, 0, rng.choice((1, 1, 2)), False,
            len(self.manifest), 0, orders,
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        self.sent.append(self.totals)
        return {
            "dataset": self.name,
            "recipe": self.record.recipe,
            "lineage": self.record.lineage,
            "session": self.session,
            "process": "p",
            "length": len(self.manifest),
            "epoch": self.epoch,
            "position": None if self.order is None else self.position,
            "reads": np.asarray(self.reads, dtype=np.int64),
            "totals": asdict(self.totals),
        }

    def is_kept(self) -> bool:
        """Whether what it opened is still there to be opened, by a worker that starts later."""
        return not self.reader.index.is_retired and all(map(os.path.exists, self._files))
