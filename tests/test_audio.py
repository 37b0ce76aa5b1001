"""Sound from a source to a training loop, with real processes; and voxceleb_trainer on staged clips."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

import trainer
from check_voxceleb import compare
from running import Place
from sets import table
from sounds import RATE, bad_sounds, clip, encoded, speakers
from stager.errors import UsageError
from stager_client import voxceleb
from stager_client.numpy import GridSegments, RandomSegment, StagedArrays
from stager_client.torch import StagedDataset
from stager_client.voxceleb import SpeakerOrder, loadWAV

EXAMPLES = Path(__file__).parent.parent / "examples"
RECIPE = 'kind = "audio"\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A service that has staged clips, and has bad files beside good ones in its config."""
    root = tmp_path_factory.mktemp("audio")
    speakers(root / "clips")
    (root / "linked").symlink_to(root / "clips")
    speakers(root / "mixed", 1)
    (root / "mixed/bad").mkdir()
    for name, (data, _) in bad_sounds().items():
        (root / "mixed/bad" / name).write_bytes(data)
    place = Place(root).configure(
        table("clips", root / "clips", RECIPE + f"rate = {RATE}")
        + table("floats", root / "floats", RECIPE + 'dtype = "float32"')
        + table("mixed", root / "mixed", RECIPE)
        + table("made", root / "made", RECIPE + f"rate = {RATE}")
    )
    with place.service(), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("STAGER_CONFIG", str(place.config))
        voxceleb._sources.cache_clear()
        assert place.json("prefetch", "clips")["staged"] == 12
        yield place
    voxceleb._sources.cache_clear()
    voxceleb._open.cache_clear()


def test_bad_files_fail_alone_each_with_its_line(place: Place) -> None:
    told = place.json("prefetch", "mixed", "--format", "arrow", code=3)
    bad = bad_sounds()
    assert (told["staged"], told["failed"]) == (4, len(bad))
    failed = place.json("ls", "--failed", "mixed")
    assert {row["key"]: row["reason"] for row in failed} == {
        f"bad/{name}": reason for name, (_, reason) in bad.items()
    }
    lines = place.run("ls", "--failed", "mixed").stdout.splitlines()
    for name in bad:
        (line,) = (line for line in lines if f"bad/{name}" in line)
        assert bad[name][1] in line
    assert any("4,294,967,280 bytes of sound, there are" in line for line in lines)


