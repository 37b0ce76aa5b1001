"""Both shard formats keep the contract, and what only one of them promises."""

import hashlib
import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from make_golden import GOLDEN, golden_header, golden_rows, write_shard
from shard_cases import (
    CASES,
    IMAGE,
    JPEG,
    PATCH,
    VECTOR,
    array_for,
    assert_same,
    header_for,
    make_rows,
)
from shard_contract import ShardContract
from shard_damage import DamageContract
from stager.errors import ShardCorrupt, UsageError
from stager.reader.shards import open_shard, trailer
from stager.reader.shards.file import ShardFile
from stager.reader.shards.stored import read_stored
from stager.reader.values import Field, Prepared, StoredArray, checksum_of, sample_tag
from stager.shards import FORMATS, verify_shard
from stager.shards.lmdb import row_key
from stager.shards.slabs import SLAB_BYTES

MB = 1_000_000
ROOM = MB  # bytes that are reserved: more than some of these shards need, less than others do


class RowByRow(ShardContract):
    """The same promises for a shard whose rows come one by one, as they do when they are staged."""

    def write(self, directory: Path, fields: Sequence[Field], rows: Sequence[Prepared]) -> Path:
        path = directory / f"shard{self.format.suffix}"
        with self.format.begin(path, header_for(fields), len(rows), ROOM) as shard:
            assert [shard.add(row) for row in rows] == list(range(len(rows)))
            shard.finish()
        return path

    @pytest.mark.parametrize("case", CASES)
    def test_the_file_is_the_one_that_is_written_at_once(self, tmp_path: Path, case: str) -> None:
        rows = make_rows(CASES[case], 12)
        path = self.write(tmp_path, CASES[case], rows)
        at_once = tmp_path / f"at-once{self.format.suffix}"
        self.format.write(at_once, header_for(CASES[case]), rows)
        assert path.read_bytes() == at_once.read_bytes()

    @pytest.mark.parametrize("row_bytes", [70_001, SLAB_BYTES, SLAB_BYTES + 5, 3 * SLAB_BYTES - 7])
    def test_rows_larger_than_a_page_lie_where_they_belong(self, tmp_path: Path, row_bytes: int) -> None:
        field = Field("image", "uint8", (row_bytes,))
        rows = make_rows((field,), 11)
        path = tmp_path / f"shard{self.format.suffix}"
        with (
            self.format.begin(path, header_for((field,)), len(rows) + 3, ROOM) as shard,
            ThreadPoolExecutor(4) as threads,
        ):
            numbers = list(threads.map(shard.add, rows))
            shard.finish()
        in_order = [row for _, row in sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0])]
        assert_same(open_shard(path), header_for((field,)), in_order)
        assert verify_shard(path) == []

    @pytest.mark.parametrize("rows_max", [9, 10, 99, 1000, 100_000])
    def test_there_may_be_fewer_rows_than_were_expected(self, tmp_path: Path, rows_max: int) -> None:
        rows = make_rows((IMAGE,), 9)
        path = tmp_path / f"shard{self.format.suffix}"
        with self.format.begin(path, header_for((IMAGE,)), rows_max, ROOM) as shard:
            for row in rows:
                shard.add(row)
            shard.finish()
        assert_same(open_shard(path), header_for((IMAGE,)), rows)
        assert verify_shard(path) == []

    @pytest.mark.parametrize("fields", [(IMAGE,), (JPEG,)])
    def test_left_without_an_end_there_is_no_file(self, tmp_path: Path, fields: tuple[Field, ...]) -> None:
        with self.format.begin(tmp_path / f"shard{self.format.suffix}", header_for(fields), 3, ROOM) as shard:
            shard.add(make_rows(fields, 1)[0])
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("fields", [(IMAGE,), (JPEG,)])
    def test_it_has_its_room_before_it_has_a_row_and_gives_back_what_is_left(
        self, tmp_path: Path, fields: tuple[Field, ...]
    ) -> None:
        rows, room = make_rows(fields, 20), 4 * MB
        path = tmp_path / f"shard{self.format.suffix}"
        with self.format.begin(path, header_for(fields), len(rows), room) as shard:
            least = sum(array.nbytes for row in rows for array in row.arrays.values())
            assert path.stat().st_blocks * 512 >= (least if fields == (IMAGE,) else room)
            for row in rows:
                shard.add(row)
            shard.finish()
        os.sync()  # blocks of what is written last are counted then
        assert path.stat().st_blocks * 512 <= path.stat().st_size + 64 * 1024
        assert_same(open_shard(path), header_for(fields), rows)

    def test_threads_may_add_at_the_same_time(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE,), 400)
        path = tmp_path / f"shard{self.format.suffix}"
        with (
            self.format.begin(path, header_for((IMAGE,)), len(rows), ROOM) as shard,
            ThreadPoolExecutor(8) as threads,
        ):
            numbers = list(threads.map(shard.add, rows))
            shard.finish()
        in_order = [row for _, row in sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0])]
        assert_same(open_shard(path), header_for((IMAGE,)), in_order)


