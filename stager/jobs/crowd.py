"""How many others want the cores while a job is worked on, as the kernel tells it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stager.clock import Clock

LOADAVG: Final = Path("/proc/loadavg")
LOOK_S: Final = 0.05  # at most so often
PLANNING: Final = 2  # threads of ours that run while a job is planned: the one that looks, and a worker's


def runnable() -> int:
    """How many threads of the whole machine run, or want to; the one that asks is among them."""
    try:
        return int(LOADAVG.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0  # nobody tells: as if the machine were ours


@dataclass(slots=True)
class Crowd:
    """What was seen in some looks."""

    looks: int = 0
    threads: int = 0

    def saw(self, threads: int) -> None:
        self.looks, self.threads = self.looks + 1, self.threads + threads

    def others(self, ours: int) -> float:
        """Threads of others in the mean, if so many of ours wanted to run."""
        return max(self.threads / self.looks - ours, 0.0) if self.looks else 0.0


class Looker:
    """Looks now and then."""

    def __init__(self, clock: Clock, runnable: Callable[[], int] = runnable) -> None:
        self._clock, self._runnable = clock, runnable
        self._look_at = clock.now()

    def look(self) -> int | None:
        """How many threads want to run now; None: we have looked a moment ago."""
        now = self._clock.now()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        return self._runnable()


def crowding(others: float, ours: int, cores: int | None = None) -> float:
    """How many times as long so many threads of ours take, if so many of others want the same cores.

    The kernel gives all of them the same share.
    """
    cores = cores or os.cpu_count() or 1
    return max(others + ours, cores) / max(ours, cores)
