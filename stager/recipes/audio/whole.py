"""Whether the bytes of a sound file are all there: libsndfile reads a part of one without a word."""

import struct
from typing import Final

from stager.errors import SampleError

RIFFS: Final = {b"RIFF": "<", b"RIFX": ">", b"RF64": "<"}
UNKNOWN: Final = 0xFFFFFFFF  # what RF64 has where the size does not fit
OGG_HEAD_BYTES: Final = 27
OGG_LAST: Final = 4
XING: Final = (b"Xing", b"Info")  # an MP3 that says how long it is
XING_WITHIN_BYTES: Final = 4096


def check_whole(data: memoryview) -> None:
    """Raise SampleError if a WAV or OGG ends too early."""
    if not len(data):
        raise SampleError("truncated", "it is empty")
    magic = bytes(data[:4])
    if magic in RIFFS and bytes(data[8:12]) == b"WAVE":
        _check_wav(data, RIFFS[magic])
    elif magic == b"OggS":
        _check_ogg(bytes(data))


def says_its_length(format_name: str, data: memoryview) -> bool:
    """Whether the number of samples in its header is one. Of other MP3s it is guessed by their size."""
    head = bytes(data[:XING_WITHIN_BYTES])
    return format_name != "MP3" or any(name in head for name in XING)


def _check_wav(data: memoryview, order: str) -> None:
    at, of_rf64 = 12, 0
    while at + 8 <= len(data):
        name, size = struct.unpack_from(f"{order}4sI", data, at)
        if name == b"ds64" and at + 24 <= len(data):
            (of_rf64,) = struct.unpack_from("<Q", data, at + 16)
        if name == b"data":
            size = of_rf64 if size == UNKNOWN and of_rf64 else size
            there = len(data) - at - 8
            if size > there:
                told = f"its header says {size:,} bytes of sound, there are {there:,}"
                raise SampleError("truncated", told)
            return
        at += 8 + size + size % 2
    raise SampleError("truncated", "it ends before its sound begins")


def _check_ogg(data: bytes) -> None:
    at = data.rfind(b"OggS")
    lengths = data[at + OGG_HEAD_BYTES :][: data[at + OGG_HEAD_BYTES - 1]] if at + 27 <= len(data) else b""
    end = at + OGG_HEAD_BYTES + len(lengths) + sum(lengths)
    if at + OGG_HEAD_BYTES > len(data) or end > len(data) or not data[at + 5] & OGG_LAST:
        raise SampleError("truncated", "its last page is not there")