class TestArrowRowByRow(RowByRow):
    name = "arrow"


class TestLmdbRowByRow(RowByRow):
    name = "lmdb"


class TestArrow(DamageContract):
    name = "arrow"

    def test_a_fixed_field_is_one_aligned_block(self, tmp_path: Path) -> None:
        for count in range(1, 40):  # lengths of the texts before it vary with the count
            rows = make_rows((IMAGE, PATCH, VECTOR), count)
            reader = open_shard(self.write(tmp_path, (IMAGE, PATCH, VECTOR), rows))
            images, vectors = reader.starts("image"), reader.starts("vector")
            assert images is not None
            assert vectors is not None
            assert images[0] % 64 == 0
            assert vectors[0] % 4 == 0
            assert list(images) == [images[0] + at * (IMAGE.row_bytes or 0) for at in range(count)]
            (tmp_path / "shard.arrow").unlink()

    def test_pyarrow_alone_reads_it(self, tmp_path: Path) -> None:
        rows = make_rows(CASES["all kinds"], 6)
        table = pa.ipc.open_file(self.write(tmp_path, CASES["all kinds"], rows)).read_all()
        table.validate(full=True)
        assert table["image"].to_pylist() == [row.arrays["image"].tobytes() for row in rows]
        assert table["patch"].to_pylist() == [row.arrays["patch"].tobytes() for row in rows]
        assert table["patch.shape"].to_pylist() == [list(row.arrays["patch"].shape) for row in rows]
        assert table["photo"].to_pylist() == [row.arrays["photo"].tobytes() for row in rows]
        assert table["key"].to_pylist() == [row.key.encode() for row in rows]
        assert table["checksum"].to_pylist() == [row.checksum for row in rows]

    def test_damage_to_arrow_s_own_structure_is_noticed(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, (IMAGE, PATCH), make_rows((IMAGE, PATCH), 3))
        whole = path.read_bytes()
        start = whole.index(make_rows((IMAGE,), 1)[0].arrays["image"].tobytes())
        end = whole.rindex(trailer.MAGIC)
        for at in [*range(0, start, 3), *range(end, len(whole))]:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            path.write_bytes(damaged)
            with pytest.raises(ShardCorrupt):
                open_shard(path)


