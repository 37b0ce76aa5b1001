"""What every source promises, asked of each; what asking again adds; and how a source is opened."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts import Place, SourceContract, read
from places import BucketPlace, FolderPlace, bare
from s3server import S3Server
from stager.errors import SampleError, SourceBusy, UsageError
from stager.interfaces import Scanning
from stager.reader.values import ObjectInfo, Part, SourceSpec
from stager.sources import open_source
from stager.sources.pace import PacedSource
from stager.sources.retry import RetryingSource
from stager.sources.s3.curl import CurlSource
from stager.sources.s3.source import BotoSource
from stager.sources.threads import ThreadedSource


class TestDirectory(SourceContract):
    @pytest.fixture(params=[bare, ThreadedSource, lambda source: PacedSource(ThreadedSource(source))])
    def place(self, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
        return FolderPlace(tmp_path, request.param)


class TestBoto(SourceContract):
    @pytest.fixture(params=[bare, ThreadedSource])
    def place(self, s3: S3Server, request: pytest.FixtureRequest) -> Place:
        return BucketPlace(s3, BotoSource, request.param)


class TestCurl(SourceContract):
    @pytest.fixture(params=[bare, RetryingSource, PacedSource])
    def place(self, s3: S3Server, request: pytest.FixtureRequest) -> Place:
        return BucketPlace(s3, CurlSource, request.param)


class BusySource:
    """Objects a to e. `busy`: for each scan or read to come, how many objects it gives before it fails."""

    def __init__(self, *busy: int) -> None:
        self.busy = list(busy)
        self.infos = [ObjectInfo(key, 1, "v") for key in "abcde"]

    def scan(self, scanning: Scanning | None = None) -> Iterator[ObjectInfo]:
        given = self.busy.pop(0) if self.busy else None
        yield from self.infos[:given]
        if given is not None:
            raise SourceBusy("slow down")

    def read(self, part: Part) -> memoryview:
        if self.busy:
            self.busy.pop(0)
            raise SourceBusy("slow down")
        return memoryview(part.info.key.encode())


@pytest.fixture
def slept() -> list[float]:
    return []


def test_a_busy_read_is_asked_again_after_each_wait(slept: list[float]) -> None:
    source = RetryingSource(ThreadedSource(BusySource(0, 0)), waits_s=(1, 2, 4), sleep=slept.append)
    assert bytes(read(source, Part(ObjectInfo("a", 1, "v")))) == b"a"
    assert slept == [1, 2]


def test_the_last_busy_comes_through(slept: list[float]) -> None:
    source = RetryingSource(ThreadedSource(BusySource(0, 0, 0)), waits_s=(1, 2), sleep=slept.append)
    with pytest.raises(SourceBusy):
        read(source, Part(ObjectInfo("a", 1, "v")))
    with pytest.raises(SourceBusy):
        list(RetryingSource(ThreadedSource(BusySource(0, 1, 2)), waits_s=(1, 2), sleep=slept.append).scan())
    assert slept == [1, 2, 1, 2]


def test_an_error_of_another_kind_is_not_asked_again(slept: list[float]) -> None:
    class Refusing(BusySource):
        def read(self, part: Part) -> memoryview:
            raise SampleError("missing", part.info.key)

    with pytest.raises(SampleError):
        read(RetryingSource(ThreadedSource(Refusing()), sleep=slept.append), Part(ObjectInfo("a", 1, "v")))
    assert slept == []


@pytest.mark.parametrize("busy", [(0,), (3,), (5,), (0, 2, 1), (4, 0, 4)])
def test_a_scan_that_breaks_goes_on_where_it_ended(slept: list[float], busy: tuple[int, ...]) -> None:
    source = RetryingSource(ThreadedSource(BusySource(*busy)), waits_s=(1, 2, 4), sleep=slept.append)
    assert [info.key for info in source.scan()] == list("abcde")
    assert len(slept) == len(busy)


def test_waits_are_never_in_step(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    monkeypatch.setattr("stager.sources.retry.time.sleep", slept.append)
    for _ in range(50):
        with pytest.raises(SourceBusy):
            read(
                RetryingSource(ThreadedSource(BusySource(0, 0)), waits_s=(10,)), Part(ObjectInfo("a", 1, "v"))
            )
    slept = [wait_s for wait_s in slept if wait_s > 1]  # a thread of another test may sleep, too
    assert 5 <= min(slept) < 9
    assert 11 < max(slept) <= 15


@pytest.mark.parametrize("url", ["{path}", "file://{path}", "FILE://localhost{path}", "~/with space"])
def test_a_path_or_a_file_url_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "with space"
    FolderPlace(path).put("a", b"")
    name = str(path).replace(" ", "%20") if "://" in url else str(path)
    assert [info.key for info in open_source(SourceSpec(url.format(path=name))).scan()] == ["a"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gs://bucket/a",
        "https://user:password@host/a",
        "file://host/a",
        "s3://",
        "s3:///a",
        "s3://id:key@b/",
    ],
)
def test_a_url_we_cannot_read_is_a_usage_error_with_a_hint_and_without_secrets(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_source(SourceSpec(url))
    assert raised.value.hint
    assert "password" not in raised.value.message
    assert "id:key" not in raised.value.message


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_packages_for_s3_are_not_imported_for_a_directory(tmp_path: Path) -> None:
    code = (
        "import sys; from stager.reader.values import SourceSpec; from stager.sources import open_source;"
        f"list(open_source(SourceSpec({str(tmp_path)!r})).scan());"
        "print({'boto3', 'botocore', 'pycurl'} & set(sys.modules))"
    )
    assert python(code) == "set()\n"


@pytest.mark.parametrize("package", ["boto3", "pycurl", "awscrt"])
def test_a_missing_package_is_named_with_the_way_to_install_it(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from stager.errors import StagerError; from stager.reader.values import SourceSpec\n"
        "from stager.sources import open_source\n"
        "try: open_source(SourceSpec('s3://bucket'))\n"
        "except StagerError as error: print(error.message, error.hint)\n"
    )
    said = python(code)
    assert f"the package {package}" in said
    assert "pip install 'stager[service]'" in said
