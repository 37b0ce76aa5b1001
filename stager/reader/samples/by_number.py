"""Tables with a value for each sample, by its number, however many samples there are."""

import mmap
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.values import Numbers

SMALL_BYTES: Final = 1 << 18  # an array so small is not worth pages of its own
PAGE_VALUES: Final = 4096


class ByNumber:
    """A value for each sample, by its number: zero until it is set.

    It grows by itself. Memory that is zero is not there: what was never set takes none, however many samples
    there are.
    """

    def __init__(self, dtype: npt.DTypeLike, values: npt.NDArray[Any] | None = None) -> None:
        self._values = zeros_by_number(0, dtype) if values is None else values

    def __getitem__(self, numbers: Numbers) -> npt.NDArray[Any]:
        if not len(numbers) or int(numbers.max()) < len(self._values):
            return np.asarray(self._values[numbers])
        found = np.zeros(len(numbers), self._values.dtype)
        inside = numbers < len(self._values)
        found[inside] = self._values[numbers[inside]]
        return found

    def __setitem__(self, numbers: Numbers, value: Any) -> None:
        if len(numbers):
            self._have(numbers)[numbers] = value

    def add(self, numbers: Numbers, values: npt.NDArray[Any]) -> None:
        """Add to the values of these samples, each as often as it is named."""
        if len(numbers):
            np.add.at(self._have(numbers), numbers, values)

    def used(self) -> Numbers:
        """The samples, in rising order, whose value is not zero."""
        return np.flatnonzero(self._values)

    def _have(self, numbers: Numbers) -> npt.NDArray[Any]:
        """The array, long enough for these."""
        needed = int(numbers.max()) + 1
        if needed > len(self._values):
            self._values = _grown(self._values, max(needed, 2 * len(self._values)))
        return self._values


def zeros_by_number(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros for so many samples. Memory comes page by page, with what is written.

    NumPy asks for huge pages: a value here and there would take 2 MiB each.
    """
    size_bytes = count * np.dtype(dtype).itemsize
    if size_bytes < SMALL_BYTES:
        return np.zeros(count, dtype)
    mapped = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(mapped, dtype)


def _grown(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The same, and zeros behind it. Pages of zeros are not copied: they would take memory."""
    grown = zeros_by_number(count, values.dtype)
    for start in range(0, len(values), PAGE_VALUES):
        part = values[start : start + PAGE_VALUES]
        if part.any():
            grown[start : start + len(part)] = part
    return grown
