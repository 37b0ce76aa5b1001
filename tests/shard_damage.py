"""What every shard format promises of damaged files."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from shard_cases import CASES, IMAGE, JPEG, PATCH, assert_same_arrays, header_for, make_rows
from shard_contract import ShardContract
from stager.errors import ShardCorrupt
from stager.reader.shards import open_shard, trailer
from stager.reader.values import Prepared, ShardReader
from stager.shards import verify_shard


def read_all(reader: ShardReader) -> None:
    for at in range(len(reader)):
        reader.row(at)


class DamageContract(ShardContract):
    """Whatever happens to a file: what it gives is what was written, or it says that it does not."""

    def assert_no_other_rows(self, path: Path, rows: Sequence[Prepared]) -> bool:
        """Whatever happened to a file, what it gives is what was written, or it says so: then return True."""
        try:
            bad = verify_shard(path)
            reader = open_shard(path)
        except ShardCorrupt:
            return True
        assert reader.header == header_for(reader.header.fields)
        assert reader.identities() == [(row.key, row.version) for row in rows]
        for at in set(range(len(rows))) - set(bad):
            assert_same_arrays(reader.row(at), rows[at].arrays)
        return bool(bad)

    def test_a_truncated_shard_is_corrupt_at_every_length(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, (IMAGE, JPEG), make_rows((IMAGE, JPEG), 3))
        for size in range(path.stat().st_size - 1, -1, -1):
            os.truncate(path, size)
            with pytest.raises(ShardCorrupt):
                self.format.open(path)

    def test_a_shard_that_is_cut_short_under_its_reader_is_an_error(self, tmp_path: Path) -> None:
        rows = make_rows(CASES["all kinds"], 40)
        path = self.write(tmp_path, CASES["all kinds"], rows)
        reader = open_shard(path)
        for size in (path.stat().st_size // 2, 0):
            os.truncate(path, size)
            with pytest.raises(ShardCorrupt, match="it ends at"):
                read_all(reader)

    def test_a_shard_with_something_behind_it_is_corrupt(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, (IMAGE,), make_rows((IMAGE,), 3))
        whole = path.read_bytes()
        for more in (b"\0", b"x" * 64, bytes(4096), whole[:-1]):
            path.write_bytes(whole + more)
            with pytest.raises(ShardCorrupt):
                self.format.open(path)

    def test_a_shard_with_a_piece_cut_out_is_corrupt(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, (IMAGE,), make_rows((IMAGE,), 300))
        whole = path.read_bytes()
        start = whole.index(make_rows((IMAGE,), 1)[0].arrays["image"].tobytes())
        path.write_bytes(whole[: start + 90] + whole[start + 180 :])
        with pytest.raises(ShardCorrupt, match="but it was written with"):
            self.format.open(path)

    def test_a_newer_format_says_so(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, (IMAGE,), make_rows((IMAGE,), 1))
        content = bytearray(path.read_bytes())
        content[content.rindex(trailer.MAGIC) + len(trailer.MAGIC)] = 7
        path.write_bytes(content)
        with pytest.raises(ShardCorrupt, match="format 7 is newer than 1") as caught:
            open_shard(path)
        assert "upgrade" in caught.value.hint

    def test_a_flipped_bit_never_gives_other_rows(self, tmp_path: Path) -> None:
        rows = make_rows(CASES["all kinds"], 4)
        path = self.write(tmp_path, CASES["all kinds"], rows)
        whole = path.read_bytes()
        draw = random.Random(7)
        used = [at for at, byte in enumerate(whole) if byte]  # most of the rest is padding
        noticed = 0
        for at in [*draw.sample(used, 500), *draw.sample(range(len(whole)), 300)]:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << draw.randrange(8)
            path.write_bytes(damaged)
            noticed += self.assert_no_other_rows(path, rows)
        assert noticed > 300

    def test_every_flipped_bit_of_a_sample_is_noticed(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE, PATCH), 3)
        path = self.write(tmp_path, (IMAGE, PATCH), rows)
        whole = path.read_bytes()
        image = rows[1].arrays["image"].tobytes()
        start = whole.index(image)
        for bit in range(len(image) * 8):
            damaged = bytearray(whole)
            damaged[start + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            assert verify_shard(path) == [1]

    def test_a_lost_page_never_gives_other_rows(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE, JPEG), 120)
        path = self.write(tmp_path, (IMAGE, JPEG), rows)
        whole = path.read_bytes()
        for start in range(0, len(whole), 4096):
            path.write_bytes(whole[:start] + bytes(len(whole[start : start + 4096])) + whole[start + 4096 :])
            self.assert_no_other_rows(path, rows)

    def test_two_rows_that_changed_places_are_noticed(self, tmp_path: Path) -> None:
        rows = make_rows((IMAGE,), 5)
        path = self.write(tmp_path, (IMAGE,), rows)
        one, other = (rows[at].arrays["image"].tobytes() for at in (1, 3))
        swapped = path.read_bytes().replace(one, b"?" * len(one)).replace(other, one)
        path.write_bytes(swapped.replace(b"?" * len(one), other))
        assert verify_shard(path) == [1, 3]
