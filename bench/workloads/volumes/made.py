"""The volume that is measured on, and the patches that are taken of it: the same for all."""

import base64
import hashlib
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

PATCH: Final = (72, 136, 136)
PATCH_BYTES: Final = 72 * 136 * 136
CHUNK, BRICK = 128, 32
SEED: Final = 7
BUCKET: Final = "volumes"
_NOISE: Final = 3.0  # levels; with it, zstd makes a half of the bytes
_POOL: Final = 4 << 20
_PART: Final = 512  # voxels a side

Corners = Any  # a line a patch: where it begins


def make(folder: Path, side: int) -> None:
    """scan.zarr, Zarr v2 in chunks of 128^3 by blosc and zstd, and the same voxels in scan.npy.

    A part of it is made, and stands there several times: to compress all of it takes a minute.
    """
    import zarr
    from numcodecs import Blosc

    part = min(side, _PART)
    voxels = _voxels(part)
    about: Any = {
        "chunks": (CHUNK,) * 3, "dtype": "u1", "zarr_format": 2, "fill_value": 0,
        "compressors": Blosc(cname="zstd", clevel=3),
    }  # fmt: skip
    made = zarr.create_array(str(folder / "part.zarr"), shape=voxels.shape, **about)
    made[...] = voxels
    zarr.create_array(str(folder / "scan.zarr"), shape=(side,) * 3, **about)
    for at in np.ndindex((side // CHUNK,) * 3):
        name, part_name = (".".join(str(n % of) for n in at) for of in (side, part // CHUNK))
        shutil.copyfile(folder / "part.zarr" / part_name, folder / "scan.zarr" / name)
    shutil.rmtree(folder / "part.zarr")
    raw = np.lib.format.open_memmap(folder / "scan.npy", "w+", np.uint8, (side,) * 3)
    for at in np.ndindex((side // part,) * 3):
        raw[tuple(slice(number * part, (number + 1) * part) for number in at)] = voxels
    raw.flush()


def _voxels(side: int) -> Any:
    """Layers with sharp borders, as a scroll has, in noise."""
    rng = np.random.default_rng(1)
    places = np.arange(side)
    waves = [
        (40 * np.sin(np.add.outer(places / by, 3 * np.sin(places / of)))).astype(np.int16)
        for by, of in ((31.0, 97.0), (43.0, 71.0), (53.0, 113.0))
    ]
    noise = rng.normal(0, _NOISE, _POOL + side * side).astype(np.int16)
    voxels = np.empty((side,) * 3, np.uint8)
    for z in range(side):
        smooth = waves[0][z][:, None] + waves[1] + waves[2][:, z]
        begin = int(rng.integers(_POOL))
        grain = noise[begin : begin + side * side].reshape(side, side)
        voxels[z] = (120 + (smooth & -64) + grain).clip(0, 255)
    return voxels


def chunk_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "scan.zarr").iterdir() if path.name[0].isdigit())


def s3_objects(folder: Path) -> Iterator[tuple[str, Path, str, str]]:
    """(bucket/key, file, etag, checksum) of each file, for the server."""
    from awscrt.checksums import crc64nvme

    for file in sorted((folder / "scan.zarr").rglob("*")):
        if file.is_file():
            data = file.read_bytes()
            etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            crc = base64.b64encode(crc64nvme(data).to_bytes(8, "big")).decode()
            yield f"{BUCKET}/scan.zarr/{file.name}", file, etag, crc


def some_corners(count: int, side: int, seed: int = SEED) -> Corners:
    """Random places, for those who choose their own."""
    return np.random.default_rng(seed).integers(0, np.subtract(side, PATCH) + 1, (count, 3))


def chunks_of(corner: Sequence[int]) -> list[tuple[int, ...]]:
    """The chunks that a patch touches."""
    first = np.asarray(corner) // CHUNK
    last = (np.asarray(corner) + PATCH - 1) // CHUNK
    return [tuple((first + at).tolist()) for at in np.ndindex(*(last - first + 1))]


def distinct_chunks(corners: Corners) -> int:
    return len({chunk for corner in corners.tolist() for chunk in chunks_of(corner)})


def requests_of(corners: Corners) -> list[tuple[int, ...]]:
    """One for each chunk of each patch, in order."""
    return [chunk for corner in corners.tolist() for chunk in chunks_of(corner)]


def lru_misses(requests: Sequence[Any], room: int) -> int:
    """Of a cache of so many chunks that drops what was used longest ago."""
    cached: OrderedDict[Any, None] = OrderedDict()
    misses = 0
    for chunk in requests:
        misses += chunk not in cached
        cached[chunk] = None
        cached.move_to_end(chunk)
        if len(cached) > room:
            cached.popitem(last=False)
    return misses


def least_misses(requests: Sequence[Any], room: int) -> int:
    """The offline optimum: what is needed last goes, and may be what came just now."""
    never = len(requests)
    next_of: dict[Any, int] = {}
    following = [never] * len(requests)
    for at in reversed(range(len(requests))):
        following[at] = next_of.get(requests[at], never)
        next_of[requests[at]] = at
    cached: dict[Any, int] = {}
    misses = 0
    for at, chunk in enumerate(requests):
        misses += chunk not in cached
        cached[chunk] = following[at]
        if len(cached) > room:
            del cached[max(cached, key=cached.__getitem__)]
    return misses
