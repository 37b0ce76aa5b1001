"""Make clips to try things on: python examples/audio_clips.py FOLDER --speakers 8 --clips 20

A folder a speaker, WAV of 16 kHz, 3 to 9 seconds. A speaker is a pitch and three resonances; a clip is noise
and pulses at that pitch, through these.
"""

import argparse
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import soundfile

RATE: Final = 16_000


def voice(speaker: int, seconds: float, seed: int) -> npt.NDArray[np.int16]:
    """A clip of a speaker, with a melody of its own."""
    of_speaker, random = np.random.default_rng(speaker), np.random.default_rng([speaker, seed])
    pitch = of_speaker.uniform(80, 260)
    resonances = of_speaker.uniform([300, 900, 2_000], [900, 2_000, 3_500])
    count = int(seconds * RATE)
    melody = np.interp(np.linspace(0, 9, count), np.arange(10), random.uniform(0.85, 1.15, 10))
    phases = np.cumsum(pitch * melody / RATE)
    pulses = np.diff(np.floor(phases), prepend=0) + random.normal(0, 0.03, count)
    spectrum, bands = np.fft.rfft(pulses), np.fft.rfftfreq(count, 1 / RATE)
    shape = sum(1 / (1 + ((bands - centre) / 90) ** 2) for centre in resonances)
    sound = np.fft.irfft(spectrum * shape, count)
    return (sound / np.abs(sound).max() * random.uniform(6_000, 30_000)).astype(np.int16)


def make_clips(folder: Path, speakers: int, clips: int) -> None:
    for speaker in range(speakers):
        (folder / f"id{speaker:05}").mkdir(parents=True, exist_ok=True)
        for number in range(clips):
            seconds = np.random.default_rng([speaker, number]).uniform(3, 9)
            path = folder / f"id{speaker:05}" / f"{number:05}.wav"
            soundfile.write(path, voice(speaker, seconds, number), RATE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--speakers", type=int, default=8)
    parser.add_argument("--clips", type=int, default=20, help="of each speaker")
    options = parser.parse_args()
    make_clips(options.folder, options.speakers, options.clips)
    print(f"{options.speakers * options.clips} clips in {options.folder}")
