"""The recipe for sound: decode, mix to one channel, resample, trim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Data, Kind, Needs
from stager.reader.values import Arrays, Field, canonical_json, digest_of
from stager.recipes.audio.decode import Samples, decode, resample
from stager.recipes.kind import BATCHES, RecipeKind
from stager.recipes.paths import check_path, needs_of

VERSION: Final = "audio/1"  # to be raised when the same keys come to give other samples
ENDINGS: Final = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3")
DTYPES: Final = ("int16", "float32")
DEFAULTS: Final[dict[str, Any]] = {"rate": 0, "dtype": "int16", "trim": 0, "batch": "pad", "path": ""}
RANGES: Final = {"rate": (0, 768_000), "trim": (0, 200)}
FULL: Final = 32_768  # of int16, what 1.0 is of float32
TRIM_WINDOWS: Final = 100  # in a second


@dataclass(frozen=True, slots=True)
class AudioRecipe:
    """A sound file becomes samples of one channel."""

    rate: int  # samples a second; 0: as each file has it
    dtype: str
    trim: int  # what is so many dB below the loudest is cut off at both ends; 0: nothing
    batch: str
    path: str

    takes = Kind("sound file", "sound files", ENDINGS)
    inputs = ()

    @property
    def digest(self) -> str:
        """Without batch and path: they say how samples are found and handed out, not what they are."""
        keys = {"version": VERSION, "rate": self.rate, "dtype": self.dtype, "trim": self.trim}
        return digest_of(canonical_json(keys).encode())

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Field("audio", self.dtype, (None,), batch=self.batch, rate=self.rate),)

    def needs(self, columns: Sequence[str], field: str = "") -> Needs:
        return needs_of(self.path, columns, field)

    def prepare(self, data: Sequence[Data], inputs: tuple[Any, ...]) -> Arrays:
        (part,) = data
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # of samples that are no numbers: told below
                samples, rate = decode(part if isinstance(part, memoryview) else part.data)
                samples, rate = resample(samples, rate, self.rate or rate), self.rate or rate
                samples = trim(samples, rate, self.trim) if self.trim else samples
                return {"audio": samples if self.dtype == "float32" else as_int16(samples)}
        except MemoryError as error:
            raise SampleError("unprepared", "not enough memory to prepare it") from error


def as_int16(samples: Samples) -> Any:
    """Rounded. Of files whose samples are int16 they are the same, bit by bit."""
    if not np.isfinite(samples).all():
        raise SampleError("corrupt", "it has samples that are no numbers")
    return np.rint(samples * np.float32(FULL)).clip(-FULL, FULL - 1).astype(np.int16)


def trim(samples: Samples, rate: int, below_db: int) -> Samples:
    """Without what is silent at both ends, by the power of hundredths of a second. Of nothing, nothing."""
    if not len(samples):
        return samples
    window = max(rate // TRIM_WINDOWS, 1)
    starts = np.arange(0, len(samples), window)
    lengths = np.diff(starts, append=len(samples))
    power = np.add.reduceat(np.square(samples, dtype=np.float64), starts) / lengths
    loud = np.flatnonzero(power >= power.max() * 10 ** (-below_db / 10))
    return samples[starts[loud[0]] : starts[loud[-1]] + window] if len(loud) else samples


def check_audio(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of an audio recipe, checked, with defaults for those that are not given."""
    for key in keys:
        if key not in DEFAULTS:
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, DEFAULTS))
    checked = {**DEFAULTS, **keys}
    for key, (low, high) in RANGES.items():
        if type(checked[key]) is not int or not low <= checked[key] <= high:
            raise UsageError(f"recipe {key} is {checked[key]!r}", hint=f"use a whole number, {low} to {high}")
    for key, known in {"dtype": DTYPES, "batch": BATCHES}.items():
        if checked[key] not in known:
            raise UsageError(f"recipe {key} is {checked[key]!r}", hint="use one of " + ", ".join(known))
    return {**checked, "path": check_path(checked["path"])}


PACKAGES: Final = {"soundfile": "soundfile", "soxr": "soxr"}
AUDIO: Final = RecipeKind(
    check_audio, lambda keys: AudioRecipe(**keys), AudioRecipe.takes, PACKAGES, extra="audio"
)
