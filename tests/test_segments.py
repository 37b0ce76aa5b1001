"""Segments of clips: those that voxceleb_trainer takes, in every client, and no other byte is read."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainer
from fielded import stage_by_hand
from running import Place
from sounds import clip, encoded
from stager.errors import UsageError
from stager.reader.cuts import CUTS, open_cut
from stager.reader.cuts.cut import Cut, Draws
from stager.reader.cuts.segment import GridSegments, RandomSegment
from stager.reader.order import epoch_order
from stager.reader.values import Field
from stager_client import cuts, numpy, torch
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader

COUNT, FRAMES, RATE = 30, 700, 8_000
LENGTHS = [1, 2, 349, 350, 351, 698, 699, 700, 701, 702, *range(900, 900 + 31 * 20, 31)]
CLIP = Field("clip", "int16", (None,), batch="pad", rate=RATE)
STEREO = Field("stereo", "float32", (None, 2), rate=RATE)
NOTE = Field("note", "uint8", (2,))
FORMATS = ("arrow", "lmdb")
Segment = npt.NDArray[Any]


def sample_of(number: int) -> dict[str, npt.NDArray[Any]]:
    random, length = np.random.default_rng(number), LENGTHS[number]
    return {
        "clip": random.integers(-30_000, 30_000, length).astype(np.int16),
        "stereo": random.random((length, 2)).astype(np.float32),
        "note": np.array([number, 7], np.uint8),
    }


SAMPLES = [sample_of(number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("segments")).configure("")
    for kind in FORMATS:
        stage_by_hand(place, f"clips-{kind}", [CLIP, STEREO, NOTE], SAMPLES, {}, kind)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("STAGER_CONFIG", str(place.config))
        yield place


def padded(samples: Segment, pad: str, frames: int) -> Segment:
    """A clip that is too short, as voxceleb_trainer fills it up: today, and in its first months."""
    if len(samples) > frames:
        return samples
    rest = [(0, 0)] * (samples.ndim - 1)
    if pad == "wrap":
        return np.pad(samples, [(0, frames - len(samples) + 1), *rest], "wrap")
    shortage = (frames - len(samples) + 1) // 2
    return np.pad(samples, [(shortage, shortage), *rest])


def expected(cut: Cut, samples: Segment, draw: int, seed: int, epoch: int) -> Segment:
    """The segments of a draw, in plain NumPy."""
    assert isinstance(cut, RandomSegment | GridSegments)
    frames, count = cut.frames or 0, cut.count or 1
    whole = padded(samples, cut.pad, frames)
    room = len(whole) - frames
    if isinstance(cut, GridSegments):
        starts = np.linspace(0, room, num=count).tolist()
    else:
        starts = (Draws.of(seed, epoch, np.array([draw]), np.array([0])).uniforms(count)[0] * room).tolist()
    found = np.stack([whole[int(start) : int(start) + frames] for start in starts])
    return found if cut.count else found[0]


def cut_of(cut: Cut, samples: Segment, draw: int = 0) -> Segment:
    """What the cut's pieces make of a sample."""
    cut = cut.for_fields({"clip": CLIP})
    draws = Draws.of(3, 4, np.array([draw]), np.array([0]))
    out = np.full([side or 0 for side in cut.shapes({"clip": (None,)})["clip"]], 77, samples.dtype)
    pieces = cut.pieces(draws, cut.rows(draws), {"clip": np.array([samples.shape])})["clip"]
    pieces.check(np.array([samples.size]), out.size)
    pieces.copy(out, lambda row, start, count: samples[start : start + count])
    return out


CUT = st.builds(
    lambda kind, count, frames, pad: kind(count, frames=frames, pad=pad),
    *(st.sampled_from([RandomSegment, GridSegments]), st.none() | st.integers(1, 12)),
    *(st.integers(1, 90), st.sampled_from(["wrap", "zero"])),
)


@given(cut=CUT, length=st.integers(1, 200), draw=st.integers(0, 2**40))
def test_segments_are_those_of_a_clip_that_was_padded(cut: Cut, length: int, draw: int) -> None:
    samples = np.arange(1, length + 1)
    assert np.array_equal(cut_of(cut, samples, draw), expected(cut, samples, draw, 3, 4))


