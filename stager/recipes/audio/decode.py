"""The bytes of a sound file as samples of one channel: libsndfile decodes, soxr resamples."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import SampleError, shown
from stager.recipes.audio.whole import check_whole, says_its_length

Samples = npt.NDArray[np.float32]

VALUES_MAX: Final = 1 << 28  # of all channels, decoded or resampled: 4.6 hours of one at 16 kHz
NOT_RECOGNISED: Final = 1  # of libsndfile's error codes


def decode(data: memoryview) -> tuple[Samples, int]:
    """All samples, the channels' mean if there are several, and how many are a second."""
    check_whole(data)
    soundfile = _soundfile()
    try:
        with _file_of(data) as descriptor, soundfile.SoundFile(descriptor, closefd=False) as file:
            samples = _read(file, says_its_length(file.format, data))
            return samples, int(file.samplerate)
    except soundfile.LibsndfileError as error:
        reason = "unknown_format" if error.code == NOT_RECOGNISED else "corrupt"
        raise SampleError(reason, shown(error.error_string)) from None


def resample(samples: Samples, rate: int, to: int) -> Samples:
    """The same sound with so many samples a second, by soxr's HQ."""
    if rate == to:
        return samples
    if len(samples) * to / rate > VALUES_MAX:
        raise SampleError("too_large", f"at {to} samples a second, it would have over {VALUES_MAX:,}")
    try:
        return np.asarray(_soxr().resample(samples, rate, to, quality="HQ"), np.float32)
    except (ValueError, RuntimeError) as error:
        raise SampleError("corrupt", shown(f"from {rate} to {to} samples a second: {error}")) from None


def _read(file: Any, is_length_known: bool) -> Samples:
    """In one go, after a seek: as `soundfile.read` does it. Otherwise an MP3 differs in its last bits."""
    frames_max = VALUES_MAX // file.channels
    file.seek(0)
    samples = file.read(min(file.frames, frames_max + 1), dtype="float32", always_2d=True)
    if len(samples) > frames_max:
        raise SampleError("too_large", f"it has over {VALUES_MAX:,} samples")
    if is_length_known and len(samples) < file.frames:
        raise SampleError("truncated", f"its header says {file.frames:,} samples, there are {len(samples):,}")
    if not len(samples):
        raise SampleError("truncated", "it has no samples")
    return np.ascontiguousarray(samples[:, 0] if file.channels == 1 else samples.mean(axis=1))


@contextmanager
def _file_of(data: memoryview) -> Iterator[int]:
    """A file in memory. Bare memory soundfile reads by callbacks: code that is written at run time."""
    descriptor = os.memfd_create("sound")
    try:
        left = data.cast("B")
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@cache
def _soundfile() -> Any:
    import soundfile

    return soundfile


@cache
def _soxr() -> Any:
    import soxr

    return soxr
