"""Sound files for tests: clips that are unlike one another, and files with something wrong."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

RATE = 16_000
HEAD = 44  # bytes of the WAV files that `encoded` makes, in front of their sound


def clip(seconds: float, seed: int = 0, channels: int = 1, rate: int = RATE) -> npt.NDArray[np.int16]:
    """A tone in noise; of several channels, each has its own."""
    random = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate))[:, None] / rate
    tones = 9_000 * np.sin(2 * np.pi * (200 + 40 * random.integers(1, 20, channels)) * at)
    samples = tones + random.normal(0, 2_000, tones.shape)
    return samples.astype(np.int16)[:, 0] if channels == 1 else samples.astype(np.int16)


def encoded(
    samples: npt.NDArray[Any], kind: str = "WAV", subtype: str | None = None, rate: int = RATE
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def claiming(size_bytes: int, samples: npt.NDArray[np.int16]) -> bytes:
    """A WAV whose header says that it has so many bytes of sound."""
    data = bytearray(encoded(samples))
    struct.pack_into("<I", data, 4, min(size_bytes + HEAD - 8, 0xFFFFFFFF))
    struct.pack_into("<I", data, HEAD - 4, size_bytes)
    return bytes(data)


def bad_sounds() -> dict[str, tuple[bytes, str]]:
    """By name: bytes, and the reason why they cannot be staged."""
    samples = clip(0.5)
    wav, flac = encoded(samples), encoded(samples, "FLAC")
    ogg, mp3 = encoded(samples, "OGG"), encoded(samples, "MP3")
    return {
        "cut.wav": (wav[: len(wav) // 2], "truncated"),
        "cut-by-a-byte.wav": (wav[:-1], "truncated"),
        "no-sound-yet.wav": (wav[: HEAD - 10], "truncated"),
        "claims-4-gb.wav": (claiming(0xFFFFFFF0, samples), "truncated"),
        "silent.wav": (encoded(samples[:0]), "truncated"),
        "empty.wav": (b"", "truncated"),
        "text.wav": (
            b"It is said that there was sound here once. " * 20,
            "unknown_format",
        ),
        "cut.flac": (flac[: len(flac) // 2], "corrupt"),
        "cut.ogg": (ogg[: len(ogg) * 3 // 4], "truncated"),
        "cut.mp3": (mp3[: len(mp3) // 2], "truncated"),
    }


def speakers(root: Path, count: int = 3, clips: int = 4, seconds: float = 3.0) -> dict[str, Path]:
    """Folders of clips, a folder a speaker; every fourth clip is shorter than a second."""
    found = {}
    for speaker in range(count):
        folder = root / f"id{speaker:05d}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(clips):
            length = 0.3 + 0.05 * speaker if number % 4 == 3 else seconds + 0.1 * number
            path = folder / f"{number:05d}.wav"
            path.write_bytes(encoded(clip(length, speaker * clips + number)))
            found[f"{folder.name}/{path.name}"] = path
    return found
