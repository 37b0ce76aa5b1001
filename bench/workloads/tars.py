"""Tars and Parquet files: WebDataset, Hugging Face datasets and stager on the same files."""

import io
import shutil
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from bench.environments import PEERS
from bench.report import Section
from bench.rounds import Entry
from bench.servers import Service
from bench.workloads.workload import Place, Workload

FILES: Final = 20
SAMPLES: Final = 4000
SAMPLES_QUICK: Final = 600
GROUP_ROWS: Final = 100  # as Hugging Face writes images
MADE: Final = 100  # different photos; the others are copies
DATASETS: Final = """
[datasets.tars]
source = "{folder}/tar"
layout = "tar"
[datasets.rows]
source = "{folder}/parquet"
layout = "parquet"
"""
# who, the peer whose environment it has, and stager's data set
READERS: Final = (
    ("stager, tars", "stager", "tars"),
    ("WebDataset, tars", "webdataset", ""),
    ("HF datasets, tars", "datasets", ""),
    ("stager, Parquet", "stager", "rows"),
    ("HF datasets, Parquet", "datasets", ""),
)

SECTION: Final = Section(
    "tars",
    "Tars and Parquet, as they are",
    "4,000 photos (500 x 375, JPEG) in 20 tars and in 20 Parquet files with row groups of 100, on local "
    "disk. The others decode, resize and crop to 224 with Pillow in two processes, as their documentation "
    "shows; stager reads with two threads, from an empty cache. `cold` is the first epoch, its opening and "
    "scan included, of stager and Parquet also a prefetch before it, as HF datasets makes Arrow files of it "
    "first; `warm` the second one, in the same process. `mixed`: how many different files a batch "
    "comes from, of what a draw from all samples would give; 1 is a global shuffle.",
    (("rate", "cold, samples/s"), ("rate_epoch_1", "warm, samples/s"), ("first_batch_s", "first batch, s"),
     ("mixed", "mixed")),
)  # fmt: skip


def measure(place: Place) -> None:
    folder = place.work / "packed"
    write_files(folder, photos(place.data), SAMPLES_QUICK if place.is_quick else SAMPLES)
    there = {"stager", *(environment.peer.name for environment in place.peers("webdataset", "datasets"))}
    place.alternate("tars", [_entry(place, folder, *reader) for reader in READERS if reader[1] in there])


def _entry(place: Place, folder: Path, who: str, peer: str, dataset: str) -> Entry:
    def run() -> dict[str, Any]:
        task = {"who": who, "folder": str(folder), "dataset": dataset, "epochs": 2}
        if peer != "stager":
            shutil.rmtree(place.work / "home", ignore_errors=True)  # what HF datasets keeps of a round before
            return place.child("tar_readers", task, place.environments[peer].python)
        root = place.work / f"tars-{dataset}-{place.round}"
        with place.service(root.name, DATASETS.format(folder=folder)) as service:
            prefetch_s = _prefetch(service, dataset) if dataset == "rows" else 0.0
            answer = place.child("tar_readers", task, **service.environ())
        shutil.rmtree(root)
        return answer if "problem" in answer else _with(answer, prefetch_s)

    return Entry(who, peer, run)


def _prefetch(service: Service, dataset: str) -> float:
    """Stage all; return the seconds."""
    began = time.perf_counter()
    told = service.prefetch(dataset)
    if told.get("problem"):
        raise RuntimeError(told["problem"])
    return time.perf_counter() - began


def _with(answer: dict[str, Any], before_s: float) -> dict[str, Any]:
    """An answer, with what came before counted in its cold epoch."""
    seconds = answer["seconds"] + before_s
    cold = {"seconds": seconds, "first_batch_s": answer["first_batch_s"] + before_s}
    return {**answer, **cold, "rate": answer["samples"] / seconds}


def photos(data: Path | None) -> list[bytes]:
    """Real ones if there are some, or photos that are made."""
    found = sorted((data / "imagenet-500").rglob("*.JPEG"))[:MADE] if data else []
    return [path.read_bytes() for path in found] or [_photo(seed) for seed in range(MADE)]


def _photo(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    pixels = np.asarray(rough.resize((500, 375), Image.Resampling.BICUBIC), np.int16)
    noisy = pixels + rng.normal(0, 12, pixels.shape).astype(np.int16)
    file = io.BytesIO()
    Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def write_files(folder: Path, bodies: Sequence[bytes], samples: int) -> None:
    """The same samples as tars and as Parquet; the label of each is the number of its file."""
    for ending in ("tar", "parquet"):
        (folder / ending).mkdir(parents=True)
    each = samples // FILES
    for number in range(FILES):
        mine = [bodies[at % len(bodies)] for at in range(number * each, (number + 1) * each)]
        with tarfile.open(folder / f"tar/{number:03}.tar", "w") as tar:
            for at, body in enumerate(mine):
                for ending, data in (("jpg", body), ("cls", str(number).encode())):
                    info = tarfile.TarInfo(f"{number * each + at:06}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        rows = [{"bytes": body, "path": f"{at}.jpg"} for at, body in enumerate(mine)]
        table = pa.table({"image": pa.array(rows, kind), "label": [number] * each})
        pq.write_table(table, folder / f"parquet/{number:03}.parquet", row_group_size=GROUP_ROWS)


TARS: Final = Workload(SECTION, measure, (PEERS["webdataset"], PEERS["datasets"]))
