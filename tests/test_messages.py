"""What service and workers say to each other: a line brings what was put into it."""

from pathlib import Path

import pytest

from stager.errors import NoSpace
from stager.lines import line_of
from stager.reader.record import DatasetSpec
from stager.reader.values import SourceSpec
from stager.worker.messages import (
    NOTHING_BUILT,
    Answer,
    BuildShard,
    Built,
    Failed,
    FileToWrite,
    KnownVersion,
    ListPlace,
    Logged,
    NativeTold,
    OpenSource,
    Progress,
    Scanned,
    ScanSource,
    ShardBuilt,
    ToWorker,
    read_by_service,
    read_by_worker,
)

SPEC = DatasetSpec("pets", SourceSpec("/mnt/pets"), "folder", {"kind": "image", "crop": 32})
RECORDS = ListPlace(Path("/cache/p\udcff"), "0" * 32, ("samples-1", "samples-2"))  # a name that is no UTF-8
FILE = FileToWrite(Path("/cache/7.arrow"), Path("/cache/scratch/7"), 4096, 8192)


@pytest.mark.parametrize(
    "message",
    [
        OpenSource(SPEC),
        ScanSource(1, SPEC, Path("/cache/scan"), None),
        ScanSource(
            1,
            SPEC,
            Path("/cache/scan"),
            KnownVersion(RECORDS, Path("/cache/manifest"), relist=True, is_alike=True),
        ),
        BuildShard(2, SPEC, "m", RECORDS, [3, 1], "lmdb", is_urgent=True, file=FILE),
        BuildShard(2, SPEC, "m", RECORDS, [3, 1], "arrow", is_urgent=False, file=None),
    ],
)
def test_a_worker_reads_what_the_service_wrote_in_one_line(message: ToWorker) -> None:
    line = line_of(message)
    assert line.count("\n") == 1
    assert read_by_worker(line) == message


@pytest.mark.parametrize(
    "message",
    [
        Progress(1, 17),
        Scanned(1, "2 objects have\nno class"),
        ShardBuilt(2, NOTHING_BUILT),
        ShardBuilt(2, Built([4, 3], [(5, "corrupt", "c/5.jpg")], 100, 5000, 60, 2, 0.1, 0.2, 0.3)),
        Failed.by(2, NoSpace("full", hint="free some")),
        NativeTold("native"),
        Logged(30, "pace halved"),
    ],
)
def test_the_service_reads_what_a_worker_wrote_in_one_line(message: Answer) -> None:
    line = line_of(message)
    assert line.count("\n") == 1
    assert read_by_service(line) == message


def test_an_error_is_of_its_kind_on_the_other_side() -> None:
    error = Failed.by(2, NoSpace("full", hint="free some")).to_error()
    assert (type(error), error.message, error.hint) == (NoSpace, "full", "free some")


def test_a_line_that_a_crash_cut_off_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        read_by_service(line_of(Progress(1, 17))[:9])
