"""How busy the cores are with what others do, as the kernel tells it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from stager.clock import Clock

STAT: Final = Path("/proc/stat")
BUSY: Final = (0, 2, 5, 6, 7)  # user, system, irq, softirq, steal: not nice, which gives way to us all
COLUMNS: Final = 8  # what comes behind is counted before already
LOOK_S: Final = 2.0  # over so long, at least


def ticks() -> tuple[int, int]:
    """Of all cores since the start of the machine: busy with others, and all there were. (0, 0): not told."""
    try:
        told = [int(value) for value in STAT.read_text().split("\n", 1)[0].split()[1 : COLUMNS + 1]]
        return sum(told[at] for at in BUSY), sum(told)
    except (OSError, ValueError, IndexError):
        return 0, 0


class Cores:
    """Which part of the cores others use. Ours for jobs are niced, and do not count."""

    def __init__(self, clock: Clock, ticks: Callable[[], tuple[int, int]] = ticks) -> None:
        self._clock, self._ticks = clock, ticks
        self._seen = ticks()
        self._seen_at = clock.now()
        self._busy = 1.0  # until we know better

    def busy(self) -> float:
        """The part of all cores that was in use lately, from 0 to 1; 1: it is not known yet."""
        now = self._clock.now()
        if now - self._seen_at >= LOOK_S:
            before, self._seen, self._seen_at = self._seen, self._ticks(), now
            used, whole = (new - old for new, old in zip(self._seen, before, strict=True))
            self._busy = used / whole if whole > 0 else 0.0
        return self._busy
