"""Where the time goes on each hot path, step by step: python -m bench.profile [--data DIR]

CPU time of one thread, so that a busy machine does not spoil it; for GETs, of the whole process. The table of
docs/PERFORMANCE.md comes from here.
"""

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from awscrt.checksums import crc64nvme

from bench.data import Data, lay_out
from bench.environments import BENCH
from bench.peers.common import BATCH, SIDE
from bench.process import end_all
from bench.rounds import fresh_work
from bench.servers import DELAY_MS, environ, images, running_service, slow_s3

SAMPLES: Final = 512
GETS: Final = 8000
Steps = list[tuple[str, float]]  # what, CPU microseconds a sample


def main() -> None:
    parser = argparse.ArgumentParser("bench.profile", description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder of JPEGs; without it, images are made")
    options = parser.parse_args()
    fresh_work()
    os.environ.update(environ())
    data = lay_out(BENCH / "profile-data", options.data, SAMPLES)
    try:
        show("Fetch: one GET", fetch(data))
        show("Prepare and write: one image", prepare_and_write(data))
        for name, (recipe, measure) in READS.items():
            root = BENCH / "work" / "profile"
            with (
                slow_s3(data.objects()) as s3,
                running_service(root, images(s3.endpoint_url, recipe)) as service,
            ):
                service.prefetch()
                os.environ["STAGER_CONFIG"] = str(root / "stager.toml")
                show(name, measure())
    finally:
        end_all()


def show(title: str, steps: Steps) -> None:
    """What is in brackets is for comparison, and no part of the whole."""
    total = sum(cost for name, cost in steps if not name.startswith("("))
    print(f"\n{title}: {total:,.0f} us of CPU")
    for name, cost in steps:
        print(f"  {name:52} {cost:8.1f} us {cost / total:5.0%}")


def cost(work: Callable[[Any], object], items: Sequence[Any]) -> float:
    """CPU microseconds of this thread for each item: the better of two passes, after one that warms up."""
    passes = []
    for _ in range(3):
        began = time.thread_time()
        for item in items:
            work(item)
        passes.append((time.thread_time() - began) / len(items) * 1e6)
    return min(passes[1:])


def cost_once(work: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """CPU microseconds of this thread for each single item."""
    costs = []
    for item in items:
        began = time.thread_time()
        work(item)
        costs.append((time.thread_time() - began) * 1e6)
    return costs


# The paths


def fetch(data: Data) -> Steps:
    """64 GETs under way all the time, from servers with and without a checksum of ours to compare."""
    from bench.peers.stager import fetch as fetch_all

    raws = [item.file.read_bytes() for item in data.items]
    crc = cost(crc64nvme, raws)
    md5 = cost(lambda raw: hashlib.md5(raw, usedforsecurity=False).hexdigest(), raws)
    with slow_s3(data.objects(), DELAY_MS) as s3:
        told = fetch_all({"endpoint_url": s3.endpoint_url, "gets": GETS, "in_flight": 64})
    whole, system = (1000 * told[name] for name in ("cpu_s_per_1000", "system_s_per_1000"))
    return [
        ("the kernel: socket, copy to user space", system),
        ("libcurl, signature, Python around it", whole - system - crc),
        ("CRC64NVME of the bytes", crc),
        ("(where the server has no checksum: MD5 instead)", md5),
    ]


def prepare_and_write(data: Data) -> Steps:
    from stager.reader.values import Prepared, ShardHeader, checksum_of
    from stager.recipes import open_recipe
    from stager.recipes.image.pixels.decode import decode_image
    from stager.shards import FORMATS

    recipe = open_recipe({"kind": "image"})
    raws = [memoryview(item.file.read_bytes()) for item in data.items]
    block = np.zeros((len(raws), SIDE, SIDE, 3), dtype=np.uint8)
    numbers = range(len(raws))

    by_libraries = cost(lambda raw: decode_image(raw, 50_000_000), raws)
    whole = cost(recipe.prepare, raws)
    for at, raw in enumerate(raws):
        block[at] = recipe.prepare([raw], ())["image"]
    check = cost(lambda at: checksum_of(1, recipe.digest, recipe.fields, {"image": block[at]}), numbers)
    rows = [Prepared(item.key, item.etag, {"image": block[at]}, 0) for at, item in enumerate(data.items)]
    header = ShardHeader("bench", "0" * 32, recipe.digest, recipe.fields)
    with tempfile.TemporaryDirectory(dir=BENCH / "work") as folder:
        paths = [Path(folder) / f"{number}.arrow" for number in range(3)]
        write = min(cost_once(lambda path: FORMATS["arrow"].write(path, header, rows), paths)) / len(rows)
        with (Path(folder) / "again").open("wb", buffering=0) as file:
            copy_out = min(cost_once(lambda _: (file.seek(0), file.write(block.data.cast("B"))), paths)[1:])
    return [
        ("decode, resize and crop", whole),
        ("checksum (xxh3)", check),
        ("write: the copy into the page cache", copy_out / len(rows)),
        ("write: new pages for it, and the rest", write - copy_out / len(rows)),
        ("(a whole decode by simplejpeg, nothing resized)", by_libraries),
    ]


def warm_read() -> Steps:
    from stager_client.batches.buffers import BufferPool
    from stager_client.torch import StagedDataset

    data = StagedDataset("bench")
    reader = data.samples.reader
    order = np.random.default_rng(0).permutation(len(data))
    batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)] * 8
    rows = BufferPool((BATCH, SIDE, SIDE, 3), np.uint8).take()
    source = np.ones((BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    fill = cost_once(lambda part: reader.fill(part, {"image": rows}), batches)
    first = sum(fill[: len(batches) // 8]) / len(order)
    whole = cost(lambda part: reader.fill(part, {"image": rows}), batches) / BATCH
    copy = cost(lambda _: np.copyto(rows, source), batches) / BATCH
    print(f"\n(the first touch of a sample takes {first - whole:.1f} us more: checksum, and opening shards;")
    print(f"a copy from memory to memory takes {copy:.1f} us)")
    return [("index, shard, row, its bytes into the batch", whole)]


def augmented_read() -> Steps:
    from stager_client.augment import HorizontalFlip, RandomResizedCrop
    from stager_client.augment.transforms import Chain
    from stager_client.samples import NOT_STOPPED
    from stager_client.torch import StagedDataset

    data = StagedDataset("bench")
    crop, flip = RandomResizedCrop(SIDE), HorizontalFlip(1.0)
    chain = Chain([crop, flip], (256, 256, 3))
    positions = np.arange(len(data))
    kept: dict[int, Any] = {}
    data.samples.visit(
        positions, lambda at, arrays: kept.__setitem__(at, arrays["image"].copy()), NOT_STOPPED
    )
    parts = [positions] * 3
    find = cost(lambda part: data.samples.visit(part, lambda at, arrays: None, NOT_STOPPED), parts) / len(
        data
    )
    hashes = np.arange(BATCH, dtype=np.uint64)
    draws = cost(lambda epoch: chain.uniforms(hashes, 0, epoch), range(20)) / BATCH
    uniforms = chain.uniforms(np.arange(len(data), dtype=np.uint64), 0, 0)
    out = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
    resize = cost(lambda at: crop.apply(kept[at], uniforms[at][: crop.draws], out), range(len(data)))
    mirror = cost(lambda at: flip.apply(out, [0.0], out), range(len(data)))
    return [
        ("index, shard, row; and decode, if JPEG", find),
        ("random numbers", draws),
        ("crop and resize (OpenCV, linear)", resize),
        ("flip of every second", mirror / 2),
    ]


READS: Final[dict[str, tuple[str, Callable[[], Steps]]]] = {
    "Warm read: one sample": ("", warm_read),
    "Augmented read from 256 px raw: one sample": ("resize = 256\ncrop = 256", augmented_read),
    "Augmented read from 256 px JPEG: one sample": (
        'resize = 256\ncrop = 256\nencode = "jpeg"',
        augmented_read,
    ),
}

if __name__ == "__main__":
    main()
