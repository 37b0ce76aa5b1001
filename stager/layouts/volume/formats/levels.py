"""Levels of an OME-NGFF image: by number, or by the size of their voxels. Of 0.4 and of 0.5."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stager.errors import UsageError

# In metres: what metadata may say, and what people write.
UNITS: Final[Mapping[str, float]] = {
    "angstrom": 1e-10, "nanometer": 1e-9, "micrometer": 1e-6, "millimeter": 1e-3, "centimeter": 1e-2,
    "meter": 1.0,
    "nm": 1e-9, "um": 1e-6, "µm": 1e-6, "μm": 1e-6, "mm": 1e-3, "cm": 1e-2, "m": 1.0,
}  # fmt: skip
SHORT: Final = {1e-10: "angstrom", 1e-9: "nm", 1e-6: "um", 1e-3: "mm", 1e-2: "cm", 1.0: "m"}
SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-zµμ]*)")
HINT: Final = '0 is the finest; or the size of a voxel: level = "8um"'


def check_level(level: Any) -> int | str:
    """A number, or the size of a voxel. Raise UsageError if it is neither."""
    if type(level) is int and level >= 0:
        return level
    told = SIZE.fullmatch(level) if isinstance(level, str) else None
    if told is None or float(told[1]) <= 0 or (told[2] and told[2] not in UNITS):
        raise UsageError(f"level is {level!r}", hint=HINT)
    return str(level)


def choose_level(path: str, where: str, multiscale: Mapping[str, Any], level: int | str) -> str:
    """Where a level is, below the image. Raise UsageError if there is none, or nobody can tell."""
    try:
        datasets = list(multiscale["datasets"])
        paths = [str(of["path"]) for of in datasets]
    except (KeyError, TypeError, IndexError):
        raise UsageError(f"the multiscales of {where} name no levels") from None
    if isinstance(level, int):
        if level >= len(paths):
            raise UsageError(
                f"{path} has no level {level}", hint=f"level = 0 to {len(paths) - 1}; 0 is the finest"
            )
        return paths[level]
    try:
        sizes = [_size(multiscale, of) for of in datasets]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        told = str(error) if isinstance(error, ValueError) else "they say no scale"
        raise UsageError(
            f"{where}: {told}, so no level goes by {level!r}", hint="name it by its number"
        ) from None
    told_size = SIZE.fullmatch(level)
    assert told_size is not None, "checked before"
    number, unit = float(told_size[1]), told_size[2]
    has_unit = sizes[0][1] != 0.0
    if bool(unit) != has_unit:
        lacks = "its axes have no unit" if unit else "its axes have a unit"
        raise UsageError(f"{path}: {lacks}, and level is {level!r}", hint=_shown(paths, sizes))
    wanted = number * (UNITS[unit] if unit else 1.0)
    off = [abs(math.log(size * (by or 1.0) / wanted)) for size, by in sizes]
    if min(off) > math.log(2):
        raise UsageError(f"{path} has no level whose voxels are about {level}", hint=_shown(paths, sizes))
    return paths[off.index(min(off))]


def told_levels(multiscale: Mapping[str, Any]) -> list[str]:
    """The paths of the levels, with the sizes of their voxels if they are told."""
    try:
        datasets = list(multiscale["datasets"])
        paths = [str(of["path"]) for of in datasets]
    except (KeyError, TypeError):
        return []
    try:
        sizes = [_size(multiscale, of) for of in datasets]
    except (KeyError, TypeError, IndexError, ValueError):
        return paths
    return _told(paths, sizes)


def _size(multiscale: Mapping[str, Any], dataset: Mapping[str, Any]) -> tuple[float, float]:
    """The mean size of a level's voxels on the axes of space, and its unit in metres; 0: it has none."""
    axes: Sequence[Mapping[str, Any]] = multiscale["axes"]
    space = [at for at, axis in enumerate(axes) if axis.get("type", "space") == "space"]
    units = {axes[at].get("unit", "") for at in space}
    if len(units) != 1 or not units <= {"", *UNITS}:
        raise ValueError(f"the units of its axes are {sorted(map(str, units))}")
    scale = [1.0] * len(axes)
    for transforms in (dataset["coordinateTransformations"], multiscale.get("coordinateTransformations", ())):
        for transform in transforms:
            if transform["type"] == "scale":
                scale = [of * float(by) for of, by in zip(scale, transform["scale"], strict=True)]
    if not space or min(scale[at] for at in space) <= 0:
        raise ValueError("its scales are not above 0")
    mean = math.exp(sum(math.log(scale[at]) for at in space) / len(space))
    (unit,) = units
    return mean, UNITS[unit] if unit else 0.0


def _shown(paths: Sequence[str], sizes: Sequence[tuple[float, float]]) -> str:
    return f"its levels have voxels of: {', '.join(_told(paths, sizes))}"


def _told(paths: Sequence[str], sizes: Sequence[tuple[float, float]]) -> list[str]:
    pairs = zip(paths, sizes, strict=True)
    return [f"{path} {size:g}{SHORT[by] if by else ''}" for path, (size, by) in pairs]
