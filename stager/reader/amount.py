"""Amounts of bytes, as stager.toml has them."""

import re
from dataclasses import dataclass
from typing import Any, Final

from stager.errors import UsageError

_UNITS: Final = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


@dataclass(frozen=True, slots=True)
class Amount:
    """So many bytes, or such a part of the disk."""

    bytes: int = 0
    fraction: float = 0.0

    def of(self, disk_bytes: int) -> int:
        """In bytes, on a disk of so many."""
        return self.bytes + int(self.fraction * disk_bytes)


def parse_amount(value: Any) -> Amount:
    """Bytes from 200GB, 1.5TiB or 1000000; a part of the disk from 60%."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[KMGT]I?B)?\s*", str(value).upper())
    if isinstance(value, bool) or match is None:
        raise UsageError(f"{value!r} is not an amount", hint='use "200GB", "1.5TiB" or "60%"')
    number, unit = float(match[1]), match[2] or ""
    if unit == "%":
        if number > 100:
            raise UsageError(f"{value} is more than the disk", hint="use at most 100%")
        return Amount(fraction=number / 100)
    return Amount(bytes=int(number * _UNITS[unit]))
