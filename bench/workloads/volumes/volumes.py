"""Random patches of a volume of 1024^3: cold from a slow S3, warm, in workers, and with a small cache."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.environments import PEERS
from bench.report import Section
from bench.rounds import Answer, Entry
from bench.servers import BYTES_PER_S, DELAY_MS, Service, SlowS3, slow_s3
from bench.workloads.volumes import made
from bench.workloads.volumes.made import BRICK, BUCKET, CHUNK
from bench.workloads.workload import Place, Workload

NAME: Final = "volumes"
THREADS, WORKERS, RANKS = 2, 4, 4
TABLE: Final = """[datasets.scroll]
source = "s3://{bucket}"
endpoint_url = "{endpoint_url}"
layout = "volume"
volumes = {{ scan = "scan.zarr" }}
[datasets.scroll.recipe]
kind = "volume"
fields = {{ scan = "uint8" }}
brick = [{brick}, {brick}, {brick}]
"""
SMALL: Final = 0.25  # of the bricks
WAITS: Final = 8.0  # of the user's step of 18 s, 16 s are waiting and 2 s are compute
SECTION: Final = Section(
    NAME,
    "Volumes: patches of 72x136x136 at random of 1024^3 uint8, chunks of 128^3, blosc and zstd",
    "MB of patches a second, batches of one. Cold: from an S3 server with 30 ms a request and 200 MB/s, "
    "and an empty cache; the clock runs from the opening of the data set. `of the chunks`: what the "
    "source was asked for, of the distinct chunks that the epoch's 4,000 patches touch; for the LRU and "
    "zarr-python counted by going through as many patches. `chunks/s`: until the patch has come that "
    "touches the last of them; the limit is the lower of the link and of their decoding on all cores, "
    "with nothing kept. Warm: the others read local files, and TensorStore's whole cache is filled "
    "before. `a worker`: memory (PSS) that each of four DataLoader workers takes, beyond the framework "
    "for stager. A cache of a quarter of the bricks: hits, in per cent, of the requests for a chunk by "
    "a patch, of the second epoch and later. The user's loop: batch 1, one worker, a ninth of the step "
    "computes; `of the step's compute` is epoch 1.",
    (
        ("rate", "MB/s"),
        ("memory_mb", "memory, MB"),
        ("memory_worker_mb", "a worker, MB"),
        ("patches_epoch_0", "epoch 0, patches/s"),
        ("first_patch_s", "first patch, s"),
        ("chunks_s", "chunks/s"),
        ("of_chunks", "of the chunks"),
        ("hits", "hits, %"),
        ("steps_epoch_0", "epoch 0, steps/s"),
        ("over_compute", "of the step's compute"),
    ),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    side: int
    patches: int  # an epoch
    steps: int  # of the user's loop
    small: int  # patches an epoch with a small cache
    slow: int  # patches of who is far behind
    seconds_min: float

    @property
    def chunks(self) -> int:
        return (self.side // CHUNK) ** 3


FULL: Final = Scale(1024, 4000, 400, 300, 60, 2.0)
QUICK: Final = Scale(512, 400, 80, 60, 12, 0.5)


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volume, its server, and what is run on it."""

    place: Place
    scale: Scale
    folder: Path
    s3: SlowS3

    def task(self, **more: Any) -> dict[str, Any]:
        scale = self.scale
        return {
            "dataset": "scroll", "patches": scale.patches, "threads": THREADS, "workers": WORKERS,
            "side": scale.side, "raw": str(self.folder / "scan.npy"), "zarr": str(self.folder / "scan.zarr"),
            "seconds_min": scale.seconds_min, **more,
        }  # fmt: skip

    @contextmanager
    def service(self, name: str, capacity: str = "100GB") -> Iterator[Service]:
        """A service on an empty cache, which is removed behind it."""
        table = TABLE.format(bucket=BUCKET, endpoint_url=self.s3.endpoint_url, brick=BRICK)
        with self.place.service(name, table, capacity) as service:
            yield service
        shutil.rmtree(service.root, ignore_errors=True)

    def staged(self, service: Service, verb: str, **more: Any) -> Answer:
        return self.place.child("volumes.staged", self.task(verb=verb, **more), **service.environ())

    def others(self, verb: str, way: str, **more: Any) -> Answer:
        python = self.place.environments["tensorstore"].python
        return self.place.child("volumes.others", self.task(verb=verb, way=way, **more), python)

    def cold(self, ranks: int) -> Answer:
        """An epoch from nothing, by so many processes, and what the source was asked for."""
        with self.service(f"cold-{ranks}") as service, ThreadPoolExecutor(ranks) as pool:
            self.s3.reset()
            runs = [
                pool.submit(self.staged, service, "cold", rank=rank, ranks=ranks) for rank in range(ranks)
            ]
            answers = [run.result() for run in runs]
            asked = self.s3.stats()["bytes"]
        if problem := next((answer["problem"] for answer in answers if answer.get("problem")), ""):
            return {"problem": problem}
        corners = np.concatenate([np.asarray(answer.pop("corners")) for answer in answers])
        found = {
            "first_patch_s": max(answer["first_patch_s"] for answer in answers),
            "patches_epoch_0": len(corners) / max(answer["seconds"] for answer in answers),
            "of_chunks": asked / self.bytes_of(corners),
        }
        return found | ({"chunks_s": answers[0]["chunks_s"]} if ranks == 1 else {})

    def bytes_of(self, corners: Any) -> int:
        """What the chunks have together that these patches touch."""
        touched = {chunk for corner in corners.tolist() for chunk in made.chunks_of(corner)}
        names = (".".join(map(str, chunk)) for chunk in touched)
        return sum((self.folder / "scan.zarr" / name).stat().st_size for name in names)

    def limit(self) -> Answer:
        """The lower of the link and of the decoding."""
        files = made.chunk_files(self.folder)
        answer = self.others("decode", "", files=[str(file) for file in files])
        if answer.get("problem"):
            return answer
        link = BYTES_PER_S / (sum(file.stat().st_size for file in files) / len(files))
        return {
            "chunks_s": min(link, answer["chunks_s"]),
            "check": f"link {link:.0f}, decoding {answer['chunks_s']:.0f}",
        }

    def small(self) -> Answer:
        """Epochs with a cache of a quarter of the bricks; the optimum and an LRU of the very same reads."""
        scale, count = self.scale, 3
        bricks = int(scale.chunks * SMALL) * CHUNK**3
        with self.service("small", f"{(bricks + (bricks >> 4)) // 10**6}MB") as service:
            told = self.staged(
                service, "epochs", patches=scale.small, epochs=count, endpoint_url=self.s3.endpoint_url
            )
        if told.get("problem"):
            return told
        requests = made.requests_of(np.asarray(told["corners"]))
        first = len(made.requests_of(np.asarray(told["corners"][: scale.small])))
        room, later = int(scale.chunks * SMALL), len(requests) - first

        def hits(misses: int) -> float:
            return 100 * (1 - misses / later)

        ours = hits(told["asked"][-1] - told["asked"][1])
        best, lru = (
            hits(of(requests, room) - of(requests[:first], room))
            for of in (made.least_misses, made.lru_misses)
        )
        return {"hits": ours, "behind_best": best - ours, "check": f"optimum {best:.1f} %, LRU {lru:.1f} %"}

    def many_reads(self, room: int) -> float:
        """Of an LRU of so many chunks a worker, or of zarr-python, which keeps none: of those touched."""
        corners = made.some_corners(self.scale.patches, self.scale.side)
        shares = [corners[worker::WORKERS] for worker in range(WORKERS)]
        reads = sum(made.lru_misses(made.requests_of(share), room) for share in shares)
        return reads / made.distinct_chunks(corners)

    def first_epoch(self, way: str) -> Answer:
        room = self.scale.chunks // 10 if way == "lru" else 0
        source = {"endpoint_url": self.s3.endpoint_url, "cache_bytes": room * CHUNK**3}
        answer = self.others("first_epoch", way, patches=self.scale.slow, **source)
        answer.pop("step_s", None)
        return answer if answer.get("problem") else {**answer, "of_chunks": self.many_reads(room)}


