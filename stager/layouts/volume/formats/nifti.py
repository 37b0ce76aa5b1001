"""NIfTI volumes: .nii is read by ranges, .nii.gz is unpacked once. nibabel reads the headers."""

import math
import zlib
from typing import Any, Final

import numpy as np

from stager.errors import NotReady, UsageError
from stager.layouts.volume.formats.array import (
    Array,
    Place,
    Wanted,
    check_dtype,
    check_shape,
    check_there,
    raw,
    run_of,
)
from stager.reader.samples.computed.spans import Run
from stager.reader.values import Part, canonical_json

ENDINGS: Final = (".nii", ".nii.gz")
HEAD_BYTES: Final = 64 << 10
GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP: Final = canonical_json({"format": "gzip"})  # what unpacks it
HEADERS: Final = {348: "Nifti1Header", 540: "Nifti2Header"}  # by the size that each says it has
MAGIC: Final = (b"n+1", b"n+2")


def find_nifti(place: Place, path: str, wanted: Wanted) -> Array:
    """The array of a NIfTI file, with its sides in nibabel's order. Raise UsageError if it is none."""
    info = place.find(path)
    head = bytes(place.listing.read(Part(info, 0, min(HEAD_BYTES, info.size))))
    is_packed = path.lower().endswith(".gz")
    if is_packed:
        head = _unpacked(path, head)
    header = _header(path, head)
    dtype = header.get_data_dtype()
    name = check_dtype(path, dtype)
    try:
        shape = check_shape(path, tuple(int(side) for side in header.get_data_shape()))
        slope, inter = (None if value is None else float(value) for value in header.get_slope_inter())
        offset = int(header["vox_offset"])
    except UsageError:
        raise
    except Exception as error:  # nibabel's own errors, and NumPy's
        raise UsageError(f"{path}: its NIfTI header is invalid: {error}", hint="is it damaged?") from None
    if not header.sizeof_hdr <= offset:
        raise UsageError(f"{path}: its voxels begin at byte {offset}, in its header", hint="is it damaged?")
    chunk = run_of(shape, wanted.brick, dtype.itemsize, is_fortran=True)
    size = offset + math.prod(shape) * dtype.itemsize
    if is_packed:
        lies = Run((path, size, info.version), offset, shape, chunk, dtype.itemsize, True, info.size, GZIP)
    else:
        check_there(path, size, info.size)
        lies = Run((path, info.size, info.version), offset, shape, chunk, dtype.itemsize, True)
    scaled, note = None, ""
    if (slope or 1.0, inter or 0.0) != (1.0, 0.0):
        slope, inter = slope or 1.0, inter or 0.0
        if wanted.dtype == "float32":
            name, scaled = "float32", (slope, inter)
        else:
            note = (
                f"{path}: voxels are as they are stored; its header says that they mean {slope:g} times"
                f' that plus {inter:g}, which a field of dtype "float32" would have'
            )
    opens = raw(dtype, shape, chunk, is_fortran=True, scaled=scaled)
    return Array(shape, name, chunk, lies, opens, note=note)


def _unpacked(path: str, head: bytes) -> bytes:
    try:
        if head[:2] != GZIP_MAGIC:
            raise zlib.error("no gzip magic")
        return zlib.decompressobj(31).decompress(head, max(HEADERS))
    except zlib.error as error:
        raise UsageError(
            f"{path} is no gzip file: {error}", hint="a NIfTI that is not packed ends in .nii"
        ) from None


def _header(path: str, head: bytes) -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise NotReady(
            f"NIfTI volumes need {error.name}: not installed", hint="pip install 'stager[volume]'"
        ) from None
    for size, kind in HEADERS.items():
        block = head[:size]
        told = {int(np.frombuffer(block[:4], order)[0]) for order in ("<i4", ">i4") if len(block) == size}
        if size not in told:
            continue
        header = getattr(nibabel, kind)(block, check=False)
        if bytes(header["magic"].item())[:3] in MAGIC:
            return header
        if bytes(header["magic"].item())[:3] in (b"ni1", b"ni2"):
            raise UsageError(
                f"{path}: its voxels are in another file", hint="save it as one file, .nii or .nii.gz"
            )
    raise UsageError(f"{path} is no NIfTI file", hint="nibabel.save writes one")
