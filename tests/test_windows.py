"""Rows that are read through windows of huge pages are the rows, and nothing of them stays mapped."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stager.reader.index import pack_words
from stager_client.reading.memory import memory_bytes
from stager_client.reading.reader import KEPT_PART
from stager_client.reading.rows import HUGE_PAGE_BYTES, Mapping, ReadableShard, ReadableShards
from test_native import compiled_or_skip

SIZE = 4 * HUGE_PAGE_BYTES + 12_345
LEAST_BYTES = HUGE_PAGE_BYTES // 64  # smaller rows are not worth a window
Bytes = npt.NDArray[np.uint8]


class File:
    """A file as the service writes shards, in whole huge pages."""

    def __init__(self, path: Path) -> None:
        self.bytes: Bytes = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
        self.path = path
        with path.open("wb", buffering=0) as file:
            for at in range(0, SIZE, HUGE_PAGE_BYTES):
                file.write(self.bytes[at : at + HUGE_PAGE_BYTES].data)
        self.descriptor = os.open(path, os.O_RDONLY)
        self.mapping = Mapping(self.descriptor)

    def read(self, starts: list[int], row_bytes: int) -> tuple[int, Bytes]:
        """Rows that were checked before; how many could not be read, and the batch."""
        words = pack_words(1, np.arange(len(starts)), "arrow")
        shard = ReadableShard(self.descriptor, [np.array(starts, np.int64)], self.mapping)
        out = np.zeros((len(starts), row_bytes), np.uint8)
        shards = ReadableShards(words, words, [row_bytes], {1: shard})
        return shards.read(np.arange(len(starts)), None, [out], only_checked=True)[1], out

    def mapped_bytes(self) -> int:
        """What of it is mapped now, by the kernel's word."""
        told = Path("/proc/self/smaps").read_text()
        mine = re.search(rf"{re.escape(str(self.path))}\n(?:.*\n)*?Rss: +(\d+) kB", told)
        assert mine, "it is not mapped at all"
        return int(mine[1]) * 1024


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[File]:
    compiled_or_skip()
    made = File(tmp_path_factory.mktemp("windows") / "shard")
    yield made
    os.close(made.descriptor)


@given(st.data(), st.integers(LEAST_BYTES, 300_000))
def test_rows_are_right_wherever_they_begin_and_whatever_their_size(
    file: File, data: st.DataObject, row_bytes: int
) -> None:
    starts = data.draw(st.lists(st.integers(0, SIZE - row_bytes), min_size=1, max_size=20))
    left, rows = file.read(starts, row_bytes)
    assert left == 0
    for start, row in zip(starts, rows, strict=True):
        assert np.array_equal(row, file.bytes[start : start + row_bytes])


def test_nothing_stays_mapped(file: File) -> None:
    file.read(list(range(0, SIZE - 100_000, 50_000)), 100_000)
    assert file.mapped_bytes() == 0


def test_windows_are_used_where_the_kernel_maps_huge_pages(file: File) -> None:
    """By what is known of the huge pages after reading: 1, if all of one was mapped at a touch; else 2."""
    file.read([0, HUGE_PAGE_BYTES, 2 * HUGE_PAGE_BYTES], LEAST_BYTES)
    known = file.mapping._huge_pages[:3].tolist()
    assert set(known) <= {1, 2}
    version = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    if version >= (6, 18) and Path("/sys/kernel/mm/transparent_hugepage").exists():
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", str(file.path)], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert kind != "ext2/ext3" or 1 in known, (
            "ext4 keeps such writes in huge pages, if memory is not short"
        )


def test_a_file_that_is_cut_short_under_us_is_an_error_and_not_our_end(tmp_path: Path) -> None:
    compiled_or_skip()
    program = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_windows import HUGE_PAGE_BYTES, File
file = File(Path({str(tmp_path / "shard")!r}))
starts = [0, HUGE_PAGE_BYTES + 7, 3 * HUGE_PAGE_BYTES - 50_000]
print(file.read(starts, 100_000)[0])
os.truncate(file.path, HUGE_PAGE_BYTES)
print(file.read(starts, 100_000)[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "2"], done.stderr


def test_a_forked_child_reads_and_leaves_nothing_mapped(file: File) -> None:
    child = os.fork()
    if not child:
        left, rows = file.read([5, HUGE_PAGE_BYTES], 100_000)
        is_right = left == 0 and np.array_equal(rows[0], file.bytes[5:100_005]) and not file.mapped_bytes()
        os._exit(not is_right)
    assert os.waitpid(child, 0)[1] == 0


def test_a_kernel_without_windows_is_no_hindrance(tmp_path: Path) -> None:
    """strace says EPERM, as a sandbox does: all is read by pread, and nothing stays mapped."""
    compiled_or_skip()
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_windows import HUGE_PAGE_BYTES, File
file = File(Path({str(tmp_path / "shard")!r}))
for _ in range(2):
    left, rows = file.read([0, HUGE_PAGE_BYTES + 7], 100_000)
    assert not left and (rows[1] == file.bytes[HUGE_PAGE_BYTES + 7 : HUGE_PAGE_BYTES + 100_007]).all()
assert not file.mapped_bytes()
"""
    inject = "inject=process_madvise:error=EPERM"
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=process_madvise",
        "-e",
        inject,
        sys.executable,
        "-c",
        program,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    asked = done.stderr.count("process_madvise(")
    assert asked <= 2, "once it said no, nobody asks again"


@pytest.mark.parametrize(
    ("meminfo", "limit", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable: 8 kB\n", None, 8192),
        ("MemAvailable: 8 kB\n", "max\n", 8192),
        ("MemAvailable: 8 kB\n", "4096\n", 4096),
        ("", "4096\n", 0),
        (None, None, 0),
    ],
)
def test_memory_is_what_the_kernel_and_the_container_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meminfo: str | None, limit: str | None, expected: int
) -> None:
    for name, text in (("MEMINFO", meminfo), ("CGROUP", limit)):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(f"stager_client.reading.memory.{name}", path)
    assert memory_bytes() == expected


def test_memory_here_is_known() -> None:
    assert 0 < memory_bytes() * KEPT_PART < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
