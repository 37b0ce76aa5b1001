"""Arrays in .npy files: read by ranges, for nothing in them is compressed."""

import math

from stager.errors import SampleError, UsageError
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
from stager.npy import HEAD_BYTES, parse_npy_header
from stager.reader.samples.computed.spans import Run
from stager.reader.values import Part


def find_npy(place: Place, path: str, wanted: Wanted) -> Array:
    """The array of a .npy file. Raise UsageError if it is none."""
    info = place.find(path)
    try:
        header = parse_npy_header(place.listing.read(Part(info, 0, min(HEAD_BYTES, info.size))))
    except SampleError as error:
        if error.reason not in ("unknown_format", "corrupt"):
            raise
        raise UsageError(f"{path}: {error.message}", hint="save it by numpy.save") from None
    shape, is_fortran, dtype, offset = header
    name, shape = check_dtype(path, dtype), check_shape(path, shape)
    chunk = run_of(shape, wanted.brick, dtype.itemsize, is_fortran)
    check_there(path, offset + math.prod(shape) * dtype.itemsize, info.size)
    told = info.key, info.size, info.version
    lies = Run(told, offset, shape, chunk, dtype.itemsize, is_fortran)
    return Array(shape, name, chunk, lies, raw(dtype, shape, chunk, is_fortran))
