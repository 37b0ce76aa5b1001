"""Volumes for tests: written by the libraries of their formats, and as what a layout reads."""

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkdtemp
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import tifffile
import zarr

from stager.errors import SampleError
from stager.interfaces import Asked, LeftOut, Looked, Scanning
from stager.layouts import check_layout, open_layout, open_opener
from stager.layouts.volume.unpack import unpack
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.values import Arrays, ObjectInfo, Part, SourceSpec
from stager.recipes import open_recipe
from stager.sources.chunks import ChunkSource
from stager.sources.mount.directory import DirectorySource
from stager.sources.unpacked import UnpackedSource

Volume = npt.NDArray[Any]


def voxels(shape: Sequence[int], dtype: str = "uint8", seed: int = 0) -> Volume:
    """Values that are unlike one another, so that one in a wrong place is seen."""
    random = np.random.default_rng(seed)
    dtype_of = np.dtype(dtype)
    if dtype_of.kind == "f":
        return random.standard_normal(tuple(shape)).astype(dtype_of)
    if dtype_of.kind == "b":
        return random.random(tuple(shape)) < 0.5
    return random.integers(0, np.iinfo(dtype_of).max, tuple(shape), dtype_of.newbyteorder("="))


def write_zarr(
    path: Path, array: Volume, chunks: Sequence[int], shards: Sequence[int] | None = None, **more: Any
) -> None:
    """`more`: of zarr's create_array: zarr_format, compressors, fill_value, dtype."""
    about = {"zarr_format": 3, "dtype": array.dtype, **more}
    written = zarr.create_array(
        str(path), shape=array.shape, chunks=tuple(chunks), shards=shards and tuple(shards), **about
    )
    written[...] = array  # chunks that have the fill value only are not written


def write_nifti(path: Path, array: Volume, order: str = "<", slope: float = 1.0, inter: float = 0.0) -> None:
    """By nibabel, with voxels as they are here, whatever the header says that they mean."""
    header = nibabel.Nifti1Header(endianness=order)
    header.set_data_dtype(array.dtype)
    header.set_data_shape(array.shape)
    header.set_slope_inter(slope, inter)
    header["vox_offset"] = 352
    header["magic"] = b"n+1"
    with (gzip.open if path.suffix == ".gz" else open)(path, "wb") as file:
        file.write(header.binaryblock + b"\0" * 4)
        file.write(array.astype(array.dtype.newbyteorder(order)).tobytes(order="F"))


def write_npy(path: Path, array: Volume, order: str = "<", is_fortran: bool = False) -> None:
    stored = array.astype(array.dtype.newbyteorder(order))
    np.save(path, np.asfortranarray(stored) if is_fortran else np.ascontiguousarray(stored))


def write_stack(folder: Path, array: Volume, **more: Any) -> None:
    """A TIFF file a slice: their numbers sort otherwise than their names."""
    folder.mkdir(parents=True)
    for number, page in enumerate(array):
        write_tiff(folder / f"slice-{number}.tif", page, **more)


def write_tiff(path: Path, array: Volume, **more: Any) -> None:
    tifffile.imwrite(path, array, photometric="minisblack", **more)


class Files:
    """A folder as a layout and a worker see it. It counts what is read of which key."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.reads: list[tuple[str, int]] = []
        self.parts: Counter[tuple[str, int, int | None]] = Counter()

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        return self.objects(scanning.under if scanning else "")

    def objects(self, under: str = "") -> Iterator[ObjectInfo]:
        assert under, "nothing of a volume is listed but what it is"
        return DirectorySource(self._root).scan(Scanning(under=under))

    def side_by_side(self, objects: Iterable[Asked], look: Callable[[Asked], Looked]) -> Iterator[Looked]:
        return map(look, objects)

    def known(self, info: ObjectInfo) -> None:
        return None

    def read(self, part: Part) -> memoryview:
        data = DirectorySource(self._root).read(part)
        self.reads.append((part.info.key, len(data)))
        self.parts[part.info.key, part.start, part.stop] += 1
        return data

    def start(self, part: Part, done: Any) -> None:
        try:
            done(self.read(part))
        except SampleError as error:
            done(error)


class Staging:
    """Bricks made as a worker makes them, without one."""

    def __init__(
        self,
        root: Path,
        volumes: Any,
        fields: Mapping[str, str],
        brick: Sequence[int],
        level: int | str = 0,
        **recipe: Any,
    ) -> None:
        self.files = Files(root)
        self.scratch = Path(mkdtemp(dir=root.parent))
        self._source = ChunkSource(self.files)
        self.source = UnpackedSource(self._source, SourceSpec(str(root)), unpack, self.scratch)
        about = {"kind": "volume", "fields": dict(fields), "brick": list(brick), **recipe}
        self.recipe = open_recipe(about)
        options = check_layout("volume", {"volumes": volumes, "level": level})
        self.left_out = LeftOut()
        layout = open_layout("volume", options, self.recipe, self.left_out)
        assert layout.is_computed
        self.rules: list[Bricks] = list(layout.rules(self.files))  # type: ignore[arg-type]
        self._opener = open_opener("volume", options)

    def bricks(self, rule: Bricks, rows: Iterable[int]) -> list[Arrays]:
        assert self._opener is not None
        opened: dict[Part, Any] = {}
        made = []
        for info in rule.infos(np.asarray(list(rows), np.int64)):
            for number, part in enumerate(info.parts):
                if part not in opened:
                    came: SimpleQueue[Any] = SimpleQueue()
                    self.source.start(part, came.put)
                    if isinstance(fetched := came.get(timeout=60), Exception):
                        raise fetched
                    opened[part] = self._opener.open(number, fetched)
            data = self._opener.take([opened[part] for part in info.parts], info.at)
            made.append(self.recipe.prepare(data, info.inputs))
        return made


def joined(rule: Bricks, bricks: Sequence[Arrays], field: str) -> Volume:
    """The whole array of all its bricks, in order."""
    (array,) = [array for array in rule.arrays if array.field == field]
    brick_of = tuple(side // by for side, by in zip(rule.brick, array.scales, strict=True))
    padded = tuple(n * side for n, side in zip(rule.grid.counts, brick_of, strict=True))
    whole = np.zeros(padded, bricks[0][field].dtype)
    for place, brick in zip(rule.grid.places(np.arange(rule.count)).tolist(), bricks, strict=True):
        starts = [at * side for at, side in zip(place, brick_of, strict=True)]
        whole[tuple(slice(s, s + side) for s, side in zip(starts, brick_of, strict=True))] = brick[field]
    inside = tuple(slice(side) for side in array.shape or rule.shape)
    outside = whole.copy()
    outside[inside] = 0
    assert not outside.any(), "what reaches out of the volume is 0"
    return whole[inside]