def test_every_segment_of_a_loader_is_of_its_clip(place: Place) -> None:
    for values, labels in StagedArrays("clips", 5, cut=GridSegments(3, seconds=0.5), columns=["audio"]):
        assert values["audio"].shape[1:] == (3, RATE // 2)
        assert values["audio"].dtype == np.int16
        assert len(labels) == len(values["audio"])
    data = StagedDataset("clips")
    samples, _ = soundfile.read(place.root / "clips" / data.samples.key(2), dtype="int16")
    assert np.array_equal(data[2][0]["audio"] if isinstance(data[2][0], dict) else data[2][0], samples)


def test_load_wav_is_voxceleb_trainers_in_both_versions(place: Place) -> None:
    assert compare(sorted((place.root / "clips").rglob("*.wav")), range(120)) > 1000


def test_load_wav_finds_a_clip_by_any_path_that_leads_to_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.root / "clips/id00001/00002.wav"
    expected = trainer.load(path, 100)
    monkeypatch.chdir(place.root / "clips/id00002")
    ways = (path, str(path), "../id00001/00002.wav", place.root / "linked/id00001/00002.wav")
    assert all(np.array_equal(loadWAV(way, 100), expected) for way in ways)


def test_a_clip_that_is_not_staged_says_what_to_do(place: Place) -> None:
    with pytest.raises(UsageError, match="clips has no such clip") as raised:
        loadWAV(place.root / "clips/id00001/99999.wav", 100)
    assert "stager prefetch clips" in raised.value.hint
    with pytest.raises(UsageError, match="no staged data set of sound") as raised:
        loadWAV(place.root / "elsewhere/1.wav", 100)
    assert "prefetch" in raised.value.hint


def test_load_wav_finds_what_was_staged_since_and_reads_floats(place: Place) -> None:
    path = place.root / "floats/id/deep/er/fine.flac"
    with pytest.raises(UsageError):
        loadWAV(path, 50)
    path.parent.mkdir(parents=True)
    path.write_bytes(encoded(clip(2.0, 3) / 40_000, "FLAC", "PCM_24"))
    assert place.json("prefetch", "floats")["staged"] == 1
    random.seed(1)
    expected = trainer.load(path, 50, evalmode=False)
    random.seed(1)
    assert np.array_equal(loadWAV(path, 50, evalmode=False), expected)


IN_A_DATA_LOADER = """
import sys, random, torch
from pathlib import Path
import trainer
from stager_client.voxceleb import loadWAV

class Clips(torch.utils.data.Dataset):
    paths = sorted(Path(sys.argv[1]).rglob("*.wav"))
    def __len__(self): return len(self.paths)
    def __getitem__(self, at):
        random.seed(at)
        ours = loadWAV(self.paths[at], 100, evalmode=False)
        random.seed(at)
        return bool((ours == trainer.load(self.paths[at], 100, evalmode=False)).all())

if __name__ == "__main__":
    for way in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Clips(), 3, num_workers=1, multiprocessing_context=way)
        assert sum(int(same.sum()) for same in loader) == len(Clips())
        loadWAV(Clips.paths[0], 100)  # what a child inherits is open
"""


def test_load_wav_works_in_the_workers_of_a_data_loader(place: Place, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IN_A_DATA_LOADER)
    env = {**place.env(), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, str(program), str(place.root / "clips")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# The sampler


@pytest.mark.parametrize(
    ("clips", "clips_max", "batch", "ranks"), [(1, 500, 4, 1), (2, 6, 3, 2), (3, 7, 2, 3)]
)
def test_an_order_is_that_of_voxceleb_trainers_sampler(
    clips: int, clips_max: int, batch: int, ranks: int
) -> None:
    labels = np.random.default_rng(clips).permutation(np.repeat(np.arange(9) * 3, np.arange(4, 13)))
    order = SpeakerOrder(labels, clips, clips_max, batch, seed=7, world_size=ranks)
    for epoch in (0, 1, 5):
        for rank in range(ranks):
            theirs = trainer.sampler(labels.tolist(), clips, clips_max, batch, 7, epoch, rank, ranks)
            assert len(theirs) > 0
            assert order(epoch)[rank::ranks].tolist() == [at for group in theirs for at in group]


def test_a_loader_goes_by_that_order_and_no_batch_has_a_speaker_twice(place: Place) -> None:
    labels = StagedDataset("clips").targets
    order = SpeakerOrder(labels, nPerSpeaker=2, batch_size=3)
    loader = StagedArrays("clips", 6, order=order, cut=RandomSegment(seconds=0.5), columns=["audio"])
    for epoch in range(2):
        theirs = trainer.sampler(labels, 2, 500, 3, 10, epoch)
        found = [batch.tolist() for _, batch in loader]
        assert np.concatenate(found).tolist() == [labels[at] for group in theirs for at in group]
        assert all(len(set(batch[::2])) == 3 for batch in found)
    for wrong in ({"nPerSpeaker": 0}, {"world_size": 0}):
        with pytest.raises(UsageError):
            SpeakerOrder(labels, **wrong)


def test_the_example_learns_to_tell_speakers_apart(place: Place) -> None:
    def run(program: str, *arguments: str) -> str:
        command = [sys.executable, str(EXAMPLES / program), *arguments]
        return subprocess.run(
            command, env=place.env(), check=True, timeout=150, capture_output=True, text=True
        ).stdout

    run("audio_clips.py", str(place.root / "made"), "--speakers", "4", "--clips", "5")
    told = run("train_audio.py", "made", "--epochs", "6").splitlines()
    assert len(told) == 7
    right = int(told[-1].split("%")[0])
    assert right >= 75, told
