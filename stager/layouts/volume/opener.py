"""A chunk is decoded once, for all bricks that are taken from it: by the first that is."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy.typing as npt

from stager.errors import NotReady, SampleError
from stager.interfaces import Data
from stager.layouts.volume.formats.array import Decoder, RawDecoder
from stager.layouts.volume.formats.tiff.decode import TiffDecoder
from stager.layouts.volume.formats.zarr import ZarrDecoder
from stager.reader.samples.computed.bricks import Box
from stager.reader.samples.computed.grid import Sides


class BrickOpener:
    """Opens chunks when a brick needs them, and takes boxes of them."""

    def open(self, number: int, data: memoryview) -> "_Chunk":
        return _Chunk(data)

    def take(self, opened: Sequence["_Chunk"], at: Sequence[Box]) -> list[Data]:
        """The box that a brick has of each chunk."""
        taken: list[Data] = []
        for number, (chunk, box) in enumerate(zip(opened, at, strict=True)):
            try:
                array = chunk.decoded(box.opens, box.at)
            except SampleError as error:
                told = SampleError(error.reason, error.message)
                told.part = number
                raise told from None
            taken.append(array[tuple(slice(s, s + n) for s, n in zip(box.start, box.size, strict=True))])
        return taken


class _Chunk:
    """A chunk's bytes, and the array that the first who needs it makes of them; the others wait for it."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._array: npt.NDArray[Any] | None = None
        self._error: SampleError | None = None

    def decoded(self, opens: str, at: Sides) -> npt.NDArray[Any]:
        with self._lock:
            if self._array is None and self._error is None:
                self._decode(opens, at)
            if self._error is not None:
                raise SampleError(self._error.reason, self._error.message)
            assert self._array is not None, "it is decoded, or told why it is not"
            return self._array

    def _decode(self, opens: str, at: Sides) -> None:
        try:
            self._array = decode(opens, at, self._data)
        except SampleError as error:
            self._error = error
        self._data = memoryview(b"")


def decode(opens: str, at: Sides, data: memoryview) -> npt.NDArray[Any]:
    """The chunk at these numbers. Raise SampleError if its bytes are damaged."""
    try:
        decoder = _decoder(opens)
    except NotReady as error:  # this machine lacks a package, and not the chunk
        raise SampleError("unprepared", f"{error.message}; {error.hint}") from None
    try:
        return decoder.decode(at, data)
    except (MemoryError, SampleError):
        raise
    except Exception as error:  # whatever a codec makes of damaged bytes
        told = f"it cannot be decoded: {type(error).__name__}: {error}"
        raise SampleError("corrupt", told) from None


@lru_cache(maxsize=64)
def _decoder(opens: str) -> Decoder:
    told = json.loads(opens)
    return DECODERS[told.pop("format", "zarr")](told)


DECODERS: Final[Mapping[str, Callable[[dict[str, Any]], Decoder]]] = {
    "zarr": ZarrDecoder,
    "raw": lambda told: RawDecoder(**told),
    "tiff": lambda told: TiffDecoder(**told),
}
