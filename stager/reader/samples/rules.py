"""Computed samples: all there is to know of a million of them follows from a rule of a few values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from stager.errors import CacheError
from stager.reader.values import Numbers, SampleInfo, version_of


class Rule(Protocol):
    """It has no state. Rows count from 0, and each follows from the rule alone."""

    @property
    def count(self) -> int:
        """How many samples there are."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the first samples follow from, however many there are: of JSON's values."""

    def key(self, row: int) -> str: ...

    def find(self, key: str) -> int | None:
        """The row of a key, or None."""

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        """What these samples are made of."""

    def mates(self, rows: Numbers) -> Numbers:
        """Those, and all rows that share an object with one of them, in rising order."""

    def cost(self, samples: int) -> tuple[int, int]:
        """How many requests it takes to have so many samples, and how many bytes."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Generated:
    """Samples that a function makes of their number and a seed. They have no parts."""

    count: int
    seed: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "generated", "seed": self.seed}

    def key(self, row: int) -> str:
        return str(row)

    def find(self, key: str) -> int | None:
        is_number = key.isascii() and key.isdecimal() and (key == "0" or key[0] != "0")
        return int(key) if is_number and len(key) < 20 and int(key) < self.count else None

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        made = []
        for row in rows.tolist():
            key, inputs = self.key(row), (row, self.seed)
            made.append(SampleInfo(key, version_of(key, (), None, inputs), (), None, inputs))
        return made

    def mates(self, rows: Numbers) -> Numbers:
        return rows

    def cost(self, samples: int) -> tuple[int, int]:
        return 0, 0

    def to_json(self) -> dict[str, Any]:
        return {"kind": "generated", **asdict(self)}


RULES: Final = {"generated": Generated}


def open_rule(value: Mapping[str, Any]) -> Rule:
    """The rule of its `to_json`. Raise CacheError if it is none of ours."""
    settings = dict(value)
    kind = settings.pop("kind", None)
    if kind not in RULES:
        raise CacheError(
            f"samples by the rule {kind!r}, which this stager does not know",
            hint="use one version of stager for the service and the clients",
        )
    return RULES[kind](**settings)