@settings(max_examples=40, deadline=None)
@given(
    seconds=st.floats(0.001, 1.2),
    max_frames=st.integers(1, 60),
    num_eval=st.integers(1, 12),
    draw=st.integers(0, 2**40),
)
def test_segments_are_those_of_voxceleb_trainer(
    seconds: float, max_frames: int, num_eval: int, draw: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    samples, path = clip(seconds, draw % 7), tmp_path_factory.getbasetemp() / "clip.wav"
    path.write_bytes(encoded(samples))
    frames = trainer.frames_of(max_frames)
    (drawn,) = Draws.of(3, 4, np.array([draw]), np.array([0])).uniforms(1)[0].tolist()
    for pad, load, scale in (("wrap", trainer.load, 32_768), ("zero", trainer.load_before, 1)):
        with patch("random.random", lambda drawn=drawn: drawn):
            theirs = np.asarray(load(path, max_frames, evalmode=False))
        ours = cut_of(RandomSegment(1, frames=frames, pad=pad), samples, draw)
        assert np.array_equal(ours / scale, theirs)
        theirs = np.asarray(load(path, max_frames, num_eval=num_eval))
        assert np.array_equal(cut_of(GridSegments(num_eval, frames=frames, pad=pad), samples) / scale, theirs)


# In a loader

LOADERS: dict[str, Callable[..., Any]] = {
    "torch": lambda name, size, **more: StagedLoader(StagedDataset(name), size, **more),
    "numpy": StagedArrays,
}
SEGMENTS = [
    RandomSegment(seconds=FRAMES / RATE),
    RandomSegment(3, frames=FRAMES, pad="zero"),
    GridSegments(5, frames=FRAMES),
    GridSegments(2, frames=50, pad="zero", fields=["stereo", "clip"]),
]


@pytest.mark.parametrize("client", LOADERS)
@pytest.mark.parametrize("cut", SEGMENTS, ids=lambda cut: f"{cut.kind}-{cut.count}-{cut.pad}")
@pytest.mark.parametrize("kind", FORMATS)
def test_each_draw_has_its_segments_at_the_first_touch_and_afterwards(
    place: Place, client: str, cut: Cut, kind: str
) -> None:
    resolved = cut.for_fields({"clip": CLIP, "stereo": STEREO})
    loader = LOADERS[client](f"clips-{kind}", 8, shuffle=True, seed=5, cut=cut)
    for epoch in range(2):
        order, draw = epoch_order(COUNT, 5, epoch), 0
        for values, _ in loader:
            for at in range(len(values["note"])):
                sample = SAMPLES[order[draw]]
                for name in ("clip", "stereo"):
                    right = expected(resolved, sample[name], draw, 5, epoch)
                    assert np.array_equal(np.asarray(values[name][at]), right)
                assert np.array_equal(np.asarray(values["note"][at]), sample["note"])
                draw += 1
        assert draw == COUNT


def test_any_world_size_and_a_resume_see_the_same_segments(place: Place) -> None:
    def part(rank: int, ranks: int, state: Any = None, stop: int | None = None) -> tuple[list[Any], Any]:
        loader = StagedArrays(
            "clips-arrow", 3, shuffle=True, seed=9, rank=rank, world_size=ranks, columns=["clip"],
            cut=RandomSegment(2, frames=FRAMES),
        )  # fmt: skip
        if state:
            loader.load_state_dict(state)
        found = [batch["clip"].copy() for batch, _ in itertools.islice(loader, stop)]
        return [row for batch in found for row in batch], loader.state_dict()

    whole, _ = part(0, 1)
    halves = [part(rank, 2)[0] for rank in (0, 1)]
    first, state = part(0, 1, stop=4)
    rest = [part(rank, 2, state)[0] for rank in (0, 1)]
    assert np.array_equal([row for pair in zip(*halves, strict=True) for row in pair], whole)
    assert np.array_equal([*first, *(row for pair in zip(*rest, strict=True) for row in pair)], whole)


def bytes_read() -> int:
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@pytest.mark.parametrize("kind", FORMATS)
def test_only_the_bytes_of_the_segments_are_read_once_a_clip_was_checked(place: Place, kind: str) -> None:
    loader = StagedArrays(f"clips-{kind}", 10, columns=["clip"], threads=1, cut=RandomSegment(frames=64))
    list(loader)
    before = bytes_read()
    assert len(list(loader)) == 3
    read = bytes_read() - before
    about_itself = 200  # to ask how much was read is to read
    assert COUNT * 64 * 2 - 2 * (64 * 2) <= read <= COUNT * 64 * 2 + about_itself  # two clips are tiny


# What is refused


@pytest.mark.parametrize("cut", SEGMENTS)
def test_a_cut_is_the_same_after_its_way_through_json(cut: Cut) -> None:
    assert open_cut(json.loads(json.dumps(cut.to_json()))) == cut


@pytest.mark.parametrize(
    "value",
    [
        *({}, {"frames": 3, "seconds": 1.0}, {"seconds": 0}, {"seconds": True}, {"seconds": "2"}),
        *({"seconds": float("inf")}, {"frames": 0}, {"frames": 1.5}, {"frames": 2**40}, {"frames": True}),
        *({"frames": 3, "count": count} for count in (0, -1, 5000, "3")),
        *({"frames": 3, **more} for more in ({"pad": "x"}, {"fields": "clip"}, {"fields": [3]}, {"x": 1})),
    ],
)
@pytest.mark.parametrize("kind", ["random_segment", "grid_segments"])
def test_a_segment_that_makes_no_sense_is_refused(kind: str, value: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        open_cut({"kind": kind, **value})
    assert raised.value.hint


@pytest.mark.parametrize(
    ("fields", "cut", "told"),
    [
        ([NOTE], RandomSegment(frames=3), "no field has samples of any length"),
        ([CLIP], RandomSegment(frames=3, fields=["clib"]), "no field 'clib'"),
        ([Field("map", "uint8", (None, None))], RandomSegment(frames=3), "several sides"),
        ([Field("clip", "int16", (None,))], RandomSegment(seconds=2), "no rate is said"),
        ([CLIP, Field("other", "int16", (None,), rate=9)], RandomSegment(seconds=2), "different rates"),
    ],
)
def test_what_cannot_be_cut_of_these_fields_is_refused(fields: Sequence[Field], cut: Cut, told: str) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        cut.for_fields({field.name: field for field in fields})
    assert raised.value.hint


def test_segments_are_found_where_the_loaders_are() -> None:
    for name, kind in (("RandomSegment", "random_segment"), ("GridSegments", "grid_segments")):
        places = (torch, numpy, cuts)
        assert all(getattr(place, name) is CUTS[kind] for place in places)
