"""The index: words, the mapped file, and what a reader sees while it is written."""

import gc
import mmap
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from make_golden import GOLDEN, LINEAGE, RECIPE, golden_words, write_index
from shard_cases import files_no_larger_than
from stager.cache.index_writer import IndexWriter, highest_shard, retire
from stager.errors import CacheError
from stager.reader.index import (
    FAILED,
    FORMAT_NAMES,
    HEADER_BYTES,
    IndexReader,
    format_of,
    is_damaged,
    is_failed,
    is_resident,
    pack_words,
    row_of,
    shard_of,
)
from stager.shards import FORMATS

SAMPLES = 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pets.index"


def open_writer(path: Path, samples: int = SAMPLES) -> IndexWriter:
    return IndexWriter.open(path, samples, LINEAGE, RECIPE, path.parent)


def open_reader(path: Path) -> IndexReader:
    return IndexReader(path, LINEAGE, RECIPE)


# Words


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**24 - 1), min_size=1, max_size=20),
    st.sampled_from(FORMAT_NAMES),
)
def test_a_word_says_what_was_packed(shard: int, rows: list[int], name: str) -> None:
    words = pack_words(shard, np.array(rows), name)
    assert words.dtype == np.uint64
    assert set(shard_of(words).tolist()) == {shard}
    assert row_of(words).tolist() == rows
    assert {FORMAT_NAMES[number] for number in format_of(words)} == {name}
    assert is_resident(words).all()
    assert not is_failed(words).any()


def test_a_word_is_laid_out_as_the_format_says() -> None:
    (word,) = pack_words(0x89ABCDEF, np.array([0x123456]), "lmdb")
    bits = 1 << 63 | 1 << 60 | 0x89ABCDEF << 24 | 0x123456
    assert int(word) == bits | (bits.bit_count() % 2) << 59
    assert int(word).bit_count() % 2 == 0


def test_nothing_and_failed_are_not_resident() -> None:
    words = np.array([0, FAILED], np.uint64)
    assert not is_resident(words).any()
    assert is_failed(words).tolist() == [False, True]
    assert not is_damaged(words).any()


@given(
    st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1), st.sampled_from(FORMAT_NAMES), st.integers(0, 63)
)
def test_a_word_with_a_flipped_bit_is_damaged_and_nothing_else(
    shard: int, row: int, name: str, bit: int
) -> None:
    good = np.array([0, FAILED, *pack_words(shard, np.array([row]), name)], np.uint64)
    flipped = good ^ np.uint64(1 << bit)
    assert is_damaged(flipped).all()
    assert not is_resident(flipped).any()
    assert not is_failed(flipped).any()