class TestLmdb(DamageContract):
    name = "lmdb"

    @pytest.mark.parametrize(
        "fields", [(IMAGE,), (IMAGE, VECTOR), (JPEG,)], ids=["inline", "two", "overflow"]
    )
    def test_lmdb_alone_reads_it(self, tmp_path: Path, fields: Any) -> None:
        rows = make_rows(fields, 700)  # more than one leaf: the tree has a branch
        path = self.write(tmp_path, fields, rows)
        with (
            lmdb.open(str(path), subdir=False, lock=False, readonly=True) as environment,
            environment.begin() as transaction,
        ):
            values = dict(transaction.cursor())
            assert len(values) == 702
            for at, row in enumerate(rows):
                expected = b"".join(row.arrays[field.name].tobytes() for field in fields)
                assert values[row_key(at)].removeprefix(len(expected).to_bytes(8, "little")) == expected
            table = pa.ipc.open_stream(values[b"rows"]).read_all()
            assert table["checksum"].to_pylist() == [row.checksum for row in rows]
            assert json.loads(values[b"stager"])["samples"] == 700

    def test_a_row_whose_place_is_wrong_is_lost_and_no_other(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE, VECTOR), 4)
        path = self.write(tmp_path, (IMAGE, VECTOR), rows)
        whole = path.read_bytes()
        starts = open_shard(path).starts("image")
        assert starts is not None
        damaged = bytearray(whole)
        damaged[whole.rindex(struct.pack("<4Q", *starts)) + 8 + 7] ^= 0x80  # of row 1, by 2 ** 63
        path.write_bytes(damaged)
        assert verify_shard(path) == [1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_reader_loads_neither_pyarrow_nor_lmdb(name: str) -> None:
    program = (
        "import sys; sys.modules['lmdb'] = sys.modules['pyarrow'] = None\n"
        "from pathlib import Path; from stager.shards import verify_shard\n"
        f"assert verify_shard(Path({str(GOLDEN / f'shard-v1.{name}')!r})) == []"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_suffix_nobody_knows_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no shard format has the suffix '\.zip'"):
        open_shard(tmp_path / "a.zip")


def test_formats_are_called_by_their_suffix() -> None:
    assert {name: f".{name}" for name in FORMATS} == {name: made.suffix for name, made in FORMATS.items()}


@pytest.mark.parametrize("name", FORMATS)
class TestGolden:
    def test_a_shard_of_version_1_is_still_read(self, name: str) -> None:
        path = GOLDEN / f"shard-v1.{name}"
        assert_same(open_shard(path), golden_header(), golden_rows())
        assert verify_shard(path) == []

    @pytest.mark.skipif(mmap.PAGESIZE != 4096, reason="LMDB's pages are the machine's")
    def test_today_s_bytes_are_those_of_version_1(self, name: str, tmp_path: Path) -> None:
        path = write_shard(tmp_path, name)
        same = path.read_bytes() == (GOLDEN / path.name).read_bytes()
        assert same, "format changed: bump the version and add a golden file"


@pytest.mark.parametrize(
    ("offset", "size", "shape"),
    [(0, 16, (2,)), (12, 8, (2,)), (-4, 4, (1,)), (0, 4, (-1,)), (0, 8, (-1, -2)), (0, 2**62, (2**60,))],
)
def test_no_array_is_read_from_outside_of_the_file(
    tmp_path: Path, offset: int, size: int, shape: tuple[int, ...]
) -> None:
    (tmp_path / "file").write_bytes(bytes(16))
    file = ShardFile(tmp_path / "file")
    with pytest.raises((ValueError, ShardCorrupt), match=r"bytes"):
        read_stored(file, StoredArray(offset, size, shape, np.dtype("f4")).checked())


def test_a_checksum_names_the_sample_the_recipe_and_the_shape() -> None:
    array = array_for(VECTOR, 1)
    tag = sample_tag("key", "v1")
    same = checksum_of(tag, "c3" * 16, (VECTOR,), {"vector": array})
    assert same == Prepared("key", "v1", {"vector": array}, same).checksum
    assert same != checksum_of(sample_tag("key", "v2"), "c3" * 16, (VECTOR,), {"vector": array})
    assert same != checksum_of(tag, "c4" * 16, (VECTOR,), {"vector": array})
    flat, square = np.zeros((1, 2, 4), "f4"), np.zeros((2, 2, 2), "f4")
    assert checksum_of(tag, "c3" * 16, (PATCH,), {"patch": flat}) != checksum_of(
        tag, "c3" * 16, (PATCH,), {"patch": square}
    )


@pytest.mark.parametrize("name", FORMATS)
def test_the_page_about_the_format_is_right(name: str) -> None:
    """A reader written from docs/FORMAT.md alone."""
    data = (GOLDEN / f"shard-v1.{name}").read_bytes()
    end = len(data) - (10 + int.from_bytes(data[-10:-6], "little") if name == "arrow" else 0)
    tail = data[end - 48 : end]
    magic, version, _, file_bytes, text_bytes, head_bytes, checksum = struct.unpack("<8sIIQQQQ", tail)
    assert (magic, version, file_bytes) == (b"STGRSHRD", 1, len(data))
    text = data[end - 48 - text_bytes : end - 48]
    assert xxhash.xxh3_64_intdigest(data[:head_bytes] + text + tail[:40] + data[end:]) == checksum
    metadata = json.loads(text)
    parts = [data[at : at + size] for at, size in metadata["places"]]
    header = json.dumps(metadata["header"], sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.blake2b(header + parts[4] + b"".join(parts[:4]), digest_size=16)
    assert digest.hexdigest() == metadata["digest"]

    row = golden_rows()[1]
    image, patch, photo, label = (
        row.arrays[field].tobytes() for field in ("image", "patch", "photo", "label")
    )
    tag = xxhash.xxh3_64_intdigest(b"nul\0newline\n" + b"\0" + b"etag-2")
    seed = tag ^ int(metadata["header"]["recipe"][:16], 16)
    hashed = image + struct.pack("<3Q", 1, 2, 8) + patch + struct.pack("<2Q", 700, 700) + photo + label
    assert struct.unpack("<3Q", parts[4])[1] == xxhash.xxh3_64_intdigest(hashed, seed)
    if name == "arrow":
        assert parts[5][18:36] == image
        assert (parts[7][8:16], parts[8][8:16]) == (patch, struct.pack("<2i", 1, 2))
    else:
        stored = image + struct.pack("<2IQ", 1, 2, 8) + patch + struct.pack("<Q", 700) + photo + label
        assert data[struct.unpack("<3Q", parts[5])[1] :].startswith(stored)
