"""Samples of open shards come to their places in a batch, in C and without it."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stager.reader.index import FAILED, FORMAT_NAMES, Words, is_resident, pack_words, row_of, shard_of
from stager_client.reading.rows import Mapping, ReadableShard, ReadableShards

ROWS, SIDES = 10, (5000, 8)  # of each shard; bytes of a row of each column
NUMBERS = (7, 300, 1 << 31)  # of the shards
Rows = npt.NDArray[np.uint8]


pytestmark = pytest.mark.usefixtures("with_and_without_c")


class Files:
    """Three shards of two columns, the second in reverse; sample n is row n % 10 of shard n // 10."""

    def __init__(self, descriptors: Sequence[int], columns: Sequence[Rows]) -> None:
        self.columns = columns
        self.index: Words = np.concatenate([pack_words(n, np.arange(ROWS), "arrow") for n in NUMBERS])
        self.checked = self.index.copy()
        starts = np.arange(ROWS) * SIDES[0], ROWS * SIDES[0] + np.arange(ROWS)[::-1] * SIDES[1]
        self.shards = {
            number: ReadableShard(fd, starts, Mapping(fd))
            for number, fd in zip(NUMBERS, descriptors, strict=True)
        }

    def read(
        self, numbers: Sequence[int], places: Sequence[int] | None = None, only_checked: bool = True
    ) -> tuple[list[int], list[Rows]]:
        """Which of these numbers were read, and the batch."""
        out = [np.zeros((40, side), np.uint8) for side in SIDES]
        to = None if places is None else np.array(places, np.int64)
        shards = ReadableShards(self.index, self.checked, SIDES, self.shards)
        words, left = shards.read(np.array(numbers, np.int64), to, out, only_checked)
        assert left == np.count_nonzero(words == 0)
        read = np.flatnonzero(words).tolist()
        assert all(words[at] == self.index[numbers[at]] for at in read)
        return [numbers[at] for at in read], out


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    random = np.random.default_rng(0)
    columns = [random.integers(0, 256, (len(NUMBERS) * ROWS, side), np.uint8) for side in SIDES]
    with ExitStack() as stack:
        found = []
        for shard in range(len(NUMBERS)):
            path, mine = tmp_path / str(shard), slice(shard * ROWS, shard * ROWS + ROWS)
            path.write_bytes(columns[0][mine].tobytes() + columns[1][mine][::-1].tobytes())
            found.append(stack.enter_context(path.open("rb")).fileno())
        yield Files(found, columns)


def test_samples_of_many_shards_come_to_their_places(files: Files) -> None:
    order = np.random.default_rng(1).permutation(30)
    read, out = files.read(order.tolist(), range(39, 9, -1))
    assert read == order.tolist()
    for got, column in zip(out, files.columns, strict=True):
        assert np.array_equal(got[39:9:-1], column[order])
        assert not got[:10].any()


def test_without_places_they_are_in_order(files: Files) -> None:
    read, out = files.read([29, 0, 11])
    assert read == [29, 0, 11]
    assert np.array_equal(out[0][:3], files.columns[0][[29, 0, 11]])


def test_only_what_is_resident_and_was_checked_is_read(files: Files) -> None:
    files.index[3] = 0
    files.index[4] = FAILED
    files.index[5] ^= np.uint64(1 << 62)  # a flipped bit
    files.checked[6] = 0
    files.checked[7] = files.index[8]  # right once, under another word
    files.checked[3] = files.checked[4] = 0
    read, out = files.read(range(10))
    assert read == [0, 1, 2, 8, 9]
    assert np.array_equal(out[0][read], files.columns[0][read])
    assert files.read(range(10), only_checked=False)[0] == [0, 1, 2, 6, 7, 8, 9]


def test_a_row_or_a_shard_that_is_not_there_is_not_read(files: Files) -> None:
    files.index[1] = pack_words(NUMBERS[0], np.array([ROWS]), "arrow")[0]
    files.index[2] = pack_words(8, np.array([0]), "arrow")[0]
    assert files.read([1, 0, 2, 29], only_checked=False)[0] == [0, 29]


def test_numbers_beyond_the_index_are_not_read(files: Files) -> None:
    out = [np.zeros((3, side), np.uint8) for side in SIDES]
    shards = ReadableShards(files.index, files.checked, SIDES, files.shards)
    words, left = shards.read(np.array([-1, 30, 1 << 60]), None, out, only_checked=True)
    assert (words.tolist(), left) == ([0, 0, 0], 3)