def test_numpy_1_counts_bits_as_numpy_2_does(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.random.default_rng(1).integers(0, 2**64, 1000, dtype=np.uint64)
    both = []
    for _ in range(2):
        both.append((pack_words(3, (words >> np.uint64(40)).astype(np.int64), "arrow"), is_damaged(words)))
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert (both[0][0] == both[1][0]).all()
    assert (both[0][1] == both[1][1]).all()


def test_what_does_not_fit_a_word_is_refused() -> None:
    for shard, row in ((2**32, 0), (-1, 0), (0, 2**24), (0, -1)):
        with pytest.raises(ValueError, match="does not fit a word"):
            pack_words(shard, np.array([row]), "arrow")
    assert len(pack_words(0, np.array([], np.int64), "arrow")) == 0


def test_every_shard_format_has_a_number() -> None:
    assert set(FORMAT_NAMES) == set(FORMATS)


# The file


def test_a_reader_sees_what_is_published_and_cleared(path: Path) -> None:
    writer, reader = open_writer(path), open_reader(path)
    assert len(reader.words) == SAMPLES
    assert not reader.words.any()
    numbers = np.array([5, 7, 999])
    words = pack_words(12, np.array([2, 1, 0]), "arrow")
    writer.publish(numbers, words)
    writer.publish(np.array([8]), np.array([FAILED]))
    assert reader.words[numbers].tolist() == words.tolist()
    assert np.flatnonzero(is_failed(reader.words)).tolist() == [8]
    assert reader.evictions == 0
    writer.clear(numbers[:2])
    assert np.flatnonzero(reader.words).tolist() == [8, 999]
    assert reader.evictions == 0  # no shard has gone
    writer.tell_gone()
    assert (reader.evictions, writer.evictions) == (1, 1)


def test_replacing_all_keeps_the_readers(path: Path) -> None:
    writer, reader = open_writer(path), open_reader(path)
    words = pack_words(1, np.arange(SAMPLES), "arrow")
    writer.replace_all(np.arange(SAMPLES), words)
    assert (reader.words == words).all()
    assert reader.evictions == 0  # nothing was taken away
    words[10:20] = pack_words(2, np.arange(10), "lmdb")
    words[30] = 0
    writer.replace_all(np.flatnonzero(words), words[words != 0])
    assert (reader.words == words).all()
    assert reader.evictions == 1


def test_a_restart_opens_the_index_that_is_there(path: Path) -> None:
    writer = open_writer(path)
    reader = open_reader(path)
    writer.publish(np.array([3]), pack_words(1, np.array([1]), "arrow"))
    writer.close()
    again = open_writer(path)
    assert np.flatnonzero(again.words).tolist() == [3]
    again.clear(np.array([3]))
    assert not reader.words.any()  # still the same file
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_readers_cannot_write(path: Path) -> None:
    open_writer(path)
    words = open_reader(path).words
    with pytest.raises(ValueError, match="read-only"):
        words[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        words.flags.writeable = True


def test_closed_means_unmapped(path: Path) -> None:
    writer = open_writer(path)
    writer.close()
    writer.close()
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_an_index_of_no_samples(path: Path) -> None:
    writer = open_writer(path, 0)
    writer.replace_all(np.zeros(0, np.int64), np.zeros(0, np.uint64))
    assert len(open_reader(path).words) == 0


def test_its_blocks_are_reserved_before_anyone_stores(path: Path) -> None:
    open_writer(path, 100_000)
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    path.unlink()
    with files_no_larger_than(1000), pytest.raises(CacheError, match="no index made: File too large"):
        open_writer(path)
    assert list(path.parent.iterdir()) == []


BROKEN = {
    "missing": None,
    "empty": b"",
    "short": b"STGRIDX2",
    "other magic": b"STGRIDX1" + bytes(HEADER_BYTES - 8 + SAMPLES * 8),
    "newer": struct.pack("<8sI", b"STGRIDX2", 3) + bytes(HEADER_BYTES - 12 + SAMPLES * 8),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_index_is_refused_by_readers_and_mended_by_the_service(path: Path, case: str) -> None:
    content = BROKEN[case]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CacheError, match=str(path)):
        open_reader(path)
    assert len(open_writer(path).words) == SAMPLES
    assert len(open_reader(path).words) == SAMPLES


def test_an_index_cut_short_or_of_something_else_is_refused(path: Path) -> None:
    open_writer(path).publish(np.array([1]), np.array([FAILED]))
    for lineage, recipe in ((RECIPE, RECIPE), (LINEAGE, LINEAGE)):
        with pytest.raises(CacheError, match="other samples or another recipe"):
            IndexReader(path, lineage, recipe)
    for size in range(HEADER_BYTES + SAMPLES * 8 - 1, -1, -97):
        os.truncate(path, size)
        with pytest.raises(CacheError):
            open_reader(path)
    assert not open_writer(path).words.any()


def test_an_index_grows_in_place_under_its_readers(path: Path) -> None:
    writer, reader = open_writer(path), open_reader(path)
    inode = path.stat().st_ino
    words = pack_words(1, np.array([0, 1]), "arrow")
    writer.publish(np.array([3, 4]), words)
    held = writer.words
    writer.extend(SAMPLES * 5)
    assert (path.stat().st_ino, len(writer.words), len(reader.words)) == (inode, SAMPLES * 5, SAMPLES)
    writer.publish(np.array([5, SAMPLES * 4]), words)
    writer.clear(np.array([3]))
    assert np.flatnonzero(reader.words).tolist() == [4, 5]
    assert np.flatnonzero(held).tolist() == [4, 5]
    assert np.flatnonzero(open_reader(path).words).tolist() == [4, 5, SAMPLES * 4]
    writer.extend(SAMPLES)
    assert len(writer.words) == SAMPLES * 5  # it never shrinks


def test_a_damaged_header_is_mended_in_place_under_its_readers(path: Path) -> None:
    writer, reader = open_writer(path), open_reader(path)
    writer.publish(np.array([3]), pack_words(1, np.array([0]), "arrow"))
    inode = path.stat().st_ino
    writer.close()
    with path.open("r+b") as file:
        file.write(b"garbage!" * 7)
    with pytest.raises(CacheError, match="not an index"):
        open_reader(path)
    again = open_writer(path)
    again.clear(np.array([3]))
    assert path.stat().st_ino == inode
    assert not reader.words.any()
    assert len(open_reader(path).words) == SAMPLES


def test_a_retired_index_has_no_words_and_says_so_to_whoever_maps_it(path: Path) -> None:
    writer, reader = open_writer(path), open_reader(path)
    writer.publish(np.array([3]), pack_words(1, np.array([0]), "arrow"))
    assert not reader.is_retired
    retire(path)
    assert not path.exists()
    assert reader.is_retired
    assert not reader.words.any()


def test_an_index_of_version_1_is_cleared_when_it_is_retired(path: Path) -> None:
    """A reader of the version before may have it mapped."""
    path.write_bytes((GOLDEN / "index-v1.index").read_bytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert any(mapped[64:])
    retire(path)
    assert not any(mapped[64:])


def test_the_highest_shard_is_known_although_its_words_are_gone(path: Path) -> None:
    writer = open_writer(path)
    writer.publish(np.array([3, 4]), pack_words(77, np.array([0, 1]), "arrow"))
    writer.publish(np.array([3]), pack_words(5, np.array([0]), "arrow"))
    writer.clear(np.arange(SAMPLES))
    assert highest_shard(path) == 77
    path.write_bytes(b"short")
    assert highest_shard(path) == 0


def test_a_reader_of_another_process_never_sees_half_a_word(path: Path) -> None:
    samples = 4096
    writer = open_writer(path, samples)
    ones, twos = (
        pack_words(0x01010101 * digit, np.full(samples, 0x010101 * digit), "arrow") for digit in (0x11, 0x22)
    )
    program = f"""
        import time
        import numpy as np
        from pathlib import Path
        from stager.reader.index import IndexReader
        words = IndexReader(Path({str(path)!r}), {LINEAGE!r}, {RECIPE!r}).words
        allowed = np.array([0, {ones[0]}, {twos[0]}], np.uint64)
        seen = np.zeros(3, np.int64)
        print("ready", flush=True)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            counts = (words.copy()[:, None] == allowed).sum(axis=0)
            assert counts.sum() == {samples}, "torn"
            seen += counts
        print(*seen)
        """
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    everywhere = np.arange(samples)
    while reader.poll() is None:
        writer.publish(everywhere, ones)
        writer.replace_all(everywhere, twos)
        writer.clear(everywhere)
    assert reader.returncode == 0
    assert min(map(int, reader.stdout.read().split())) > 0  # it did look while all three were there
    reader.stdout.close()


# Golden bytes


def test_an_index_of_version_2_is_still_read() -> None:
    words = golden_words()
    reader = IndexReader(GOLDEN / "index-v2.index", LINEAGE, RECIPE)
    assert reader.words.tolist() == words.tolist()
    assert reader.evictions == 1


def test_today_s_bytes_are_those_of_version_2(tmp_path: Path) -> None:
    path = write_index(tmp_path)
    same = path.read_bytes() == (GOLDEN / path.name).read_bytes()
    assert same, "format changed: bump the version and add a golden file"
