"""What every shard format promises. Subclass ShardContract, name the format, inherit the tests."""

import gc
import os
import random
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from shard_cases import (
    CASES,
    IMAGE,
    JPEG,
    KEYS,
    PATCH,
    VECTOR,
    array_for,
    assert_same,
    assert_same_arrays,
    files_no_larger_than,
    header_for,
    make_row,
    make_rows,
    open_descriptors,
    shards,
)
from stager.errors import ShardCorrupt, ShardError, ShardGone
from stager.interfaces import ShardFormat
from stager.reader.shards import open_shard
from stager.reader.values import Field, Prepared, ShardHeader
from stager.shards import FORMATS, verify_shard


class ShardContract:
    """The tests."""

    name: str

    @property
    def format(self) -> ShardFormat:
        return FORMATS[self.name]

    def write(self, directory: Path, fields: Sequence[Field], rows: Sequence[Prepared]) -> Path:
        path = directory / f"shard{self.format.suffix}"
        self.format.write(path, header_for(fields), rows)
        return path

    @pytest.mark.parametrize("count", [1, 2, 9])
    @pytest.mark.parametrize("case", CASES)
    def test_what_was_written_is_read(self, tmp_path: Path, case: str, count: int) -> None:
        fields = CASES[case]
        rows = make_rows(fields, count)
        path = self.write(tmp_path, fields, rows)
        assert_same(open_shard(path), header_for(fields), rows)
        assert verify_shard(path) == []

    def test_three_thousand_rows(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE, JPEG), 3000)
        assert_same(open_shard(self.write(tmp_path, (IMAGE, JPEG), rows)), header_for((IMAGE, JPEG)), rows)

    def test_keys_are_any_bytes(self, tmp_path: Path) -> None:
        rows = [make_row((VECTOR,), key, "v", {"vector": array_for(VECTOR, 1)}) for key in KEYS]
        path = self.write(tmp_path, (VECTOR,), rows)
        assert [key for key, _ in open_shard(path).identities()] == list(KEYS)
        assert verify_shard(path) == []

    @settings(
        max_examples=120,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.differing_executors],
    )
    @given(shards())
    def test_any_fields_round_trip(self, shard: tuple[ShardHeader, list[Prepared]]) -> None:
        header, rows = shard
        with tempfile.TemporaryDirectory() as directory:
            path = self.write(Path(directory), header.fields, rows)
            assert_same(open_shard(path), header, rows)
            assert verify_shard(path) == []

    def test_an_array_need_not_be_contiguous_when_written(self, tmp_path: Path) -> None:
        wide = np.arange(6 * 10 * 3, dtype=np.uint8).reshape(6, 10, 3)
        row = make_row((IMAGE,), "k", "v", {"image": wide[:, ::2]})
        assert_same(open_shard(self.write(tmp_path, (IMAGE,), [row])), header_for((IMAGE,)), [row])

    @pytest.mark.parametrize(
        "wrong", [np.zeros((6, 5), "u1"), np.zeros((5, 6, 3), "u1"), np.zeros((6, 5, 3), "f4")]
    )
    def test_an_array_that_is_not_of_the_field_is_refused(self, tmp_path: Path, wrong: Any) -> None:
        row = Prepared("k", "v", {"image": wrong}, 0)
        with pytest.raises(ValueError, match="'k': image is"):
            self.write(tmp_path, (IMAGE,), [row])
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("names", [["key"], ["a", "a"], ["a.shape"]])
    def test_names_that_clash_are_refused(self, tmp_path: Path, names: list[str]) -> None:
        fields = [Field(name, "uint8", (1,)) for name in names]
        with pytest.raises(ValueError, match="two columns of one name"):
            self.write(tmp_path, fields, make_rows(fields, 1))

    def test_a_shard_is_never_empty_and_never_written_twice(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least one row"):
            self.write(tmp_path, (IMAGE,), [])
        path = self.write(tmp_path, (IMAGE,), make_rows((IMAGE,), 2))
        before = path.read_bytes()
        with pytest.raises(FileExistsError):
            self.write(tmp_path, (IMAGE,), make_rows((IMAGE,), 1))
        assert path.read_bytes() == before

    def test_a_disk_that_takes_no_more_is_an_oserror(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE,), 3000)
        with files_no_larger_than(100_000), pytest.raises(OSError, match=r"File too large"):
            self.write(tmp_path, (IMAGE,), rows)

    def test_equal_rows_give_equal_files(self, tmp_path: Path) -> None:
        contents = set()
        for name in "ab":
            (tmp_path / name).mkdir()
            rows = make_rows(CASES["all kinds"], 40)
            contents.add(self.write(tmp_path / name, CASES["all kinds"], rows).read_bytes())
        assert len(contents) == 1

    def test_no_file_is_gone_and_no_shard_is_corrupt(self, tmp_path: Path) -> None:
        path = tmp_path / f"x{self.format.suffix}"
        with pytest.raises(ShardGone, match="no such shard"):
            self.format.open(path)
        for content in (b"", b"\0", b"no shard at all", bytes(10_000)):
            path.write_bytes(content)
            with pytest.raises(ShardCorrupt, match=str(path)):
                self.format.open(path)
        path.unlink()
        path.mkdir()
        with pytest.raises(ShardError, match="cannot be read"):
            self.format.open(path)

    def test_there_is_no_row_behind_the_last(self, tmp_path: Path) -> None:
        for case in ("one fixed field", "varying shapes"):
            (tmp_path / case).mkdir()
            reader = open_shard(self.write(tmp_path / case, CASES[case], make_rows(CASES[case], 3)))
            with pytest.raises((IndexError, ShardCorrupt)):
                reader.row(3)

    # How long arrays live, and what they cost

    def test_arrays_outlive_the_reader_and_the_file(self, tmp_path: Path) -> None:
        rows = make_rows(CASES["all kinds"], 5)
        path = self.write(tmp_path, CASES["all kinds"], rows)
        reader = open_shard(path)
        arrays = reader.row(3)
        path.unlink()
        reader.close()
        del reader
        gc.collect()
        assert_same_arrays(arrays, rows[3].arrays)

    def test_no_file_is_mapped_and_a_descriptor_goes_with_its_reader(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, CASES["all kinds"], make_rows(CASES["all kinds"], 5))
        reader = open_shard(path)
        array = reader.row(2)["image"][1:, ::2]
        assert str(path) not in Path("/proc/self/maps").read_text()
        assert open_descriptors(path) == 1
        del reader
        assert open_descriptors(path) == 0
        assert array.any()

    def test_a_closed_reader_opens_its_file_again(self, tmp_path: Path) -> None:
        rows = make_rows(CASES["all kinds"], 5)
        path = self.write(tmp_path, CASES["all kinds"], rows)
        reader = open_shard(path)
        assert open_descriptors(path) == 1
        reader.close()
        reader.close()  # twice is once
        assert open_descriptors(path) == 0
        assert_same(reader, header_for(CASES["all kinds"]), rows)
        reader.close()
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(ShardGone, match="no such shard"):
            reader.row(0)
        path.write_bytes((tmp_path / "elsewhere").read_bytes())
        with pytest.raises(ShardGone, match="another file"):
            reader.row(0)

    def test_arrays_are_the_callers_own(self, tmp_path: Path) -> None:
        rows = make_rows(CASES["all kinds"], 5)
        reader = open_shard(self.write(tmp_path, CASES["all kinds"], rows))
        for array in reader.row(1).values():
            array.fill(7)
        assert_same(reader, header_for(CASES["all kinds"]), rows)
        with pytest.raises(ValueError, match="read-only"):
            reader.checksums[0] = 1

    @pytest.mark.parametrize("case", ["one fixed field", "an image and a vector", "no sides", "no elements"])
    def test_rows_of_one_size_can_be_read_to_where_they_belong(self, tmp_path: Path, case: str) -> None:
        fields = CASES[case]
        rows = make_rows(fields, 9)
        reader = open_shard(self.write(tmp_path, fields, rows))
        for field in fields:
            starts = reader.starts(field.name)
            assert starts is not None
            for at, row in enumerate(rows):
                expected = row.arrays[field.name].tobytes()
                assert reader.places(at)[fields.index(field)] == (starts[at], len(expected))
                assert os.pread(reader.descriptor(), len(expected), starts[at]) == expected
            with pytest.raises(IndexError):
                starts[len(rows)]

    @pytest.mark.parametrize("field", [PATCH, JPEG])
    def test_rows_that_differ_in_size_have_no_common_start(self, tmp_path: Path, field: Field) -> None:
        assert open_shard(self.write(tmp_path, (field,), make_rows((field,), 2))).starts(field.name) is None

    def test_a_forked_child_reads_on(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE, PATCH), 9)
        reader = open_shard(self.write(tmp_path, (IMAGE, PATCH), rows))
        held = reader.row(4)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert_same(reader, header_for((IMAGE, PATCH)), rows)
                assert_same_arrays(held, rows[4].arrays)
                reader.close()
                del reader, held
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert_same(reader, header_for((IMAGE, PATCH)), rows)  # what the child closed was its own

    def test_threads_share_a_reader(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE, PATCH), 50)
        reader = open_shard(self.write(tmp_path, (IMAGE, PATCH), rows))
        done = []

        def read(seed: int) -> None:
            for at in random.Random(seed).choices(range(50), k=1000):
                assert_same_arrays(reader.row(at), rows[at].arrays)
            done.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 4
