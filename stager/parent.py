"""A process that is worth nothing without the one that started it."""

import ctypes
import os
import signal
import sys
from typing import Final

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG


def die_with(parent: int) -> None:
    """Have the kernel kill this process at the end of the thread that started it, of the process `parent`."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()  # it ended before that could be said
