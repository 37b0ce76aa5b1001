"""Work that nobody waits for gives way to all others on the machine: to a training, above all.

Whoever is not root cannot take that back. So it is a matter of the whole process: what readers wait for has
processes of its own. Not SCHED_IDLE: where all cores are busy it comes to run so seldom that a request to the
source runs out of its time.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

NICE: Final = 19  # a 68th of what others get, for each thread
# Each session of processes shares the cores with the others as a whole, however nice its threads are; a
# worker is a session. This is a 45th, for all its threads.
SESSION_NICE: Final = 17
SESSION: Final = Path("/proc/self/autogroup")
THREADS: Final = Path("/proc/self/task")
BURST_S: Final = 0.1  # of cores, that may be used before they are due
LOOK_EVERY_S: Final = 0.5  # while it waits, whether the share is another one by now


class Share:
    """No more of the cores than a person allows, by all threads that prepare."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.cores: float | None = None  # seconds of a core each second; None: as many as there are
        self._clock, self._sleep = clock, sleep
        self._due_s = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Until there is some of it left."""
        while self.cores is not None and (wait_s := self._due_s - self._clock() - BURST_S) > 0:
            self._sleep(min(wait_s, LOOK_EVERY_S))

    def used(self, seconds: float) -> None:
        """A thread was at work for so long."""
        if (cores := self.cores) is not None:
            with self._lock:
                self._due_s = max(self._due_s, self._clock()) + seconds / cores


def give_way() -> None:
    """Have all threads of this process, and those that come, run when others leave them a core."""
    for thread in THREADS.iterdir():
        with suppress(OSError):  # it has ended, or a sandbox does not let us
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
    with suppress(OSError):  # a kernel without, or a process that is in a control group
        SESSION.write_text(str(SESSION_NICE))