def measure(place: Place) -> None:
    scale = QUICK if place.is_quick else FULL
    folder = place.work / "volume"
    folder.mkdir()
    made.make(folder, scale.side)
    with slow_s3(made.s3_objects(folder), DELAY_MS, BYTES_PER_S) as s3:
        volumes = Volumes(place, scale, folder, s3)
        has_peer = "tensorstore" in place.environments
        _measure_cold(volumes, has_peer)
        with volumes.service("warm") as service:
            told = service.prefetch("scroll")
            if told.get("problem") or told.get("failed"):
                raise RuntimeError(f"staging failed: {told}")
            _measure_warm(volumes, service, has_peer)
    shutil.rmtree(folder)


def _measure_cold(volumes: Volumes, has_peer: bool) -> None:
    """What takes long and hardly varies is run once, stager's epochs and their limit as often as the rest."""
    entries = [
        Entry("stager, cold", "stager", lambda: volumes.cold(1)),
        Entry(f"stager, cold, {RANKS} ranks", "stager", lambda: volumes.cold(RANKS), rounds=1),
        Entry("stager, a quarter of the cache", "stager", volumes.small, rounds=1),
    ]
    if has_peer:
        step: dict[str, float] = {}

        def user() -> Answer:
            source = {"endpoint_url": volumes.s3.endpoint_url, "workers": 1}
            answer = volumes.others("first_epoch", "zarr-python", patches=volumes.scale.slow, **source)
            if answer.get("problem"):
                return answer
            step["compute_s"] = answer["step_s"] / WAITS
            return {"steps_epoch_0": 1 / (answer["step_s"] + step["compute_s"])}

        def ours() -> Answer:
            with volumes.service("steps") as service:
                return volumes.staged(service, "steps", patches=volumes.scale.steps, **step)

        entries += [
            Entry("the lower of link and decoding", "limit", volumes.limit),
            Entry("an LRU in each of 4 workers, cold", "tensorstore",
                  lambda: volumes.first_epoch("lru"), rounds=1),
            Entry("zarr-python in 4 workers, cold", "tensorstore",
                  lambda: volumes.first_epoch("zarr-python"), rounds=1),
            Entry("the user's loop", "user", user),
            Entry("the user's loop with stager", "stager", ours),
        ]  # fmt: skip
    volumes.place.alternate(NAME, entries, rounds=min(volumes.place.rounds, 2))


