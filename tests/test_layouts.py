"""Labels and splits as people have them on disk, and a word on all that was left out."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest

from making import folder_layout, jpeg, manifest_of, scanned
from places import FolderPlace
from running import Place
from sets import manifest_at, table
from stager.interfaces import LeftOut, Scanning
from stager.reader.samples.manifest import Manifest
from stager.reader.values import ObjectInfo, Part
from stager.recipes import open_recipe
from stager.sources.mount.directory import DirectorySource

TWO_SPLITS = [f"{split}/{name}/1.jpg" for split in ("train", "val") for name in "ab"]

IMAGES = open_recipe({"kind": "image"}).takes


def told_of(tmp_path: Path, keys: Iterable[str]) -> tuple[Manifest, str]:
    left_out = LeftOut(IMAGES)
    infos = [ObjectInfo(key, 1, "v") for key in sorted(keys)]
    manifest = scanned(tmp_path / "m", infos, layout=folder_layout(left_out))
    return manifest, left_out.line()


def labelled(manifest: Manifest) -> dict[str, tuple[str, str]]:
    return {
        manifest.key(n): (
            manifest.splits[manifest.split_of[n]],
            manifest.classes[manifest.labels[n]],
        )
        for n in range(len(manifest))
    }


def test_a_flat_split_beside_others_makes_no_class_and_is_left_out_loudly(tmp_path: Path) -> None:
    manifest, line = told_of(tmp_path, [*TWO_SPLITS, "test/1.jpg", "test/2.jpg"])
    assert (manifest.classes, manifest.splits) == (("a", "b"), ("train", "val"))
    assert labelled(manifest) == {key: (key.split("/")[0], key.split("/")[1]) for key in TWO_SPLITS}
    assert line == "left out: 2 images of a split that are in no class folder"


def test_a_split_that_has_classes_and_loose_images_keeps_the_classes(tmp_path: Path) -> None:
    manifest, line = told_of(tmp_path, [*TWO_SPLITS, "test/a/1.jpg", "test/loose.jpg", "test/z.jpg"])
    assert (manifest.classes, manifest.splits) == (("a", "b"), ("test", "train", "val"))
    assert len(manifest) == 5
    assert line == "left out: 2 images of a split that are in no class folder"


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (["Train", "Val"], ["train", "val"]),
        (["TRAIN", "TEST"], ["test", "train"]),
        (["Training", "Validation", "Testing"], ["test", "train", "validation"]),
        (["training", "dev", "valid"], ["dev", "train", "valid"]),
    ],
)
def test_splits_are_known_however_they_are_spelt(
    tmp_path: Path, folders: list[str], splits: list[str]
) -> None:
    keys = [f"{folder}/{name}/1.jpg" for folder in folders for name in "ab"]
    manifest = manifest_of(tmp_path / "m", keys)
    assert (list(manifest.classes), list(manifest.splits)) == (["a", "b"], splits)


def test_folders_called_as_splits_that_have_no_classes_are_classes(tmp_path: Path) -> None:
    manifest, line = told_of(tmp_path, ["train/1.jpg", "test/1.jpg"])
    assert (manifest.classes, manifest.splits, line) == (("test", "train"), ("",), "")
    manifest, line = told_of(tmp_path, ["train/1.jpg", "train/a/1.jpg", "boat/1.jpg"])
    assert (manifest.classes, manifest.splits, line) == (("boat", "train"), ("",), "")


def test_what_is_left_out_is_counted_by_reason_and_ending(tmp_path: Path) -> None:
    keys = ["a/1.jpg", "top.jpg", *(f"a/{n}.HEIC" for n in range(12)), *(f"b/{n}.txt" for n in range(5))]
    assert told_of(tmp_path, keys)[1] == (
        "left out: 1 image in no folder, 17 files that are no images: 12 .heic, 5 .txt"
    )
    assert told_of(tmp_path, ["a/1.jpg", "a/x"])[1] == "left out: 1 file that is no image: 1 other"
    many = [f"a/1.e{n}" for n in range(9) for _ in range(1)]
    assert told_of(tmp_path, many)[1].endswith(": 1 .e0, 1 .e1, 1 .e2, 1 .e3, 1 .e4, 4 others")
    odd = told_of(tmp_path, ["a/1.\x1b[31m", "a/2.\u202egpj", "a/3." + "x" * 99])[1]
    assert odd == "left out: 3 files that are no images: 3 others"


@pytest.fixture
def folder(tmp_path: Path) -> FolderPlace:
    place = FolderPlace(tmp_path / "root")
    for key in ("b/1.jpg", "d/1.jpg", ".store/a/1.jpg", ".store/c/1.jpg", ".store/c/2.jpg"):
        place.put(key, key.encode())
    return place


def walked(folder: FolderPlace) -> tuple[list[str], str]:
    scanning = Scanning()
    keys = [info.key for info in DirectorySource(folder.root).scan(scanning)]
    return keys, scanning.left_out.line()


def test_class_folders_that_are_links_inside_the_source_are_followed_under_their_own_names(
    folder: FolderPlace,
) -> None:
    (folder.root / "a").symlink_to(".store/a")
    (folder.root / "c").symlink_to(folder.root / ".store/c")
    keys, line = walked(folder)
    assert (keys, line) == (["a/1.jpg", "b/1.jpg", "c/1.jpg", "c/2.jpg", "d/1.jpg"], "")
    source = folder.open()
    assert {info.key: bytes(source.read(Part(info))) for info in source.scan()}[
        "c/2.jpg"
    ] == b".store/c/2.jpg"


def test_links_in_circles_end_and_links_that_lead_out_are_never_followed(
    folder: FolderPlace, tmp_path: Path
) -> None:
    (tmp_path / "outside/x").mkdir(parents=True)
    (tmp_path / "outside/x/1.jpg").write_bytes(b"secret")
    for name, target in {
        "b/up": "..",
        "b/self": ".",
        "d/to-b": "../b",  # in b, `up` and `self` are circles again
        "out": "../outside/x",
        "out-and-in": "../root/../outside",
        "file-out": "../outside/x/1.jpg",
        "nowhere": "nothing",
    }.items():
        (folder.root / name).symlink_to(target)
    keys, line = walked(folder)
    assert keys == ["b/1.jpg", "d/1.jpg", "d/to-b/1.jpg"]
    assert line == "left out: 3 links that lead out, 1 link that leads nowhere, 4 links in a circle"


def test_many_links_across_end_too(folder: FolderPlace) -> None:
    """Each of ten folders has links to all others: there are 10! ways through them."""
    for one in range(10):
        folder.put(f"{one}/1.jpg", b"")
        for other in range(10):
            if one != other:
                (folder.root / f"{one}/{other}").symlink_to(f"../{other}")
    keys, line = walked(folder)
    assert len(keys) < 10_000
    assert "links in a circle" in line


@pytest.mark.parametrize("has_service", [True, False])
def test_who_prefetches_is_told_what_was_left_out_and_reads_the_labels_of_imagefolder(
    tmp_path: Path, has_service: bool
) -> None:
    folder = FolderPlace(tmp_path / "data")
    for n, key in enumerate(["Train/a/1.jpg", "Train/c/1.jpg", "Val/a/1.jpg", ".b/1.jpg", "Test/1.jpg"]):
        folder.put(key, jpeg(n))
    folder.put("Train/a/notes.txt", b"")
    (folder.root / "Train/b").symlink_to("../.b")
    (folder.root / "Train/d").symlink_to("/etc")
    place = Place(tmp_path).configure(table("data", folder.root))
    line = (
        "left out: 1 link that leads out, 1 image of a split that is in no class folder,"
        " 1 file that is no image: 1 .txt"
    )
    with place.service() if has_service else nullcontext():
        done = place.run("prefetch", "data", "--split", "train")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(line) == 1
    assert not has_service or line in place.log()
    manifest = manifest_at(place, "data")
    assert (manifest.classes, manifest.splits) == (("a", "b", "c"), ("train", "val"))
