"""A scan of some folders gives the version that a scan of everything gives: any tree, any change."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stager.cache.cache import Cache
from stager.config import Config
from stager.interfaces import Scanning
from stager.reader.amount import Amount
from stager.reader.record import DatasetSpec
from stager.reader.samples.manifest import ListedManifest, Manifest
from stager.reader.values import SourceSpec
from stager.recipes import open_recipe
from stager.scan.scan import NOTHING_KNOWN, Known, Scan
from stager.sources import open_source
from stager.sources.mount.asked import Asked
from stager.sources.mount.relisting import relist
from stager.worker.messages import KnownVersion, ListPlace, Relist, ScanSource
from stager.worker.scanning import ScanProgress, scan

NAMES = ("a", "b", "a-b", "train", "val", "x y")  # "a-b" sorts before what is in "a", and after "a" itself
FILES = ("1.jpg", "2.jpg", "a.jpg", "b-.JPG", "note.txt")
REST_S = 0.0
PAST_S = 1_700_000_000

folders = st.lists(st.sampled_from(NAMES), max_size=3).map("/".join)
files = st.tuples(folders, st.sampled_from(FILES))
changes = st.one_of(
    st.tuples(st.just("write"), folders, st.sampled_from(FILES)),
    st.tuples(st.just("remove"), folders, st.sampled_from(FILES)),
    st.tuples(st.just("move"), folders, folders),
    st.tuples(st.just("remove_tree"), folders, st.just("")),
)


class Tree:
    """A directory, and which of its folders changed, as a watch hears of it."""

    def __init__(self, root: Path, has_events: bool = True) -> None:
        """`has_events`: else it is looked through, and each folder that changed is told of by itself."""
        self.root, self.has_events = root, has_events
        self.folders: set[str] = set()
        self.trees: set[str] = set()
        self.serial = 0

    def write(self, folder: str, name: str) -> None:
        above = self.root / folder
        new = next((one for one in (*reversed(above.parents), above) if not one.exists()), None)
        if new is not None:
            self._tree(new)
        above.mkdir(parents=True, exist_ok=True)
        path = above / name
        self.serial += 1
        path.write_bytes(b"x" * (self.serial % 7))
        os.utime(path, (PAST_S, PAST_S + self.serial))
        self.folders.add(folder)

    def remove(self, folder: str, name: str) -> None:
        (self.root / folder / name).unlink(missing_ok=True)
        self.folders.add(folder)

    def move(self, old: str, new: str) -> None:
        here, there = self.root / old, self.root / new
        if not old or not here.is_dir() or there.exists() or not there.parent.is_dir():
            return
        if there.is_relative_to(here):
            return
        here.rename(there)
        self._tree(here)
        self._tree(there)

    def remove_tree(self, folder: str, _: str) -> None:
        if folder and (self.root / folder).is_dir():
            shutil.rmtree(self.root / folder)
            self._tree(self.root / folder)

    def _tree(self, path: Path) -> None:
        if self.has_events:
            self.trees.add(path.relative_to(self.root).as_posix())
        elif path.is_dir():
            found = (below for below in (path, *path.rglob("*")) if below.is_dir())
            self.folders.update(below.relative_to(self.root).as_posix() for below in found)
        above = path.parent.relative_to(self.root).as_posix()
        self.folders.add("" if above == "." else above)

    def hints(self) -> Relist:
        told = Relist(tuple(sorted(self.folders)), tuple(sorted(self.trees)), True, REST_S)
        self.folders, self.trees = set(), set()
        return told


class Scans:
    """Scans of one directory, one after the other, each compared with the one before."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.spec = DatasetSpec("pets", SourceSpec(str(root)), "folder", {"kind": "image"})
        self.scratch, self.known, self.count = scratch, NOTHING_KNOWN, 0

    def scan(self, asked: Relist | None, known: Known) -> tuple[Scan, Manifest]:
        self.count += 1
        path = self.scratch / f"scan-{self.count}"
        recipe, source = open_recipe(self.spec.recipe), open_source(self.spec.source)
        place = ListPlace(self.scratch, known.records.lineage, ())
        before = None
        if known.newest is not None:
            before = KnownVersion(place, path, relist=known.relist, is_alike=True)
        task = ScanSource(1, self.spec, path, before, relist=asked)
        scan(task, source, recipe, known, ScanProgress(lambda _: None), Asked())
        return Scan(path), Scan(path).open(known.records)

    def take(self, asked: Relist | None) -> tuple[Scan, Manifest]:
        found, manifest = self.scan(asked, self.known)
        self.known = Known(manifest.records, manifest)
        return found, manifest


def content(manifest: Manifest) -> list[tuple[str, str, str, str]]:
    assert isinstance(manifest, ListedManifest)
    infos = manifest.records.infos(manifest.numbers)
    labels, splits = manifest.labels.tolist(), manifest.split_of.tolist()
    return [
        (info.key, info.version, manifest.classes[label], manifest.splits[split])
        for info, label, split in zip(infos, labels, splits, strict=True)
    ]


