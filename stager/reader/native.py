"""Loops in C, which run without Python's lock: here, those that copy rows, or pieces of them, into a batch.

Where C was not compiled, each has a stand-in. STAGER_NATIVE=0 turns all of it off.
"""

import ctypes
import importlib.machinery
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import CDLL, addressof, c_char, c_int, c_int64, c_void_p
from pathlib import Path

import numpy as np


def is_switched_off() -> bool:
    """Whether somebody asked for none of it."""
    return os.environ.get("STAGER_NATIVE") == "0"


def load(folder: Path, names: Sequence[str], declare: Callable[[CDLL], CDLL]) -> CDLL | None:
    """The first of these libraries that is there and fits; None: there is none, or it is switched off."""
    for name in names if not is_switched_off() else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = folder / (name + suffix)
            if path.exists():
                # Made for another machine, or what it links is gone; or made from sources of another day.
                with suppress(OSError, AttributeError):
                    return declare(ctypes.CDLL(str(path)))
    return None


def address_of(data: memoryview) -> int:
    """Where contiguous bytes lie."""
    try:
        return addressof(c_char.from_buffer(data))
    except (TypeError, ValueError):  # read-only, or none at all: NumPy takes these, in five times the time
        return np.frombuffer(data, np.uint8).ctypes.data


def declare(library: CDLL) -> CDLL:
    """Tell ctypes what the functions take. Raise AttributeError if one is missing."""
    library.stager_read_samples.argtypes = (c_void_p, c_int64, *[c_void_p] * 5)
    library.stager_read_samples.restype = c_int64
    library.stager_find_rows.argtypes = (c_void_p, c_int64, *[c_void_p] * 6)
    library.stager_copy_pieces.argtypes = (c_void_p, c_int64, *[c_void_p] * 3, c_int64, c_void_p)
    library.stager_find_rows.restype = library.stager_copy_pieces.restype = c_int64
    library.stager_read_ahead.argtypes, library.stager_read_ahead.restype = (c_int64, *[c_void_p] * 3), None
    library.stager_map.argtypes, library.stager_map.restype = (c_int, c_void_p), c_void_p
    library.stager_unmap.argtypes, library.stager_unmap.restype = (c_void_p, c_int64), None
    return library


library = load(Path(__file__).parent, ("_native",), declare)
