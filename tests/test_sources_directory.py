"""What is special to directories: links, hidden and odd names, permissions, and mounts that fail."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from contracts import only, read, refusal
from places import FolderPlace
from stager.errors import ObjectBusy, SampleError, SourceBusy, SourceForbidden, SourceNotFound
from stager.reader.values import Part, encode_key
from stager.sources.mount.directory import DirectorySource
from stager.sources.retry import RetryingSource
from stager.sources.threads import ThreadedSource

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path)


def test_hidden_files_and_what_is_in_hidden_folders_are_no_objects(folder: FolderPlace) -> None:
    for key in (".hidden", ".git/config", "a/.DS_Store", "a/seen"):
        folder.put(key, b"")
    assert [info.key for info in folder.open().scan()] == ["a/seen"]


def test_a_name_that_is_no_utf8_comes_back_as_its_bytes(folder: FolderPlace) -> None:
    name = b"caf\xe9/\xff\xfe.jpg"
    folder.put(os.fsdecode(name), b"data")
    source = folder.open()
    assert encode_key(only(source).key) == name
    assert bytes(source.read(Part(only(source)))) == b"data"


def test_a_backslash_is_a_letter(folder: FolderPlace) -> None:
    folder.put("a\\b", b"data")
    assert only(folder.open()).key == "a\\b"


def test_a_link_to_a_file_under_the_root_is_an_object(folder: FolderPlace) -> None:
    folder.put("a/file", b"data")
    (folder.root / "link").symlink_to("a/file")
    source = folder.open()
    _, link = source.scan()
    assert (link.key, bytes(source.read(Part(link)))) == ("link", b"data")


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_that_leads_out_is_not_read_even_if_it_took_the_place_of_an_object(
    tmp_path: Path, link: str
) -> None:
    folder = FolderPlace(tmp_path / "root")
    folder.put("folder/file", b"secret")
    source = folder.open()
    info = only(source)
    (folder.root / "folder").rename(tmp_path / "outside")
    if link == "folder":
        (folder.root / "folder").symlink_to(tmp_path / "outside")
    else:
        (folder.root / "folder").mkdir()
        (folder.root / "folder/file").symlink_to(tmp_path / "outside/file")
    assert refusal(source, Part(info)).reason == "forbidden"


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "a/../file", "nul\0", "/etc/hostname"])
def test_a_key_that_climbs_is_not_followed(tmp_path: Path, key: str) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    folder = FolderPlace(tmp_path / "root")
    folder.put("file", b"secret")
    folder.put("a/b", b"secret")
    found = only(FolderPlace(tmp_path / "root/a").open())
    assert refusal(folder.open(), Part(replace(found, key=key))).reason == "missing"


def test_pipes_and_folders_in_the_place_of_a_file_neither_hang_nor_are_read(folder: FolderPlace) -> None:
    folder.put("a", b"data")
    source = folder.open()
    info = only(source)
    folder.delete("a")
    os.mkfifo(folder.root / "a")
    assert list(source.scan()) == []
    assert refusal(source, Part(info)).reason == "changed"


@pytest.mark.parametrize("ends", [(), (1, 2), (1, None), (2, 2)])
def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: FolderPlace, monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...]
) -> None:
    folder.put("a", b"old")
    source = folder.open()
    info = only(source)

    def fstat_then_change(fd: int, real: Callable[[int], os.stat_result] = os.fstat) -> os.stat_result:
        found = real(fd)
        folder.put("a", b"new")
        return found

    monkeypatch.setattr(os, "fstat", fstat_then_change)
    assert refusal(source, Part(info, *ends)).reason == "changed"


def test_a_root_that_is_missing_or_a_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceNotFound, match="missing: no such directory"):
        list(DirectorySource(tmp_path / "missing").scan())
    with pytest.raises(SourceNotFound, match="this is a file") as raised:
        list(DirectorySource(tmp_path / "file").scan())
    assert raised.value.hint


def test_if_the_root_went_away_a_read_does_not_call_the_object_missing(tmp_path: Path) -> None:
    folder = FolderPlace(tmp_path / "root")
    folder.put("a", b"")
    source = folder.open()
    info = only(source)
    folder.root.rename(tmp_path / "elsewhere")
    with pytest.raises(SourceNotFound):
        source.read(Part(info))


def test_if_the_root_is_replaced_a_scan_does_not_end_as_if_all_was_listed(tmp_path: Path) -> None:
    folder = FolderPlace(tmp_path / "root")
    for key in ("a", "b/c"):
        folder.put(key, b"")
    scan = folder.open().scan()
    next(scan)
    folder.root.rename(tmp_path / "elsewhere")  # as if unmounted: an empty mount point remains
    folder.root.mkdir()
    with pytest.raises(SourceBusy):
        list(scan)


def test_a_link_as_root_is_followed_anew_by_every_scan(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        FolderPlace(tmp_path / day).put(day, day.encode())
    today = tmp_path / "today"
    today.symlink_to("monday")
    source = DirectorySource(today)
    assert bytes(source.read(Part(only(source)))) == b"monday"
    today.unlink()
    today.symlink_to("tuesday")
    assert bytes(source.read(Part(only(source)))) == b"tuesday"


def test_what_may_not_be_listed_or_read_is_forbidden_and_named() -> None:
    with world_readable_folder() as root:
        folder = FolderPlace(root / "root")
        folder.put("a", b"")
        folder.put("sub/b", b"")
        source = folder.open()
        a, _ = source.scan()
        with chmod(folder.root / "a"), as_nobody():
            assert refusal(source, Part(a)).reason == "forbidden"
        with chmod(folder.root / "sub"), as_nobody(), pytest.raises(SourceForbidden, match="root/sub"):
            list(source.scan())
        with chmod(folder.root), as_nobody(), pytest.raises(SourceForbidden, match="root: Perm"):
            list(source.scan())


FAILS = [
    (errno.ESTALE, SourceBusy, SourceBusy),
    (errno.EIO, ObjectBusy, SampleError),
    (errno.ETIMEDOUT, SourceBusy, SourceBusy),
]


@pytest.mark.parametrize(("number", "told", "outcome"), FAILS)
def test_a_stale_handle_or_a_disk_that_stumbles_is_busy_and_asked_again_is_opened_anew(
    folder: FolderPlace,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    told: type[Exception],
    outcome: type[Exception],
) -> None:
    folder.put("a", b"data")
    source = folder.open()
    part = Part(only(source))
    errors: list[OSError] = []

    def failing_fstat(fd: int, real: Callable[[int], os.stat_result] = os.fstat) -> os.stat_result:
        if errors:
            raise errors.pop()
        return real(fd)

    def fail(times: int) -> None:
        errors[:] = [OSError(number, os.strerror(number))] * times

    monkeypatch.setattr(os, "fstat", failing_fstat)
    asked_again = RetryingSource(ThreadedSource(source), waits_s=(0, 0), sleep=lambda _: None)
    fail(1)
    assert bytes(read(asked_again, part)) == b"data"
    fail(1)
    with pytest.raises(told) as raised:
        source.read(part)
    assert type(raised.value) is told
    assert bytes(source.read(part)) == b"data"
    fail(3)
    with pytest.raises(outcome):
        read(asked_again, part)
    assert errors == []  # three tries, and nobody below asks again


@contextmanager
def world_readable_folder() -> Iterator[Path]:
    """tmp_path is below a folder that only its owner may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def chmod(path: Path, mode: int = 0) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything: for a moment, be someone else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
