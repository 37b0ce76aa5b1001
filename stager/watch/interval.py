"""How often a watched source is looked at, where nobody tells of its changes."""

import re
from typing import Any, Final

from stager.errors import UsageError

RESCAN_EVERY_S: Final = 30.0  # the folders of a mount
LIST_EVERY_S: Final = 300.0  # a bucket: each listing costs money
EVERY_LEAST_S: Final = 1.0
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}
_EVERY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h)")


def parse_interval(value: Any) -> float:
    """The seconds of "30s", "5min" or "1h". Raise UsageError."""
    found = _EVERY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise UsageError(f"{value!r} is no interval", hint='write it as "30s", "5min" or "1h"')
    every_s = float(found[1]) * _UNITS[found[2]]
    if every_s < EVERY_LEAST_S:
        raise UsageError(f"{value!r} is too short an interval", hint=f'"{EVERY_LEAST_S:.0f}s" is the least')
    return every_s
