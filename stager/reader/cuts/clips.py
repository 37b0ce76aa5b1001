"""Where segments of clips lie, and how a clip that is too short is filled up: as voxceleb_trainer does it.

A clip of no more than `frames` is repeated to frames + 1 ("wrap"), or has zeros at both ends, as many at each
("zero", as that repository did it before). A segment begins at a whole number of frames from 0 to `room`.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.cuts.pieces import OUTPUT, ZEROS, Pieces, runs
from stager.reader.values import Numbers

PADS: Final = ("wrap", "zero")

Parts = npt.NDArray[np.float64]  # a line a clip, a number from 0 to 1 for each segment of it
Starts = npt.NDArray[np.int64]  # a line a clip, the start of each segment of it
Run = tuple[Any, Any, Any, Any]  # row, start, to, count: a line a piece


def room_of(lengths: Numbers, frames: int, pad: str) -> Numbers:
    """How far from the beginning a segment may begin, once clips are filled up."""
    if pad == "wrap":
        return np.where(lengths <= frames, 1, lengths - frames)
    return np.asarray(lengths + 2 * _lead(lengths, frames) - frames)


def random_starts(uniforms: Parts, room: Numbers) -> Starts:
    """Those of these random numbers. The last place is never taken, as there."""
    return (uniforms * room[:, None]).astype(np.int64)


def even_starts(count: int, room: Numbers) -> Starts:
    """As many, from the first place to the last, as far apart: np.linspace, truncated."""
    starts = np.arange(count) * (room[:, None] / max(count - 1, 1))
    if count > 1:
        starts[:, -1] = room
    return starts.astype(np.int64)


def segments(
    lengths: Numbers, starts: Starts, frames: int, pad: str, places: Numbers, items: int = 1
) -> Pieces:
    """Segments of rows of these lengths, to an output of (rows, segments a row, frames, items a frame)."""
    count = starts.shape[1]
    row, length = (np.repeat(of, count) for of in (np.arange(len(lengths)), lengths))
    to = (places[:, None] * count + np.arange(count)).reshape(-1) * frames
    fill = _wrapped if pad == "wrap" else _centred
    found = fill(row, starts.reshape(-1), to, length, frames)
    columns = [np.concatenate([np.broadcast_to(run[at], run[2].shape) for run in found]) for at in range(4)]
    row, *scaled = columns
    return runs(row, *(column * items for column in scaled))


def _wrapped(row: Numbers, start: Numbers, to: Numbers, length: Numbers, frames: int) -> list[Run]:
    """To the clip's end, on from its beginning, and then what there is, each time twice as much."""
    first = np.minimum(length - start, frames)
    found: list[Run] = [(row, start, to, first)]
    short = np.flatnonzero(length <= frames)
    found.append((row[short], 0, to[short] + first[short], np.minimum(start, frames - first)[short]))
    done, to = length[short], to[short]
    while len(done):
        found.append((OUTPUT, to, to + done, np.minimum(done, frames - done)))
        is_more = 2 * done < frames
        done, to = 2 * done[is_more], to[is_more]
    return found


def _centred(row: Numbers, start: Numbers, to: Numbers, length: Numbers, frames: int) -> list[Run]:
    """Zeros, what there is, zeros."""
    lead = _lead(length, frames)
    before = np.maximum(lead - start, 0)
    at = np.maximum(start - lead, 0)
    there = np.minimum(length - at, frames - before)
    behind = before + there
    return [
        (ZEROS, 0, to, before),
        (row, at, to + before, there),
        (ZEROS, 0, to + behind, frames - behind),
    ]


def _lead(length: Numbers, frames: int) -> Numbers:
    return np.where(length <= frames, (frames - length + 1) // 2, 0)
