"""Pieces of rows come to their places in a batch, in C and without it; and draws of several rows."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fielded import stage_by_hand
from running import Place
from stager.clock import SYSTEM
from stager.reader.cuts.cut import Draws, Rows, Sides
from stager.reader.cuts.pieces import OUTPUT, ZEROS, Pieces, boxes, runs
from stager.reader.index import pack_words
from stager.reader.order import epoch_order
from stager.reader.samples.subset import Subset
from stager.reader.shards.file import Descriptor
from stager.reader.values import Arrays, Field, Numbers, Shape
from stager.sessions.session import OpenSession, OrderRequest
from stager_client.numpy import StagedArrays
from stager_client.reading.rows import FoundRows, ReadableShard, ReadableShards

FORMATS = ("arrow", "lmdb")
HEAD_BYTES = 64  # of a file, before its rows


pytestmark = pytest.mark.usefixtures("with_and_without_c")


class File:
    """A shard of one column whose rows differ in their sides."""

    def __init__(self, path: Path, rows: Sequence[npt.NDArray[Any]]) -> None:
        starts = HEAD_BYTES + np.cumsum([0, *(row.nbytes for row in rows)])[:-1]
        path.write_bytes(bytes(HEAD_BYTES) + b"".join(row.tobytes() for row in rows))
        self.index = pack_words(3, np.arange(len(rows)), "arrow")
        sides = np.array([row.shape for row in rows], np.int64)
        shard = ReadableShard(Descriptor(os.open(path, os.O_RDONLY)), [starts], None, [sides])
        shape = (None,) * rows[0].ndim
        self.checked = self.index.copy()
        self.shards = ReadableShards(self.index, self.checked, [0], {3: shard}, [shape])

    def copy(self, pieces: Pieces, out: npt.NDArray[Any], numbers: Sequence[int]) -> list[int]:
        """Copy pieces of these rows; return the words, as 1 or 0."""
        found = self.shards.find(np.array(numbers))
        return (self.shards.copy(found, [pieces], [out]) != 0).astype(int).tolist()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_boxes_are_numpys_slices(tmp_path: Path, data: st.DataObject) -> None:
    """Any boxes of any rows to any place of an output: bricks of a patch, windows, segments."""
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    ndim, dtype = data.draw(st.integers(1, 4)), data.draw(st.sampled_from(["u1", "i2", "f4", "f8"]))
    one_of = st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)
    rows = [random.integers(0, 200, sides).astype(dtype) for sides in data.draw(st.lists(one_of, min_size=1))]
    out_shape, draws = data.draw(one_of), data.draw(st.integers(1, 3))
    out = random.integers(0, 200, (draws, *out_shape)).astype(dtype)
    right, table = out.copy(), []
    for _ in range(data.draw(st.integers(0, 6))):
        row, draw = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, draws - 1))
        room = np.minimum(rows[row].shape, out_shape)
        counts = [data.draw(st.integers(0, int(most))) for most in room]
        start = [
            data.draw(st.integers(0, side - count))
            for side, count in zip(rows[row].shape, counts, strict=True)
        ]
        to = [data.draw(st.integers(0, side - count)) for side, count in zip(out_shape, counts, strict=True)]
        table.append((row, draw, start, counts, to))
        where, there = (
            tuple(slice(at, at + count) for at, count in zip(of, counts, strict=True)) for of in (start, to)
        )
        right[draw][there] = rows[row][where]
    file = File(tmp_path / "shard", rows)
    if table:
        of, of_draws, starts, counts, to = (np.array(column) for column in zip(*table, strict=True))
        sides = np.array([rows[row].shape for row in of])
        pieces = boxes(of, sides, starts, counts, of_draws, out_shape, to)
        assert file.copy(pieces, out, range(len(rows))) == [1] * len(rows)
    assert np.array_equal(out, right)


def test_a_piece_that_is_larger_than_what_is_read_at_once_comes_whole(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).integers(0, 250, (300, 40, 900)).astype(np.uint8)
    file, out = File(tmp_path / "shard", [whole, whole[::-1].copy()]), np.zeros((1, 250, 30, 800), np.uint8)
    one = np.array([1])
    pieces = boxes(
        one, np.array(whole.shape), np.array([7, 5, 90]), np.array(out.shape[1:]), one - 1, out.shape[1:]
    )
    assert file.copy(pieces, out, [0, 1]) == [1, 1]
    assert np.array_equal(out[0], whole[::-1][7:257, 5:35, 90:890])


@given(length=st.integers(1, 40), frames=st.integers(1, 300))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fills_are_zeros_or_what_is_in_the_output_already(tmp_path: Path, length: int, frames: int) -> None:
    clip, out = np.arange(1, length + 1, dtype=np.int16), np.full((2, frames), -1, np.int16)
    had = min(length, frames)
    table = [(0, 0, 0, had), (0, 0, frames, had), (ZEROS, 0, had, frames - had)]
    while had < frames:  # the second output is filled with itself
        more = min(had, frames - had)
        table.append((OUTPUT, frames, frames + had, more))
        had += more
    pieces = runs(*np.array(table).T)
    assert File(tmp_path / "shard", [clip]).copy(pieces, out, [0]) == [1]
    assert out[0].tolist() == [*clip[:frames], *[0] * (frames - length)]
    assert out[1].tolist() == list(itertools.islice(itertools.cycle(clip), frames))


@pytest.mark.parametrize(
    "piece",
    [
        (0, 95, 0, 6),
        (0, 0, 15, 6),
        (0, -1, 0, 3),
        (0, 0, -1, 3),
        (1, 0, 0, 1),
        (-3, 0, 0, 1),
        (OUTPUT, 18, 0, 3),
    ],
)
def test_a_piece_that_reaches_outside_is_refused(tmp_path: Path, piece: tuple[int, ...]) -> None:
    """C would read or write there."""
    file, out = File(tmp_path / "shard", [np.zeros(100, np.uint8)]), np.zeros(20, np.uint8)
    with pytest.raises(AssertionError):
        file.copy(runs(*np.array([piece]).T), out, [0])
    file.copy(runs(*np.array([(0, 94, 14, 6), (OUTPUT, 17, 0, 3), (ZEROS, 0, 17, 3)]).T), out, [0])


def test_a_row_that_cannot_be_read_whole_or_whose_word_goes_is_lost_alone(tmp_path: Path) -> None:
    rows = [np.full(100, number, np.uint8) for number in range(4)]
    file, out = File(tmp_path / "shard", rows), np.zeros((4, 10), np.uint8)
    numbers, tens = np.arange(4), np.full(4, 10)
    pieces = runs(numbers, np.full(4, 90), numbers * 10, tens)
    found = file.shards.find(numbers)
    file.index[1] = 0
    os.truncate(tmp_path / "shard", HEAD_BYTES + 395)
    words = file.shards.copy(found, [pieces], [out])
    assert (words != 0).tolist() == [True, False, True, False]
    assert out[[0, 2]].tolist() == [[0] * 10, [2] * 10]


def test_only_rows_that_were_checked_and_noted_are_found(tmp_path: Path) -> None:
    file = File(tmp_path / "shard", [np.zeros(9, np.uint8)] * 4)
    file.checked[0] = 0
    file.index[1] ^= np.uint64(1 << 40)  # damaged
    file.shards._shards[3].starts[0][2] = 0  # another thread is about to note it
    assert (file.shards.find(np.array([0, 1, 2, 3, 99, -1])).words != 0).tolist() == [False] * 3 + [True] + [
        False
    ] * 2
    empty = file.shards.find(np.zeros(0, np.int64))
    assert isinstance(empty, FoundRows)
    assert len(empty.words) == 0


# Several rows a draw


@dataclass(frozen=True)
class Neighbours:
    """Of each draw the sample and those behind it, as many as its number says, joined; and zeros."""

    frames: int

    def for_fields(self, fields: Mapping[str, Field]) -> Self:
        return self

    def rows(self, draws: Draws) -> Rows:
        counts = 1 + (draws.uniforms(1)[:, 0] * 4).astype(np.int64)
        ends = np.cumsum(counts)
        behind = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        return Rows((np.repeat(draws.positions, counts) + behind) % COUNT, ends)

    def shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        return dict.fromkeys(shapes, (self.frames,))

    def pieces(self, draws: Draws, rows: Rows, sides: Mapping[str, Sides]) -> dict[str, Pieces]:
        return {name: self._pieces(draws, rows, of[:, 0]) for name, of in sides.items()}

    def _pieces(self, draws: Draws, rows: Rows, lengths: Numbers) -> Pieces:
        table, row = [], 0
        assert rows.ends is not None
        for place, end in zip(draws.places.tolist(), rows.ends.tolist(), strict=True):
            at = 0
            while row < end:
                count = min(int(lengths[row]), self.frames - at)
                table.append((row, 0, place * self.frames + at, count))
                at, row = at + count, row + 1
            table.append((ZEROS, 0, place * self.frames + at, self.frames - at))
        return runs(*np.array(table).T)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "neighbours", "frames": self.frames}


COUNT = 30
SAMPLES: list[Arrays] = [
    {"wave": np.full(3 + number % 5, number, np.int16), "note": np.array([number])} for number in range(COUNT)
]
FIELDS = [Field("wave", "int16", (None,)), Field("note", "int64", (1,))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("draws")).configure("")
    for kind in FORMATS:
        stage_by_hand(place, kind, FIELDS, SAMPLES, {}, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


def joined(draw: int, position: int, seed: int, epoch: int, frames: int) -> list[int]:
    one = Draws.of(seed, epoch, np.array([draw]), np.array([position]))
    rows = Neighbours(frames).rows(one).positions
    found = np.concatenate([SAMPLES[row]["wave"] for row in rows.tolist()])[:frames].tolist()
    return [*found, *[0] * (frames - len(found))]


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_draw_of_several_rows_is_one_sample_of_a_batch(place: Place, kind: str, check: str) -> None:
    arrays = StagedArrays(kind, 7, seed=4, cut=Neighbours(15), columns=["wave"], check=check)
    for epoch in range(2):
        found = [row for batch, _ in arrays for row in batch["wave"].tolist()]
        assert found == [joined(draw, draw, 4, epoch, 15) for draw in range(COUNT)]


def test_the_rows_of_some_draws_are_theirs() -> None:
    draws = Draws.of(1, 2, np.arange(20), np.arange(20))
    rows = Neighbours(9).rows(draws)
    which = np.array([3, 4, 11, 0])
    places, some = rows.some(which)
    assert some.ends is not None
    assert rows.positions[places].tolist() == some.positions.tolist()
    assert some.positions.tolist() == Neighbours(9).rows(draws.some(which)).positions.tolist()
    assert [rows.draw_of()[place] for place in places] == which[some.draw_of()].tolist()
    assert rows.ends is not None
    assert [rows.before(draw) for draw in (0, 1, 20, 99)] == [0, *rows.ends[[0, -1, -1]].tolist()]


def test_the_service_stages_the_rows_of_a_draw_and_counts_in_rows_how_far_a_reader_is() -> None:
    numbers = np.arange(100, 100 + COUNT)
    manifest: Any = SimpleNamespace()
    asked = OrderRequest(
        *("session", "data", "recipe", "lineage", "manifest"), Subset(), shuffle=True, seed=5, epoch=1,
        rank=1, world_size=2, drop_last=False, length=COUNT, start=4, cut=Neighbours(9),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        drawn = SimpleNamespace(numbers=numbers)
        patch.setattr("stager.sessions.session.draw", lambda manifest, subset: drawn)
        session = OpenSession(asked, manifest, manifest, SYSTEM)
    mine = np.arange(4, COUNT)[1::2]
    rows = Neighbours(9).rows(Draws.of(5, 1, mine, epoch_order(COUNT, 5, 1)[mine]))
    assert session.order.tolist() == numbers[rows.positions].tolist()
    assert len(session.order) > len(mine)
    assert rows.ends is not None
    assert session.heard(3).tolist() == session.order[: rows.ends[2]].tolist()
    assert session.heard(5).tolist() == session.order[rows.ends[2] : rows.ends[4]].tolist()
    assert session.position == rows.ends[4]
