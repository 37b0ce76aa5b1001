"""How much memory there is for the page cache."""

from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup/memory.max")  # of a container, as it sees itself


def memory_bytes() -> int:
    """Memory that is free or can be freed, and not more than a container may have. 0: nobody says."""
    available = 0
    with suppress(OSError, ValueError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):  # "max": as much as there is
        available = min(available, int(CGROUP.read_text()))
    return available
