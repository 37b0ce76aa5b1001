"""Which volumes a place has: for `stager check`."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from stager.errors import NotReady, SampleError, UsageError
from stager.interfaces import Listing
from stager.layouts.kind import Guess
from stager.layouts.volume.formats import nifti
from stager.layouts.volume.formats.array import BRICK, Array, Place, Wanted, brick_for
from stager.layouts.volume.formats.finding import NPY, find_array
from stager.layouts.volume.formats.tiff.pages import is_tiff
from stager.layouts.volume.formats.zarr import find_zarr, levels_of
from stager.reader.values import ObjectInfo

LOOKS_MOST: Final = 64  # folders and files that are looked into
VOLUMES_MOST: Final = 16
SLICES_MIN: Final = 8  # fewer files are pictures, most likely
STACKS_MOST: Final = 2  # an image and its mask: more are classes of pictures, most likely
ARRAYS_MOST: Final = 2  # of .npy; more are samples
SIDES_MIN: Final = 3  # fewer are no volume
COMPANION: Final = re.compile("mask|label|seg|gt|ink", re.IGNORECASE)
ANY: Final = Wanted("", (BRICK,) * 3)

Found = tuple[str, Array]  # and its path


def guess_volumes(objects: Sequence[ObjectInfo], listing: Listing) -> Iterator[Guess]:
    """One guess: an array of three sides or more, and others that have its shape, or at least its dtype."""
    place = Place(listing)
    found = list(islice(_found(place, objects), VOLUMES_MOST))
    if not found:
        return
    shape, dtype = found[0][1].shape, found[0][1].dtype
    fields = _fields([one for one in found if one[1].shape == shape])
    volumes: Any = {name: path for name, (path, _) in fields.items()}
    if not volumes:
        fields = {"scan": found[0]}
        volumes = [
            {"scan": path} for path, array in found if (array.dtype, len(array.shape)) == (dtype, len(shape))
        ]
        volumes = volumes[0] if len(volumes) == 1 else volumes
    bricks = [brick_for(array.chunk, array.shape) for _, array in fields.values()]
    brick = [min(sides) for sides in zip(*bricks, strict=True)]
    recipe = {
        "kind": "volume",
        "fields": {name: array.dtype for name, (_, array) in fields.items()},
        "brick": brick,
    }
    about = [line for path, array in found for line in _about(place, path, array)]
    yield Guess({"volumes": volumes}, "", objects, recipe, about)


def _found(place: Place, objects: Sequence[ObjectInfo]) -> Iterator[Found]:
    done: list[str] = []
    for path, is_folder in islice(_candidates(objects), LOOKS_MOST):
        if any(path == known or path.startswith(f"{known}/") or not known for known in done):
            continue
        with suppress(UsageError, SampleError, NotReady):
            array = find_zarr(place.read, path, 0) if is_folder else find_array(place, path, 0, ANY)
            if array is not None and sum(side > 1 for side in array.shape) >= SIDES_MIN:
                done.append(path)
                yield path, array


def _candidates(objects: Sequence[ObjectInfo]) -> Iterator[tuple[str, bool]]:
    """Paths where a volume may be, the likeliest and shortest first; and whether it would be a Zarr."""
    folders: dict[str, int] = {}  # with how many TIFFs right in each
    for info in objects:
        for above in PurePosixPath(info.key).parents:
            folder = "" if str(above) == "." else str(above)
            folders[folder] = folders.get(folder, 0) + (above == _parent(info.key) and is_tiff(info.key))
    by_depth = sorted(folders, key=lambda folder: (folder.count("/") + bool(folder), folder))
    yield from ((folder, True) for folder in _zarrs(by_depth))
    arrays = [info.key for info in objects if info.key.lower().endswith(NPY)]
    stacks = [folder for folder in by_depth if folders[folder] >= SLICES_MIN]
    stacks = [folder for folder in stacks if _is_numbered(folder, objects)]
    files = [info.key for info in objects if info.key.lower().endswith(nifti.ENDINGS)]
    files += arrays if len(arrays) <= ARRAYS_MOST else []
    files += stacks if len(stacks) <= STACKS_MOST else []
    yield from ((path, False) for path in files)
    yield from ((info.key, False) for info in objects if is_tiff(info.key))


def _zarrs(folders: Sequence[str]) -> Sequence[str]:
    """Folders whose names say that they are, and those right in them; if there are none, the first of all."""
    named = [folder for folder in folders if folder.lower().rpartition(".zarr")[2].count("/") < 2]
    named = [folder for folder in named if ".zarr" in folder.lower()]
    return named or folders[: LOOKS_MOST // 4]


def _is_numbered(folder: str, objects: Sequence[ObjectInfo]) -> bool:
    """Whether its TIFFs have names that differ in a number, which counts on: pictures seldom do."""
    prefix = f"{folder}/" if folder else ""
    names = [info.key[len(prefix) :] for info in objects if info.key.startswith(prefix)]
    told = [re.findall(r"[0-9]+|[^0-9]+", name) for name in names if "/" not in name and is_tiff(name)]
    if len({len(parts) for parts in told}) != 1:
        return False
    differ = [column for column in zip(*told, strict=True) if len(set(column)) > 1]
    if len(differ) != 1 or not all(part.isdecimal() for part in differ[0]):
        return False
    numbers = sorted(map(int, differ[0]))
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _parent(key: str) -> PurePosixPath:
    return PurePosixPath(key).parent


def _fields(found: Sequence[Found]) -> dict[str, Found]:
    """A scan and its companions by their names, if these say that they are: of one shape."""
    names = [re.sub(r"\W", "_", PurePosixPath(path).name.partition(".")[0]) for path, _ in found]
    is_companion = [bool(COMPANION.search(name)) for name in names]
    if len(set(names)) < len(names) or is_companion.count(False) != 1 or not any(is_companion):
        return {}
    named = ("scan" if not other else name for name, other in zip(names, is_companion, strict=True))
    fields = dict(zip(named, found, strict=True))
    return fields if all(name.isidentifier() for name in fields) and len(fields) == len(found) else {}


def _about(place: Place, path: str, array: Array) -> Iterator[str]:
    shape, chunk = (" x ".join(map(str, sides)) for sides in (array.shape, array.chunk))
    yield f"{path or 'the top'}: {array.dtype}, {shape}, in chunks of {chunk}"
    if levels := levels_of(place.read, path):
        yield f"{path or 'the top'}: levels {', '.join(levels)}"
