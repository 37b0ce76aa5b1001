"""Which format an array of a volume has: its path says so, or what is there."""

from typing import Final

from stager.errors import UsageError
from stager.layouts.volume.formats import nifti
from stager.layouts.volume.formats.array import Array, Place, Wanted
from stager.layouts.volume.formats.nifti import find_nifti
from stager.layouts.volume.formats.npy import find_npy
from stager.layouts.volume.formats.tiff.pages import GLOB, find_stack, find_tiff, is_tiff
from stager.layouts.volume.formats.zarr import find_zarr

NPY: Final = ".npy"
HINT: Final = (
    "volumes = { NAME = PATH }, below the source: the folder of a Zarr array (of zarr.json or .zarray), a "
    "folder of TIFF slices, or a .tif, .nii, .nii.gz or .npy"
)


def find_array(place: Place, path: str, level: int | str, wanted: Wanted) -> Array:
    """The array at a path; of an image with several resolutions, that level. Raise UsageError."""
    name = path.lower()
    if any(letter in path for letter in GLOB):
        found = find_stack(place, path, wanted)
    elif name.endswith(nifti.ENDINGS):
        return find_nifti(place, path, wanted)
    elif name.endswith(NPY):
        return find_npy(place, path, wanted)
    elif is_tiff(path):
        return find_tiff(place, path, wanted)
    else:
        found = find_zarr(place.read, path, level) or find_stack(place, path, wanted)
    if found is None:
        raise UsageError(f"there is no volume at {path or 'the top of the source'}", hint=HINT)
    return found
