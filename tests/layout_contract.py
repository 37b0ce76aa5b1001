"""What every Layout promises. Subclass, say how to make one and for which objects, inherit the tests."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import Listed
from stager.interfaces import Entry, Layout
from stager.reader.samples.manifest import ListedManifest, Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.samples.sealed import read_tables
from stager.reader.samples.segments import read_segment
from stager.reader.values import ATTRIBUTE_TYPES, ObjectInfo, SampleInfo, encode_key, version_of
from stager.scan.found import find
from stager.scan.recall import Recall
from stager.scan.scan import Known, Scan, write_manifest

TYPES = {"bool": bool, "int64": int, "float64": float, "string": str}


class LayoutContract:
    """`objects`: what lies in the source, with at least three samples of two classes."""

    objects: Mapping[str, bytes]

    def make(self) -> Layout:
        raise NotImplementedError("say how to make one")

    def changed(self) -> str:
        """The key of an object that some samples are made of, and others are not."""
        raise NotImplementedError("say which")

    def test_each_sample_comes_once_and_always_in_the_same_order(self) -> None:
        first, second = self.entries(), self.entries()
        assert len(first) >= 3
        assert len({entry.key for entry in first}) == len(first)
        assert first == second

    def test_parts_are_of_objects_that_are_there_and_of_their_versions(self) -> None:
        known = {info.key: info for info in listing(self.objects)}
        for entry in self.entries():
            for part in entry.parts:
                assert part.info == known[part.info.key]
                assert 0 <= part.start <= part.start + part.size <= part.info.size

    def test_each_sample_has_a_value_of_each_attribute_or_none_of_its_type(self) -> None:
        layout = self.make()
        entries = list(layout.entries(listed(self.objects)))
        assert all(attribute.type in ATTRIBUTE_TYPES for attribute in layout.attributes)
        for entry in entries:
            assert len(entry.values) == len(layout.attributes)
            for value, attribute in zip(entry.values, layout.attributes, strict=True):
                assert value is None or type(value) is TYPES[attribute.type]

    def test_a_plain_layout_has_one_whole_object_a_sample_under_its_key(self) -> None:
        layout = self.make()
        for entry in layout.entries(listed(self.objects)):
            if layout.is_plain:
                assert [part.info.key for part in entry.parts] == [entry.key]
                assert (entry.parts[0].start, entry.parts[0].stop, entry.at, entry.inputs) == (
                    0,
                    None,
                    None,
                    (),
                )

    def test_every_path_has_a_split_and_a_class_or_is_left_out(self) -> None:
        layout = self.make()
        paths = {entry.path for entry in layout.entries(listed(self.objects))}
        said = layout.label(paths)
        assert set(said) <= paths
        assert len({name for _, name in said.values()}) >= 2

    def test_a_changed_object_changes_the_versions_of_its_samples_and_of_no_others(self) -> None:
        key = self.changed()
        before = {entry.key: version(entry) for entry in self.entries()}
        after = {entry.key: version(entry) for entry in self.entries(versions={key: "another"})}
        users = {entry.key for entry in self.entries() if key in [part.info.key for part in entry.parts]}
        assert users
        assert users != set(before)
        assert {key for key in before if before[key] != after[key]} == users

    def test_an_object_that_is_gone_takes_its_samples_with_it_and_no_others(self) -> None:
        key = self.changed()
        users = {entry.key for entry in self.entries() if key in [part.info.key for part in entry.parts]}
        left = {name: data for name, data in self.objects.items() if name != key}
        assert {entry.key for entry in self.entries(left)} == {entry.key for entry in self.entries()} - users

    def test_a_manifest_gives_back_what_the_layout_said(self, tmp_path: Path) -> None:
        manifest = self.scanned(tmp_path / "m")
        entries = {entry.key: entry for entry in self.entries()}
        infos = manifest.records.infos(manifest.numbers)
        assert [info.key for info in infos] == [manifest.key(place) for place in range(len(manifest))]
        for place, info in enumerate(infos):
            entry = entries[info.key]
            assert info == SampleInfo(entry.key, version(entry), entry.parts, entry.at, entry.inputs)
            for attribute, value in zip(manifest.attributes, entry.values, strict=True):
                (got,) = manifest.attribute(attribute.name, np.asarray([place])).to_pylist()
                assert got == value

    def test_a_second_scan_finds_every_sample_again(self, tmp_path: Path) -> None:
        first = self.scanned(tmp_path / "1")
        again = self.scanned(tmp_path / "2", first.records)
        assert again.digest == first.digest
        assert again.numbers.tolist() == first.numbers.tolist()
        assert not Scan(tmp_path / "2").segments

    def test_what_is_new_is_added_behind_what_was_there(self, tmp_path: Path) -> None:
        """Also when the samples before and after are of segments of their own."""
        key = self.changed()
        first = self.scanned(tmp_path / "1")
        write_manifest(
            tmp_path / "2", self.make(), listed(self.objects, {key: "another"}), Known(first.records)
        )
        (segment,) = Scan(tmp_path / "2").segments
        records = first.records.plus("2", read_segment(segment))
        again = Manifest.open(tmp_path / "2", records)
        assert len(again) == len(first)
        wanted = {entry.key: version(entry) for entry in self.entries(versions={key: "another"})}
        assert {info.key: info.version for info in records.infos(again.numbers)} == wanted
        _, *objects = read_tables(segment)
        assert not objects or len(objects[0]) < len(self.objects), "objects of older samples are not repeated"
        parts = {entry.key: entry.parts for entry in self.entries(versions={key: "another"})}
        assert {info.key: info.parts for info in records.infos(again.numbers)} == parts

    def test_samples_that_share_their_first_part_are_known_as_mates(self, tmp_path: Path) -> None:
        records = self.scanned(tmp_path / "m").records
        infos = records.infos(np.arange(len(records)))
        for number, info in enumerate(infos):
            shares = [
                other
                for other, mate in enumerate(infos)
                if other == number or mate.parts[:1] == info.parts[:1]
            ]
            assert records.mates(np.asarray([number])).tolist() == shares

    @pytest.mark.parametrize("count", [0, 1])
    def test_progress_is_told_to_the_end(self, count: int) -> None:
        told: list[int] = []
        found = find(self.make(), listed(self.objects), told.append)
        assert told[-1] >= len(found.table)

    def entries(
        self, objects: Mapping[str, bytes] | None = None, versions: Mapping[str, str] | None = None
    ) -> list[Entry]:
        return list(self.make().entries(listed(self.objects if objects is None else objects, versions)))

    def scanned(self, path: Path, records: SampleList | None = None) -> Manifest:
        records = records or SampleList("0" * 32, (), ())
        write_manifest(path, self.make(), listed(self.objects), Known(records))
        for segment in Scan(path).segments:
            records = records.plus(segment.name, read_segment(segment))
        return Manifest.open(path, records)


def version(entry: Entry) -> str:
    return version_of(entry.key, entry.parts, entry.at, entry.inputs)


class PackedContract(LayoutContract):
    """A layout whose objects have several samples: it looks into each."""

    def test_an_object_that_is_known_is_not_read_again(self, tmp_path: Path) -> None:
        manifest = self.scanned(tmp_path / "m")
        assert isinstance(manifest, ListedManifest)
        key = self.changed()
        again = listed(self.objects, {key: "another"})
        again.recall = Recall(manifest)
        entries = list(self.make().entries(again))
        assert {part.info.key for part in again.read_parts} == {key}
        wanted = {entry.key: entry for entry in self.entries(versions={key: "another"})}
        assert {entry.key: entry for entry in entries} == wanted


def listing(objects: Mapping[str, bytes], versions: Mapping[str, str] | None = None) -> Iterable[ObjectInfo]:
    for key in sorted(objects, key=encode_key):
        yield ObjectInfo(key, len(objects[key]), (versions or {}).get(key, f"v-{key}"))


def listed(objects: Mapping[str, bytes], versions: Mapping[str, str] | None = None) -> Any:
    return Listed(list(listing(objects, versions)), objects)