def _measure_warm(volumes: Volumes, service: Service, has_peer: bool) -> None:
    whole, tenth = 2 * volumes.scale.side**3, volumes.scale.side**3 // 10
    patches = volumes.scale.patches // 10
    entries = [
        Entry("stager, warm", "stager", lambda: volumes.staged(service, "warm", patches=2 * patches)),
        Entry("stager, 4 workers", "stager", lambda: volumes.staged(service, "workers", patches=2 * patches)),
    ]
    if has_peer:

        def by_workers(way: str, cache_bytes: int, patches: int) -> Answer:
            return volumes.others("workers", way, cache_bytes=cache_bytes, patches=patches)

        entries += [
            Entry("NumPy memmap", "limit", lambda: volumes.others("threads", "memmap")),
            Entry("TensorStore, a cache of the whole", "tensorstore",
                  lambda: volumes.others("threads", "tensorstore", cache_bytes=whole)),
            Entry("TensorStore, a cache of a tenth", "tensorstore",
                  lambda: volumes.others("threads", "tensorstore", cache_bytes=tenth), rounds=1),
            Entry("NumPy memmap, 4 workers", "limit", lambda: by_workers("memmap", 0, patches)),
            Entry("TensorStore, 4 workers, each the whole", "tensorstore",
                  lambda: by_workers("tensorstore", whole, patches), rounds=1),
            Entry("TensorStore, 4 workers, each a tenth", "tensorstore",
                  lambda: by_workers("tensorstore", tenth, volumes.scale.slow), rounds=1),
            Entry("zarr-python, 4 workers", "tensorstore",
                  lambda: by_workers("zarr-python", 0, volumes.scale.slow), rounds=1),
        ]  # fmt: skip
    volumes.place.alternate(NAME, entries, rounds=min(volumes.place.rounds, 2))


VOLUMES: Final = Workload(SECTION, measure, (PEERS["tensorstore"],))