def test_what_cannot_be_read_whole_is_told_and_the_others_are_right(files: Files, tmp_path: Path) -> None:
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    folder = os.open(tmp_path, os.O_RDONLY)
    os.truncate(tmp_path / "2", ROWS * SIDES[0] + 8 * SIDES[1])  # two rows of a column are cut off
    for number, wrong in ((5, closed), (6, folder)):
        files.shards[number] = ReadableShard(wrong, files.shards[7].starts, Mapping(wrong))
    files.index[[0, 10]] = [pack_words(number, np.array([0]), "arrow")[0] for number in (5, 6)]
    try:
        read, out = files.read([0, 1, 10, 20, 21, 22, 29], only_checked=False)
    finally:
        os.close(folder)
    assert read == [1, 22, 29]
    assert np.array_equal(out[1][[1, 5, 6]], files.columns[1][read])


def test_numbers_and_places_that_do_not_lie_side_by_side_are_read_as_any(files: Files) -> None:
    """A rank reads every n-th position: such a view of an order is no array that C could go through."""
    numbers, places = np.arange(60)[::2][::-1], np.arange(120)[::4]
    out = [np.zeros((120, side), np.uint8) for side in SIDES]
    shards = ReadableShards(files.index, files.checked, SIDES, files.shards)
    read = numbers[numbers < 30]
    words, left = shards.read(numbers, places, out, only_checked=True)
    assert left == 30 - len(read)
    assert np.array_equal(words[numbers < 30], files.index[read])
    assert np.array_equal(out[0][places[numbers < 30]], files.columns[0][read])


def test_no_sample_at_all_is_no_error(files: Files) -> None:
    assert files.read([])[0] == []
    assert files.read([], [])[0] == []


def test_a_row_whose_word_goes_while_it_is_copied_is_not_read(tmp_path: Path) -> None:
    """The row is so large that the word goes before the last byte has come, at one of some tries."""
    size, index = 64 << 20, pack_words(1, np.array([0]), "arrow")
    with (tmp_path / "large").open("w+b") as file:
        for at in (0, size - 1):
            os.pwrite(file.fileno(), b"\1", at)
        held = ReadableShard(file.fileno(), [np.zeros(1, np.int64)], None)
        shards = ReadableShards(index, index.copy(), [size], {1: held})
        for _ in range(50):
            out, word = np.zeros((1, size), np.uint8), index[0]
            with ThreadPoolExecutor(1) as pool:
                read = pool.submit(shards.read, np.zeros(1, np.int64), None, [out], False)
                while not out[0, 0] and not read.done():
                    pass
                index[0] = 0
                was_copied = bool(out[0, -1])
            if not was_copied:
                assert (read.result()[0].tolist(), read.result()[1]) == ([0], 1)
                return
            index[0] = word
    pytest.fail("the copy was always faster")


def test_a_place_that_is_not_there_is_refused(files: Files) -> None:
    for places in ([40], [-1], [0, 40]):
        with pytest.raises(AssertionError):
            files.read(range(len(places)), places)
    with pytest.raises(AssertionError):
        files.read([0] * 41)


@given(
    st.one_of(st.just(0), st.sampled_from(NUMBERS)),
    st.one_of(st.integers(0, 4999), st.integers(0, (1 << 24) - 1)),
    st.sampled_from(FORMAT_NAMES),
    st.sets(st.integers(0, 63), max_size=3),
)
def test_any_word_is_understood_as_the_index_has_it(
    number: int, row: int, shard_format: str, flipped: set[int]
) -> None:
    """Which are resident, and where they are: any row can be read from a file that has no end."""
    index = pack_words(number, np.array([row]), shard_format)
    for bit in flipped:
        index ^= np.uint64(1 << bit)
    shard, row = int(shard_of(index)[0]), int(row_of(index)[0])
    with Path("/dev/zero").open("rb") as zeros:
        for known, rows in ((shard, row + 1), (shard, row), (shard + 1, row + 1)):
            starts = np.zeros(1, np.int64).repeat(min(rows, 5000))
            held = ReadableShard(zeros.fileno(), [starts], Mapping(zeros.fileno()))
            shards = ReadableShards(index, index, [1], {known: held})
            words, _ = shards.read(np.zeros(1, np.int64), None, [np.ones((1, 1), np.uint8)], False)
            is_there = bool(is_resident(index)[0]) and known == shard and row < len(starts)
            assert words.tolist() == [int(index[0]) if is_there else 0]
