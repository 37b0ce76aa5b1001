"""Computed samples: all there is to know of a million of them follows from a rule of a few values."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from stager.errors import CacheError
from stager.reader.samples.computed.bricks import Bricks
from stager.reader.samples.computed.listed import Listed
from stager.reader.samples.runs import Runs
from stager.reader.values import Numbers, SampleInfo, Unpacked, is_number, version_of


class Rule(Protocol):
    """It has no state. Rows count from 0, and each follows from the rule alone."""

    @property
    def count(self) -> int:
        """How many samples there are."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the first samples follow from, however many there are: of JSON's values.

        What a listing told is not of it.
        """

    def keys(self, rows: Numbers) -> list[str]: ...

    def versions(self, rows: Numbers) -> list[str]: ...

    def find(self, key: str) -> int | None:
        """The row of a key, or None."""

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        """What these samples are made of."""

    def mates(self, rows: Numbers) -> Numbers:
        """Those, and all rows that share their first part with one of them, in rising order."""

    def firsts(self, rows: Numbers) -> Numbers:
        """Of each of these: the first row that is fetched with it."""

    def unpacked(self, rows: Numbers) -> list[Unpacked]:
        """What has to be unpacked for these."""

    def cost(self, samples: int) -> tuple[int, int]:
        """How many requests it takes to have so many samples, and how many bytes."""

    def changed(self, before: "Rule", rows: Runs) -> Runs:
        """Of these rows, in rising order, those that have another version by a rule of the same identity."""

    def lacking(self, before: "Rule", rows: Runs) -> Runs:
        """Of these rows, those of which an object is not there that was by a rule of the same identity.

        Both rules know these rows: `narrowed` has them.
        """

    def narrowed(self, rows: Runs) -> "Rule":
        """The same for these rows, which need not all that a listing told."""

    @property
    def table(self) -> pa.Table | None:
        """What a listing told; None: nothing."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Generated:
    """Samples that a function makes of an index and a seed. They have no parts.

    With several variants of each index, the function is given the variant, too, and keys are as 17/3.
    """

    count: int  # with all variants
    seed: int = 0
    variants: int = 1

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "generated", "seed": self.seed, "variants": self.variants}

    def keys(self, rows: Numbers) -> list[str]:
        return ["/".join(map(str, self._place(row))) for row in rows.tolist()]

    def versions(self, rows: Numbers) -> list[str]:
        return [info.version for info in self.infos(rows)]

    def find(self, key: str) -> int | None:
        numbers = key.split("/")
        if not all(map(is_number, numbers)) or len(numbers) != len(self._place(0)):
            return None
        index, variant = int(numbers[0]), int(numbers[-1]) if self.variants > 1 else 0
        row = index * self.variants + variant
        return row if variant < self.variants and row < self.count else None

    def infos(self, rows: Numbers) -> list[SampleInfo]:
        made = []
        for row, key in zip(rows.tolist(), self.keys(rows), strict=True):
            index, *variant = self._place(row)
            inputs = (index, self.seed, *variant)
            made.append(SampleInfo(key, version_of(key, (), None, inputs), (), None, inputs))
        return made

    def _place(self, row: int) -> tuple[int, ...]:
        """The index; and the variant, if there are several."""
        return divmod(row, self.variants) if self.variants > 1 else (row,)

    def mates(self, rows: Numbers) -> Numbers:
        return rows

    def firsts(self, rows: Numbers) -> Numbers:
        return rows

    def unpacked(self, rows: Numbers) -> list[Unpacked]:
        return []

    def cost(self, samples: int) -> tuple[int, int]:
        return 0, 0

    def changed(self, before: Rule, rows: Runs) -> Runs:
        return Runs(())

    def lacking(self, before: Rule, rows: Runs) -> Runs:
        return Runs(())

    def narrowed(self, rows: Runs) -> Rule:
        return self

    @property
    def table(self) -> pa.Table | None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "generated", **asdict(self)}


RULES: Final[Mapping[str, Callable[..., Rule]]] = {"generated": Generated, "bricks": Bricks}


def open_rule(value: Mapping[str, Any], *tables: pa.Table) -> Rule:
    """The rule of its `to_json`, and of the table beside that. Raise CacheError if it is none of ours."""
    settings = dict(value)
    kind = settings.pop("kind", None)
    if kind not in RULES:
        raise CacheError(
            f"samples by the rule {kind!r}, which this stager does not know",
            hint="use one version of stager for the service and the clients",
        )
    if "listed" in settings:
        settings["listed"] = Listed(*tables)
    return RULES[kind](**settings)