def build(root: Path, files: Iterable[tuple[str, str]], has_events: bool = True) -> Tree:
    tree = Tree(root, has_events)
    root.mkdir()
    for folder, name in files:
        tree.write(folder, name)
    return tree


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(files, max_size=25), st.lists(st.lists(changes, max_size=6), max_size=3), st.booleans())
def test_a_scan_of_what_changed_gives_the_version_of_a_scan_of_everything(
    first: list[tuple[str, str]], rounds: list[list[tuple[str, str, str]]], has_events: bool
) -> None:
    with TemporaryDirectory() as directory:
        tree = build(Path(directory, "pets"), first, has_events)
        scans = Scans(tree.root, Path(directory))
        scans.take(None)
        tree.hints()
        for changed in rounds:
            for act, one, other in changed:
                getattr(tree, act)(one, other)
            known = scans.known
            _, fresh = scans.scan(None, NOTHING_KNOWN)
            _, again = scans.take(tree.hints())
            assert again.digest == fresh.digest
            assert content(again) == content(fresh)
            assert (again.classes, again.splits, again.is_whole) == (
                fresh.classes,
                fresh.splits,
                fresh.is_whole,
            )
            if known.newest is not None:
                _, whole = scans.scan(None, known)  # whoever is known keeps their numbers
                assert set(whole.numbers[:].tolist()) == set(again.numbers[:].tolist())


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return build(tmp_path / "pets", [(folder, name) for folder in ("a", "b", "c") for name in FILES])


def test_only_the_folders_that_changed_are_listed(tree: Tree, tmp_path: Path) -> None:
    scans = Scans(tree.root, tmp_path)
    assert scans.take(None)[1].is_whole
    tree.hints()
    tree.write("b", "2.jpg")
    (tree.root / "a" / "1.jpg").unlink()  # of which nobody told
    found, again = scans.take(tree.hints())
    assert found.read_joins().is_part
    assert "a/1.jpg" in {key for key, *_ in content(again)}
    assert "a/1.jpg" not in {key for key, *_ in content(scans.take(None)[1])}


@pytest.mark.parametrize("link", ["b/link", "link"])
def test_where_there_is_a_link_everything_is_scanned(tree: Tree, tmp_path: Path, link: str) -> None:
    scans = Scans(tree.root, tmp_path)
    scans.take(None)
    (tree.root / link).symlink_to(tree.root / "a")
    tree.folders.add(link.rpartition("/")[0])
    found, linked = scans.take(tree.hints())
    assert not found.read_joins().is_part
    assert not linked.is_whole
    tree.write("a", "new.jpg")
    assert f"{link}/new.jpg" in {key for key, *_ in content(scans.take(tree.hints())[1])}


def test_after_a_scan_that_left_out_samples_everything_is_scanned(tmp_path: Path) -> None:
    tree = build(tmp_path / "pets", [("train", "1.jpg"), ("train/cat", "1.jpg"), ("val/cat", "1.jpg")])
    scans = Scans(tree.root, tmp_path)
    assert not scans.take(None)[1].is_whole  # train/1.jpg has no class
    tree.hints()
    tree.remove_tree("train/cat", "")
    tree.remove_tree("val/cat", "")
    found, again = scans.take(tree.hints())
    assert not found.read_joins().is_part
    assert [key for key, *_ in content(again)] == ["train/1.jpg"]


def test_a_file_that_somebody_still_writes_is_left_as_it_was_known_and_told_of(
    tree: Tree, tmp_path: Path
) -> None:
    scans = Scans(tree.root, tmp_path)
    before = content(scans.take(None)[1])
    tree.hints()
    for is_part in (True, False):
        (tree.root / "a" / "1.jpg").write_bytes(b"half")  # known in another version
        (tree.root / "b" / "new.jpg").write_bytes(b"half")
        tree.write("c", "3.jpg")
        asked = Relist(("a", "b", "c"), (), is_part, rest_s=60.0)
        path = tmp_path / f"look-{is_part}"
        source, recipe = open_source(scans.spec.source), open_recipe(scans.spec.recipe)
        place = KnownVersion(ListPlace(tmp_path, "", ()), path, relist=False, is_alike=True)
        task = ScanSource(1, scans.spec, path, place, relist=asked)
        told = scan(task, source, recipe, scans.known, ScanProgress(lambda _: None), Asked())
        assert told.unripe == ("a", "b")
        found = content(Scan(path).open(scans.known.records))
        assert [row for row in found if row[0] != "c/3.jpg"] == before
        assert "c/3.jpg" in {key for key, *_ in found}


def test_a_folder_that_became_a_file_or_a_link_has_no_samples_of_before(tree: Tree) -> None:
    shutil.rmtree(tree.root / "a")
    (tree.root / "a").write_bytes(b"")
    known = {"a", "b", "c"}
    found = relist(tree.root, {"a", ""}, (), known, Scanning(), Asked())
    assert found is not None
    assert found.has("a")
    assert not found.has("b")
    assert [info.key for info in found.objects] == ["a"]
    (tree.root / "a").unlink()
    (tree.root / "a").symlink_to(tree.root / "b")
    assert relist(tree.root, {"a"}, (), known, Scanning(), Asked()) is None


def test_a_scan_of_some_folders_counts_only_after_the_version_that_it_has_the_rest_of(
    tree: Tree, tmp_path: Path
) -> None:
    """Or a file would be back that went meanwhile, in a folder that it did not look at."""
    cache = Cache(Config(None, tmp_path / "cache", tmp_path / "sock", Amount(bytes=10**9), Amount()))
    scans = Scans(tree.root, cache.scratch)
    first, _ = scans.scan(None, NOTHING_KNOWN)
    dataset, _ = cache.adopt(scans.spec, first)
    known = Known(dataset.records, dataset.manifest)
    tree.hints()
    tree.write("a", "new.jpg")
    late, _ = scans.scan(tree.hints(), known)
    tree.remove("b", "1.jpg")
    gone, _ = scans.scan(tree.hints(), known)
    assert late.read_joins().is_part
    assert cache.fits(scans.spec, late)
    cache.adopt(scans.spec, gone)
    assert not cache.fits(scans.spec, late)
    cache.close()
