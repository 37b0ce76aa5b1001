"""Every sample that a data set ever had, by its number: an append-only list of immutable segments.

A *number* is for life: one version of one key has it, in every manifest, index and shard of this data set on
this machine, and nobody else ever gets it. A *place* is a row of a manifest, a *position* is in a subset.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.reader.samples.computed.rules import Rule
from stager.reader.samples.runs import Collection, Runs
from stager.reader.samples.segments import (
    ComputedSegment,
    ListedSegment,
    Segment,
    by_segment,
    empty_batch,
    read_segment,
)
from stager.reader.values import Numbers, SampleInfo, Unpacked, canonical_json, sample_tag

NUMBERS_MAX: Final = 0xFFFFFFFF  # 32 bits, and the last one says "gone"


class SampleList:
    """The list as it was when it was opened. Later segments only add to it."""

    def __init__(self, lineage: str, names: Sequence[str], segments: Sequence[Segment]) -> None:
        self.lineage, self.names = lineage, tuple(names)
        self.segments: tuple[Segment, ...] = tuple(segments) or (ListedSegment(empty_batch()),)
        self._ends: Numbers = np.cumsum([len(segment) for segment in self.segments])
        self.is_plain = all(segment.is_plain for segment in self.segments)
        self.is_computed = any(isinstance(segment, ComputedSegment) for segment in self.segments)

    @classmethod
    def open(cls, directory: Path, lineage: str, names: Iterable[str]) -> "SampleList":
        """Raise CacheError if a segment is missing or damaged."""
        names = tuple(names)
        return cls(lineage, names, [read_segment(directory / name) for name in names])

    def plus(self, name: str, segment: Segment) -> "SampleList":
        """The list with one more segment."""
        return SampleList(
            self.lineage, (*self.names, name), [*self.segments, segment] if self.names else [segment]
        )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def key(self, number: int) -> str:
        segment, row = self._find(number)
        return self.segments[segment].key(row)

    def tag(self, number: int) -> int:
        """A hash of key and version: a row in a shard says by it whose it is."""
        segment, row = self._find(number)
        return int(self.segments[segment].values("tag", slice(row, row + 1))[0])

    def tags(self, numbers: Numbers) -> list[int]:
        """The same of several."""
        return [int(tag) for tag in self.values("tag", numbers)]

    def infos(self, numbers: Sequence[int] | Numbers) -> list[SampleInfo]:
        """What these samples are made of."""
        wanted = np.asarray(numbers, dtype=np.int64)
        if len(self.segments) == 1:
            return self.segments[0].infos(wanted)
        found: dict[int, SampleInfo] = {}
        for segment, here, rows in by_segment(self._ends, wanted):
            found |= dict(zip(here.tolist(), self.segments[segment].infos(rows), strict=True))
        return [found[at] for at in range(len(wanted))]

    def cost(self, numbers: Collection) -> tuple[int, int]:
        """How many requests it takes to have these samples, and how many bytes."""
        if isinstance(numbers, Runs):
            return self._cost_of_runs(numbers)
        if self.is_plain:
            return len(numbers), int(self.values("size", numbers).sum())
        parts = {part for info in self.infos(numbers) for part in info.parts}
        return len(parts), sum(part.size for part in parts)

    def _cost_of_runs(self, numbers: Runs) -> tuple[int, int]:
        """By the rules: nobody looks at a million samples."""
        rules = {self._families[start]: segment.rule for start, segment in self.computed()}
        costs = [rules[rule].cost(count) for rule, count in self.counts_of_rules(numbers).items()]
        return sum(requests for requests, _ in costs), sum(size_bytes for _, size_bytes in costs)

    def counts_of_rules(self, numbers: Runs) -> Counter[str]:
        """How many of these samples follow from each rule, by its identity."""
        counts = Counter[str]()
        for start, segment in self.computed():
            counts[self._families[start]] += len(numbers.both(Runs([(start, len(segment))])))
        return +counts

    def unpacked(self, numbers: Numbers) -> list[Unpacked]:
        """What has to be unpacked for these samples."""
        found: dict[Unpacked, None] = {}
        if self.is_computed:
            for number, _, rows in by_segment(self._ends, numbers):
                if isinstance(segment := self.segments[number], ComputedSegment):
                    found |= dict.fromkeys(segment.rule.unpacked(segment.of_rule[rows]))
        return list(found)

    def mates(self, numbers: Numbers) -> Numbers:
        """Those, and all samples that share their first part with one of them, in rising order."""
        found = [numbers]
        if not self.is_plain:
            for segment, _, rows in by_segment(self._ends, numbers):
                found += self._mates(segment, rows)
        return np.unique(np.concatenate(found))

    def _mates(self, number: int, rows: Numbers) -> Iterator[Numbers]:
        """Those of rows of a segment; of a rule, also in other segments: what changed has numbers there."""
        segment = self.segments[number]
        if not isinstance(segment, ComputedSegment):
            yield segment.mates(rows) + self._start(number)
            return
        mates = segment.rule.mates(segment.of_rule[rows])
        for first, other in self.computed():
            if self.is_of_one_rule(first, self._start(number)):
                at = other.of_rule.find(mates)
                yield at[at >= 0] + first

    def companies(self, numbers: Numbers) -> Numbers:
        """A number for each of these samples, alike for bricks of one chunk: they are fetched together."""
        found = numbers.copy()
        firsts = {family: first for first, family in reversed(self._families.items())}
        for number, here, rows in by_segment(self._ends, numbers):
            if isinstance(segment := self.segments[number], ComputedSegment):
                first = firsts[self._families[self._start(number)]]
                found[here] = first + segment.rule.firsts(segment.of_rule[rows])
        return found

    def is_of_one_rule(self, first: int, other: int) -> bool:
        """Whether two computed segments, by their first numbers, have rules of one identity."""
        return self._families[first] == self._families[other]

    @cached_property
    def _families(self) -> dict[int, str]:
        """Of each computed segment, by its first number: what its rule has in common with others."""
        return {first: canonical_json(segment.rule.identity) for first, segment in self.computed()}

    def as_the_source_has(self, numbers: Numbers) -> Numbers:
        """The same, so that what lies together in an object comes together."""
        if self.is_plain:
            return numbers
        found = [rows[np.argsort(self.segments[segment].ranks(rows), kind="stable")] + self._start(segment)
                 for segment, _, rows in by_segment(self._ends, numbers)]  # fmt: skip
        return np.concatenate([numbers[:0], *found])

    def column(self, name: str, numbers: Sequence[int] | Numbers) -> Any:
        """A column as Arrow has it, of these samples in this order."""
        wanted = np.asarray(numbers, dtype=np.int64)
        if (run := self._run(wanted)) is not None:
            return self.segments[run[0]].column(name, run[1])
        # Segment by segment: to take from a chunked array copies all of it.
        found = list(by_segment(self._ends, wanted))
        parts = [self.segments[segment].column(name, rows) for segment, _, rows in found]
        if len(parts) == 1:
            return parts[0]
        back = np.empty(len(wanted), dtype=np.int64)
        back[np.concatenate([here for _, here, _ in found])] = np.arange(len(wanted))
        return pa.concat_arrays(parts).take(pa.array(back))

    def values(self, name: str, numbers: Numbers) -> npt.NDArray[Any]:
        """`size`, `key_hash` or `tag` of these samples. Of a run of one segment it is no copy."""
        if (run := self._run(numbers)) is not None:
            return self.segments[run[0]].values(name, run[1])
        if len(self.segments) == 1:
            return np.asarray(self.segments[0].values(name, numbers))
        found = np.empty(len(numbers), np.int64 if name == "size" else np.uint64)
        for segment, here, rows in by_segment(self._ends, numbers):
            found[here] = self.segments[segment].values(name, rows)
        return found

    def listed(self) -> Numbers:
        """The numbers of all samples that have a record, in rising order."""
        runs = ((start, segment) for start, segment in self.starts() if isinstance(segment, ListedSegment))
        return np.concatenate(
            [np.zeros(0, np.int64), *(start + np.arange(len(segment)) for start, segment in runs)]
        )

    def computed(self) -> Iterator[tuple[int, ComputedSegment]]:
        """The segments that follow from rules, each with the number of its first sample."""
        for start, segment in self.starts():
            if isinstance(segment, ComputedSegment):
                yield start, segment

    def rules(self, numbers: Collection) -> Iterator[Rule]:
        """The rules that samples follow from, which are all of each, one rule after the other."""
        place = 0
        while place < len(numbers):
            segment = self.segments[self._find(int(numbers[place]))[0]]
            if not isinstance(segment, ComputedSegment):
                return
            yield segment.rule
            place += segment.rule.count

    def finder(self) -> Callable[[str, str], int]:
        """What finds the number of a sample by key and version; -1: there is none."""
        listed = self.listed()
        number_of = dict(zip(self.values("tag", listed).tolist(), listed.tolist(), strict=True))

        def find(key: str, version: str) -> int:
            for start, segment in self.computed():
                row = segment.find(key)
                if row is not None and segment.infos(np.asarray([row]))[0].version == version:
                    return start + row
            return int(number_of.get(sample_tag(key, version), -1))

        return find

    def starts(self) -> Iterator[tuple[int, Segment]]:
        """All segments, each with the number of its first sample."""
        for number, segment in enumerate(self.segments):
            yield self._start(number), segment

    def _run(self, numbers: npt.NDArray[Any]) -> tuple[int, slice] | None:
        """A segment and its rows, if these numbers are just those one after the other; else None."""
        if not len(numbers):
            return 0, slice(0, 0)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first != len(numbers) - 1 or (len(numbers) > 2 and not np.all(np.diff(numbers) == 1)):
            return None
        segment, row = self._find(first)
        return (segment, slice(row, row + len(numbers))) if last < self._ends[segment] else None

    def _find(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(f"no sample has the number {number}")
        segment = int(np.searchsorted(self._ends, number, side="right"))
        return segment, number - self._start(segment)

    def _start(self, segment: int) -> int:
        return int(self._ends[segment - 1]) if segment else 0
