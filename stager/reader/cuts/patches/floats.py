"""Voxels as floats: how they are scaled when they come into a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import UsageError

DTYPES: Final = ("float16", "float32")
TABLE_BYTES: Final = 2  # of a voxel: so few values are looked up


@dataclass(frozen=True)
class Floats:
    """Voxels are handed out as (voxel - mean) / std, worked out in float32."""

    mean: float = 0.0
    std: float = 1.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        numbers = self.mean, self.std
        if not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers) or not self.std > 0:
            raise UsageError(f"{self} makes no sense", hint="Floats(mean=112.0, std=48.0)")
        if self.dtype not in DTYPES:
            raise UsageError(f"voxels cannot become {self.dtype!r}", hint="use one of " + ", ".join(DTYPES))

    def convert(self, voxels: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Write what these voxels become."""
        if voxels.dtype.kind in "iu" and voxels.itemsize <= TABLE_BYTES:
            index = voxels.view(f"u{voxels.itemsize}")
            np.take(_table(self, voxels.dtype.str), index, out=out, mode="clip")
        else:
            with np.errstate(over="ignore"):  # what float16 cannot express is infinite
                out[...] = self.values(voxels)

    def values(self, voxels: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return (voxels.astype(np.float32) - np.float32(self.mean)) / np.float32(self.std)


def floats_in(told: Any) -> dict[str, Floats]:
    """By the names of fields, as a person or JSON has them."""
    try:
        return {
            str(name): of if isinstance(of, Floats) else Floats(**of) for name, of in dict(told or {}).items()
        }
    except (TypeError, ValueError):
        raise UsageError(
            f"floats is {told!r}", hint='floats={"scan": Floats(mean=112.0, std=48.0)}'
        ) from None


def floats_to_json(floats: Mapping[str, Floats]) -> dict[str, Any]:
    return {name: {"mean": of.mean, "std": of.std, "dtype": of.dtype} for name, of in sorted(floats.items())}


@lru_cache(maxsize=16)
def _table(floats: Floats, dtype: str) -> npt.NDArray[Any]:
    """What becomes of each pattern of bits that a voxel can have."""
    of = np.dtype(dtype)
    patterns = np.arange(1 << 8 * of.itemsize, dtype=f"u{of.itemsize}")
    with np.errstate(over="ignore"):
        return floats.values(patterns.view(of)).astype(floats.dtype)
