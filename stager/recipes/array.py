"""The recipe for arrays: .npy files and members of .npz files, as they are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Data, Kind, Needs
from stager.npy import parse_array
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.kind import BATCHES, RecipeKind
from stager.recipes.paths import check_path, needs_of

VERSION: Final = "array/1"  # to be raised when the same keys come to give other values
DEFAULTS: Final[dict[str, Any]] = {"dtype": "", "shape": (), "axes": "", "batch": "stack", "path": ""}
ANY: Final = -1  # a side that varies from sample to sample
KINDS_OF_DTYPE: Final = "biufc"  # numbers and truths; objects would be code


@dataclass(frozen=True, slots=True)
class ArrayRecipe:
    """An array of this dtype and shape; a side of -1 varies from sample to sample."""

    dtype: str
    shape: tuple[int, ...]
    axes: str
    batch: str
    path: str
    member: str = ""  # of a .npz file; not in the recipe's table if it is not given

    takes = Kind("array", "arrays", (".npy", ".npz"))
    inputs = ()

    @property
    def digest(self) -> str:
        """Without axes, batch and path: they say how samples are found and handed out, not what they are."""
        keys: dict[str, Any] = {"version": VERSION, "dtype": self.dtype, "shape": self.shape}
        if self.member:
            keys["member"] = self.member
        return digest_of(canonical_json(keys).encode())

    @property
    def fields(self) -> tuple[Field, ...]:
        shape = tuple(None if side == ANY else side for side in self.shape)
        return (Field("array", self.dtype, shape, "raw", self.axes, self.batch),)

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        return needs_of(self.path, columns, field)

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        (part,) = data
        array = parse_array(part, self.member) if isinstance(part, memoryview) else part
        dtype = np.dtype(self.dtype)
        if array.dtype.newbyteorder("<") != dtype or not self._fits(array.shape):
            told = f"it is {array.dtype}{list(array.shape)}, the recipe says {dtype}{list(self.shape)}"
            raise SampleError("unknown_format", told)
        return {"array": np.asarray(array, dtype, order="C")}

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            side in (ANY, actual) for side, actual in zip(self.shape, shape, strict=True)
        )


def check_array(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of an array recipe, checked, with defaults for those that are not given."""
    for key in keys:
        if key not in (*DEFAULTS, "member"):
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, (*DEFAULTS, "member")))
    if not isinstance(keys.get("member", ""), str):
        raise UsageError(f"recipe member is {keys['member']!r}", hint='use a text, as member = "pose"')
    checked = {**DEFAULTS, **keys}
    try:
        dtype = np.dtype(checked["dtype"] or "V")
    except TypeError:
        dtype = np.dtype("V")
    if dtype.kind not in KINDS_OF_DTYPE:
        raise UsageError(f"recipe dtype is {checked['dtype']!r}", hint='add dtype = "float32", or as it is')
    shape = checked["shape"]
    if not isinstance(shape, list | tuple) or not all(type(side) is int and side >= ANY for side in shape):
        raise UsageError(f"recipe shape is {shape!r}", hint="as in shape = [-1, 80]; -1: that side varies")
    if "shape" not in keys:
        raise UsageError("the array recipe has no shape", hint="add shape = [32, 32]; -1: that side varies")
    if checked["batch"] not in BATCHES:
        raise UsageError(f"recipe batch is {checked['batch']!r}", hint="use one of " + ", ".join(BATCHES))
    if not isinstance(checked["axes"], str) or (checked["axes"] and len(checked["axes"]) != len(shape)):
        raise UsageError(f"recipe axes is {checked['axes']!r}", hint='a letter a side, as axes = "HWC"')
    dtype_name = dtype.newbyteorder("<").str.lstrip("|<") if dtype.kind != "b" else "bool"
    plain = {"dtype": np.dtype(dtype_name).name, "shape": tuple(shape), "path": check_path(checked["path"])}
    return {**checked, **plain}


def guess_array(data: Sequence[Data]) -> dict[str, Any]:
    """The dtype and shape of these; sides that differ vary."""
    arrays = [parse_array(part) if isinstance(part, memoryview) else part for part in data]
    if not arrays:
        raise SampleError("missing", "there is no array to tell dtype and shape by")
    sides = [set(of_all) for of_all in zip(*(array.shape for array in arrays), strict=False)]
    shape = [next(iter(side)) if len(side) == 1 else ANY for side in sides]
    batch = {"batch": "ragged"} if ANY in shape else {}
    return {"dtype": arrays[0].dtype.newbyteorder("<").name, "shape": shape, **batch}


ARRAY: Final = RecipeKind(
    check_array,
    lambda keys: ArrayRecipe(**{**keys, "shape": tuple(keys["shape"])}),
    ArrayRecipe.takes,
    guess=guess_array,
)
