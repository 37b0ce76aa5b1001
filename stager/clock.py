"""What time it is. The loop, and all it decides by, is handed a clock: one is read here and at the edges."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    """Two readings: one that only goes forward, for waits, and the wall's, for people."""

    def now(self) -> float:
        """Seconds that only go forward, whatever is done to the wall clock."""

    def wall(self) -> float:
        """Seconds since 1970, as people have it."""


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


SYSTEM: Final = SystemClock()
