"""What every ComputedLayout promises. Subclass, say how to make one, inherit the tests."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from making import Listed
from stager.interfaces import ComputedLayout
from stager.reader.samples.computed.rules import Rule, open_rule
from stager.reader.samples.manifest import ComputedManifest, Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.segments import read_segment
from stager.reader.values import version_of
from stager.scan.scan import Known, Scan, write_manifest

FEW = 200


class ComputedLayoutContract:
    """`listing`: what it may read of its source."""

    listing: ClassVar[Listed] = Listed([])

    def make(self) -> ComputedLayout:
        raise NotImplementedError("say how to make one")

    def grown(self) -> ComputedLayout:
        raise NotImplementedError("one that has more samples, and those of before")

    def other(self) -> ComputedLayout:
        raise NotImplementedError("one whose samples are other ones")

    def test_rules_are_always_the_same_and_survive_json(self) -> None:
        rules = self.make().rules(self.listing)
        assert list(rules) == list(self.make().rules(self.listing))
        assert [open_rule(rule.to_json()) for rule in rules] == list(rules)

    def test_each_sample_has_a_key_of_its_own_by_which_it_is_found(self) -> None:
        for rule in self.make().rules(self.listing):
            keys = rule.keys(np.asarray(rows_of(rule)))
            assert len(set(keys)) == len(keys)
            assert [rule.find(key) for key in keys] == rows_of(rule)
            for key in ("", "x", f"{keys[0]} ", f"0{keys[0]}", f"-{keys[0]}", f"{keys[0]}/"):
                assert rule.find(key) is None, key

    def test_a_version_covers_all_that_makes_a_sample(self) -> None:
        for rule in self.make().rules(self.listing):
            for info in rule.infos(np.asarray(rows_of(rule))):
                assert info.version == version_of(info.key, info.parts, info.at, info.inputs)

    def test_more_samples_keep_their_numbers_and_others_have_none_of_them(self, tmp_path: Path) -> None:
        first = self.scanned(tmp_path / "1", self.make())
        grown = self.scanned(tmp_path / "2", self.grown(), first.records)
        assert len(grown) > len(first)
        assert set(first.numbers[:].tolist()) < set(grown.numbers[:].tolist())
        other = self.scanned(tmp_path / "3", self.other(), grown.records)
        assert not set(other.numbers[:].tolist()) & set(grown.numbers[:].tolist())
        again = self.scanned(tmp_path / "4", self.make(), other.records)
        assert (again.digest, again.numbers.runs) == (first.digest, first.numbers.runs)

    def scanned(
        self, path: Path, layout: ComputedLayout, records: SampleList | None = None
    ) -> ComputedManifest:
        records = records or SampleList("0" * 32, (), ())
        write_manifest(path, layout, self.listing, Known(records))
        for segment in Scan(path).segments:
            records = records.plus(segment.name, read_segment(segment))
        manifest = Manifest.open(path, records)
        assert isinstance(manifest, ComputedManifest)
        return manifest


def rows_of(rule: Rule) -> list[int]:
    """Some rows of a rule: the first, the last, and some between."""
    return sorted({*np.linspace(0, rule.count - 1, FEW).astype(int).tolist()})
