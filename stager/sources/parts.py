"""Which bytes of an object a part is."""

from stager.errors import SampleError, shown
from stager.reader.values import ObjectInfo, Part


def span(part: Part, place: str) -> tuple[int, int]:
    """Its first byte, and the one behind its last. Raise if the object, in this place, has no such bytes."""
    info, start, stop = part
    if stop is None:
        stop = info.size
    if not 0 <= start <= stop <= info.size:
        told = f"bytes {start} to {stop} were asked for, and it has {info.size}"
        raise SampleError("truncated", f"{shown(place + info.key)}: {told}")
    return start, stop


def found(part: Part, size: int, version: str) -> Part:
    """A part of an object that no listing told of, now that it is known what is there."""
    info = ObjectInfo(part.info.key, size, version)
    return Part(info, max(0, size + part.start) if part.start < 0 else part.start, part.stop)
