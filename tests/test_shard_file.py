"""Files that are read by offset: descriptors are bounded, and never closed under a thread that reads."""

import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shard_cases import open_descriptors
from stager.errors import ShardCorrupt, ShardError
from stager.reader.shards import file as files
from stager.reader.shards.file import OTHERS, Descriptor, ShardFile

PAGE = 4096


def make_files(directory: Path, count: int) -> list[Path]:
    """Each is full of its own number."""
    paths = [directory / f"{number}" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(4, "little") * (PAGE // 4))
    return paths


def number_in(file: ShardFile) -> int:
    room = bytearray(PAGE)
    file.read_into(memoryview(room), 0)
    assert room == room[:4] * (PAGE // 4)
    return int.from_bytes(room[:4], "little")


def test_a_descriptor_is_closed_when_nobody_holds_it(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    file = ShardFile(path)
    held = file.descriptor()
    file.close()
    del file
    assert len(os.pread(held, PAGE, 0)) == PAGE  # as in the middle of a call in another thread
    assert open_descriptors(tmp_path) == 1
    del held
    assert open_descriptors(tmp_path) == 0


def test_low_numbers_are_left_to_others_and_no_child_gets_ours(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    held = ShardFile(path).descriptor()
    assert held >= OTHERS  # select() can wait for those below only
    assert not os.get_inheritable(held)


def test_above_the_limit_the_file_opened_first_is_closed_and_opened_again_at_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OPEN_MAX", 5)
    opened = [ShardFile(path) for path in make_files(tmp_path, 40)]
    assert open_descriptors(tmp_path) <= 5
    for number in [*range(40), 3, 3, 39, 0]:
        assert number_in(opened[number]) == number
        assert open_descriptors(tmp_path) <= 5
    del opened
    assert open_descriptors(tmp_path) == 0


def test_threads_that_close_one_anothers_files_read_no_wrong_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is closed is the next to be given out: a late read would be of another file."""
    monkeypatch.setattr(files, "OPEN_MAX", 2)
    opened = [ShardFile(path) for path in make_files(tmp_path, 12)]
    wrong: list[object] = []

    def read(seed: int) -> None:
        try:
            for number in random.Random(seed).choices(range(12), k=4000):
                if number_in(opened[number]) != number:
                    wrong.append(number)
                if number == seed:
                    opened[number].close()
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_child_that_was_forked_while_a_file_was_being_opened_opens_files(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 2)
    files.open_files._lock.acquire()  # as another thread would have it
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if number_in(ShardFile(paths[1])) == 1 else 1)
    finally:
        files.open_files._lock.release()
    assert os.waitpid(child, 0)[1] == 0


def test_what_cannot_be_read_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    file = ShardFile(path)
    for offset, size_bytes in ((PAGE, 1), (-1, 1), (0, 1 << 60)):
        with pytest.raises(ShardCorrupt, match="there are no"):
            file.read(offset, size_bytes)
    path.write_bytes(b"short")
    with pytest.raises(ShardCorrupt, match="it ends at 5"):
        file.read(0, PAGE)
    with pytest.raises(ShardCorrupt, match="it ends at 5"):
        file.read_into(memoryview(bytearray(PAGE)), 0)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ShardError, match="cannot be read: Is a directory"):
        ShardFile(tmp_path / "folder").read(0, 1)


def test_a_read_that_stops_halfway_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 16)
    file = ShardFile(path)
    pread: Callable[..., bytes] = os.pread
    preadv: Callable[..., int] = os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 1000), at))
    monkeypatch.setattr(os, "preadv", lambda fd, rooms, at: preadv(fd, [rooms[0][:1000]], at))
    room = bytearray(4000)
    file.read_into(memoryview(room), 90)
    assert file.read(90, 4000) == bytes(room) == path.read_bytes()[90:4090]


LIMITED = """
import os, resource, sys
from pathlib import Path
soft, hard, others = map(int, sys.argv[2:5])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from stager.reader.shards.file import ShardFile
kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(others)]
opened = [ShardFile(Path(sys.argv[1])) for _ in range(3000)]
assert all(file.read(0, 4) == bytes(4) for file in opened + opened)
ours = sum(int(name) not in kept for name in os.listdir("/proc/self/fd"))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], ours, max(opened[-1].descriptor(), 0))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "others", "limit", "most"),
    [
        (1024, 9000, 0, 5120, 3000),
        (1024, 3000, 0, 3000, 1976),
        (1024, 1024, 0, 1024, 256),
        (64, 64, 50, 64, 16),
    ],
    ids=["room above", "some room", "no room", "hardly any room"],
)
def test_three_thousand_files_are_open_whatever_the_limit(
    tmp_path: Path, soft: int, hard: int, others: int, limit: int, most: int
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip(f"the limit of this machine is below {hard}")
    (path,) = make_files(tmp_path, 1)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(soft), str(hard), str(others)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    now, ours, highest = map(int, done.stdout.split())
    assert now == limit
    assert ours <= most + 4  # the standard ones, and that of the folder
    assert (highest >= OTHERS) == (limit > OTHERS)


def test_a_descriptor_is_a_number_for_every_call(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    held = ShardFile(path).descriptor()
    assert isinstance(held, Descriptor)
    assert os.fstat(held).st_size == PAGE
