"""What functions made and no shard has yet: a file each, so that a crash loses only what is under way."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.functions.frames import Data, frame_of, named, read_frame
from stager.interfaces import Made
from stager.reader.values import Arrays, Field, checksum_of


def made_path(directory: Path, recipe: str, tag: int) -> Path:
    """Where a sample is kept until it is staged."""
    return directory / f"{recipe[:16]}-{tag:016x}"


class MadeSamples:
    """Those of one recipe. A file that was cut off by a crash, or is damaged, is none."""

    def __init__(self, directory: Path, recipe: str, fields: Sequence[Field]) -> None:
        self._directory, self._recipe, self._fields = directory, recipe, fields

    def find(self, tag: int) -> Made | None:
        """A sample that was made before."""
        try:
            with made_path(self._directory, self._recipe, tag).open("rb") as file:
                told = read_frame(file.readinto, os.fstat(file.fileno()).st_size)
            return None if told is None else self._read(tag, *told)
        except Exception:  # whatever JSON and NumPy make of damaged bytes: a dtype may be a SyntaxError
            return None

    def _read(self, tag: int, header: Mapping[str, Any], data: Sequence[Data]) -> Made | None:
        arrays = named(header, data)
        if arrays.keys() != {field.name for field in self._fields}:
            return None
        if not all(_is_of(field, arrays[field.name]) for field in self._fields):
            return None  # the sum is of bytes, not of what they mean
        made = Made(arrays, float(header["seconds"]))
        return made if header["sum"] == self._sum(tag, made) else None

    def keep(self, tag: int, made: Made) -> None:
        """Write it down; raise OSError. It need not be durable: who loses it makes it again."""
        header = {"names": list(made), "seconds": made.seconds, "sum": self._sum(tag, made)}
        self._directory.mkdir(exist_ok=True)
        with made_path(self._directory, self._recipe, tag).open("wb") as file:
            for piece in frame_of(header, list(made.values())):
                file.write(piece)

    def _sum(self, tag: int, arrays: Arrays) -> int:
        return checksum_of(tag, self._recipe, self._fields, arrays)


def _is_of(field: Field, array: npt.NDArray[Any]) -> bool:
    sides = zip(array.shape, field.shape, strict=False)
    return (
        array.dtype == np.dtype(field.dtype)
        and array.ndim == len(field.shape)
        and all(wanted is None or side == wanted for side, wanted in sides)
    )
