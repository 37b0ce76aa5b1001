"""What a format finds of an array before any chunk is read, and how a chunk of it is decoded."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stager.errors import SampleError, UsageError
from stager.interfaces import Listing
from stager.reader.samples.computed.chunked import Lies
from stager.reader.samples.computed.grid import Sides
from stager.reader.values import ObjectInfo, Part, Unlisted, canonical_json

METADATA_BYTES: Final = 1 << 20  # about as many bytes as metadata have
DECODED_BYTES_MAX: Final = 512 << 20  # of one chunk: it is decoded in memory
BRICK: Final = 32  # a side, if chunks do not speak against it
VOXELS_MAX: Final = 1 << 48
RUN_BYTES: Final = 256 << 10  # at least so much is read at once, if a brick needs no more
SLAB_BYTES: Final = 4 << 20  # so much may be, if it is no deeper than a brick
KINDS_OF_DTYPE: Final = "biuf"


class Wanted(NamedTuple):
    """What the recipe says of a field."""

    dtype: str
    brick: Sides


class Array(NamedTuple):
    """An array as its source has it. `opens`: what its decoder is made of, in a worker: JSON."""

    shape: Sides
    dtype: str
    chunk: Sides
    lies: Lies
    opens: str
    note: str = ""  # what a person should know of it


class Decoder(Protocol):
    """How chunks of an array are decoded. Any thread may, also while others do."""

    def decode(self, at: Sides, data: memoryview) -> npt.NDArray[Any]:
        """The chunk at these numbers; of no data, what a chunk that is not there has.

        What raises but SampleError and MemoryError means that the bytes are damaged.
        """


class Place:
    """A source, where a format looks for an array."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing

    def read(self, key: str) -> memoryview | None:
        """The bytes of metadata; None: there are none."""
        try:
            return self.listing.read(Part(Unlisted(key, METADATA_BYTES, "", "")))
        except SampleError as error:
            if error.reason == "missing":
                return None
            raise

    def find(self, key: str) -> ObjectInfo:
        """An object that is to be there, as it is now. Raise UsageError if it is not."""
        found = next((info for info in self.listing.objects(key) if info.key == key), None)
        if found is None:
            raise UsageError(
                f"there is no {key}", hint="volumes = { NAME = PATH }: its path below the source"
            )
        return found

    def under(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.listing.objects(prefix)


class RawDecoder:
    """Voxels as memory has them, of any byte order; scaled, if the recipe wants what they mean."""

    def __init__(
        self, dtype: str, shape: Any, chunk: Any, is_fortran: bool = False, scaled: Any = None
    ) -> None:
        self._dtype, self._shape, self._chunk = np.dtype(dtype), tuple(shape), tuple(chunk)
        self._order: Any = "F" if is_fortran else "C"
        self._scaled = scaled

    def decode(self, at: Sides, data: memoryview) -> npt.NDArray[Any]:
        begins = (number * side for number, side in zip(at, self._chunk, strict=True))
        sides = zip(self._chunk, self._shape, begins, strict=True)
        size = [min(chunk, side - begin) for chunk, side, begin in sides]
        array = np.frombuffer(data, self._dtype).reshape(size, order=self._order)
        if self._scaled is not None:
            slope, inter = self._scaled
            with np.errstate(all="ignore"):  # too large for a float32: infinite, as nibabel has it
                return np.asarray(array.astype(np.float64) * slope + inter, np.float32)
        return array.astype(self._dtype.newbyteorder("<"), copy=False)


def raw(dtype: Any, shape: Sides, chunk: Sides, is_fortran: bool = False, scaled: Any = None) -> str:
    """What makes a RawDecoder."""
    told = {"dtype": np.dtype(dtype).str, "shape": shape, "chunk": chunk}
    more = {"is_fortran": True} if is_fortran else {}
    scale = {"scaled": scaled} if scaled is not None else {}
    return canonical_json({"format": "raw", **told, **more, **scale})


def run_of(shape: Sides, brick: Sides, item_bytes: int, is_fortran: bool = False) -> Sides:
    """Sides of chunks of an array in memory, each in one piece: small, but worth a request.

    One slab as deep as a brick, if that is not large; else some lines of a plane, as a brick has them.
    """
    if is_fortran:
        return run_of(shape[::-1], brick[::-1], item_bytes)[::-1]
    if len(brick) != len(shape):
        return shape  # it is told of elsewhere
    for side in range(len(shape)):  # sides before it: one; it: some; sides behind it: all
        behind = math.prod(shape[side + 1 :]) * item_bytes
        if behind * brick[side] <= SLAB_BYTES or side == len(shape) - 1:
            times = max(1, (RUN_BYTES // max(behind, 1)) // brick[side])
            return (1,) * side + (min(times * brick[side], shape[side]),) + shape[side + 1 :]
    return shape


def brick_for(chunk: Sides, shape: Sides) -> list[int]:
    """Sides of bricks that go with chunks, up to 32 each: of the last three sides, of others 1."""
    sides = list(zip(chunk, shape, strict=True))[-3:]
    fits = [
        BRICK if not (BRICK % own and own % BRICK) or own >= side else _divisor(own) for own, side in sides
    ]
    return [1] * (len(chunk) - len(fits)) + fits


def _divisor(side: int) -> int:
    return max(n for n in range(1, BRICK + 1) if side % n == 0)


def check_dtype(where: str, dtype: np.dtype[Any]) -> str:
    """The name of a dtype that can be a field's. Raise UsageError."""
    if dtype.kind not in KINDS_OF_DTYPE or dtype.itemsize > 8 or dtype.names:
        raise UsageError(f"{where}: its dtype is {dtype}", hint="numbers and truths are read")
    return dtype.newbyteorder("<").name


def check_shape(where: str, shape: Sides) -> Sides:
    if not shape or min(shape) < 1 or math.prod(shape) > VOXELS_MAX:
        raise UsageError(f"{where} says that its shape is {list(shape)}", hint="is it damaged?")
    return tuple(int(side) for side in shape)


def check_there(where: str, told_bytes: int, size_bytes: int) -> None:
    """That a header is to be believed: a file may be cut short, but not have less than half of it."""
    if told_bytes > 2 * size_bytes:
        told = f"{where} has {size_bytes} bytes, and its header tells of {told_bytes}"
        raise UsageError(told, hint="was it cut short?")
