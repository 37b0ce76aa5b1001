"""Speaker clips on a network mount: the user reads each whole file with soundfile, in the training."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.report import Section
from bench.rounds import Answer, Entry
from bench.workloads.workload import Place, Workload

RATE: Final = 16_000
OPENING_MS: Final = 5.0
SECONDS: Final = (4.0, 12.0)  # clips of VoxCeleb are 8 s long on average
CLIPS, CLIPS_QUICK, A_SPEAKER = 1_200, 400, 20

SECTION: Final = Section(
    "audio",
    "Audio: segments of 2 s of clips of 8 s, from a source with 5 ms an opening",
    "Segments/s in batches of 100. The user's way is `soundfile.read` of each whole file in two workers of a"
    " DataLoader, as voxceleb_trainer does it. `loadWAV` is the drop-in of stager_client in its place. Each"
    " run checks 200 segments against soundfile. The memory copy moves as many bytes from memory to memory,"
    " in two threads.",
    (("rate", "segments/s"), ("rate_epoch_0", "epoch 0"), ("mb_per_s", "MB/s")),
)


def measure(place: Place) -> None:
    clips = place.work / "clips"
    count = CLIPS_QUICK if place.is_quick else CLIPS
    _make(clips, count)
    task = {"clips": str(clips), "count": count, "seconds_min": 0.5 if place.is_quick else 3.0}
    slow = place.slow_files(clips, OPENING_MS)
    table = f'[datasets.audio]\nsource = "{clips}"\n[datasets.audio.recipe]\nkind = "audio"\nrate = {RATE}\n'

    def theirs() -> Answer:
        return place.child("audio_runs", {**task, "verb": "soundfile"}, **slow)

    def cold() -> Answer:
        root = place.work / f"cold-{place.round}"
        with place.service(root.name, table, **slow) as service:
            config = service.environ()["STAGER_CONFIG"]
            return place.child("audio_runs", {**task, "verb": "segments"}, STAGER_CONFIG=config, **slow)

    with place.service("warm", table) as service:
        told = service.prefetch("audio")
        if told.get("problem") or told.get("staged") != count:
            raise RuntimeError(f"staging failed: {told}")
        config = service.environ()["STAGER_CONFIG"]

        def staged(verb: str) -> Answer:
            return place.child("audio_runs", {**task, "verb": verb}, STAGER_CONFIG=config)

        place.alternate(
            SECTION.name,
            [
                Entry("soundfile, 2 workers", "user", theirs),
                Entry("stager, cold", "stager", cold),
                Entry("stager, warm", "stager", lambda: staged("segments")),
                Entry("loadWAV, 2 workers", "stager", lambda: staged("load_wav")),
                Entry("memory copy", "limit", lambda: staged("copy")),
            ],
        )


def _make(folder: Path, count: int) -> None:
    """WAV of tones in noise, of any length."""
    import soundfile

    random = np.random.default_rng(1)
    noise = random.normal(0, 2_000, int(2 * SECONDS[1] * RATE))
    for number in range(count):
        path = folder / f"id{number // A_SPEAKER:05}" / f"{number:05}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        length = int(random.uniform(*SECONDS) * RATE)
        begin = int(random.integers(len(noise) - length))
        tone = 8_000 * np.sin(np.arange(length) * (0.02 + 0.0001 * number))
        samples: Any = (tone + noise[begin : begin + length]).astype(np.int16)
        soundfile.write(path, samples, RATE)


AUDIO: Final = Workload(SECTION, measure)
