"""The recipe `audio`, by its contract, and against what soundfile reads."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from recipe_contract import Given, RecipeContract
from sounds import RATE, bad_sounds, clip, encoded
from stager.errors import SampleError, UsageError
from stager.recipes import check_recipe, open_recipe


def prepared(data: bytes, **keys: Any) -> npt.NDArray[Any]:
    (array,) = open_recipe({"kind": "audio", **keys}).prepare([memoryview(data)], ()).values()
    return array


def read(data: bytes, dtype: str) -> npt.NDArray[Any]:
    samples, _ = soundfile.read(io.BytesIO(data), dtype=dtype)
    return np.asarray(samples)


class TestAudioRecipe(RecipeContract):
    spec = {"kind": "audio", "rate": 8_000}
    other = {"kind": "audio", "rate": 8_000, "dtype": "float32"}

    def good(self) -> Mapping[str, Given]:
        kinds = ("WAV", "FLAC", "OGG", "MP3", "RF64")
        return {kind: ([memoryview(encoded(clip(0.3), kind))], ()) for kind in kinds}

    def bad(self) -> Mapping[str, Given]:
        return {name: ([memoryview(data)], ()) for name, (data, _) in bad_sounds().items()}

    @pytest.mark.parametrize(
        "keys",
        [{"rate": -1}, {"rate": 16e3}, {"dtype": "int32"}, {"trim": True}, {"batch": "x"}, {"path": 3}],
    )
    def test_keys_that_make_no_sense_are_refused(self, keys: dict[str, Any]) -> None:
        with pytest.raises(UsageError) as raised:
            check_recipe({"kind": "audio", **keys})
        assert raised.value.hint

    def test_how_clips_are_found_and_handed_out_is_not_in_the_digest(self) -> None:
        assert open_recipe({**self.spec, "batch": "ragged", "path": "{x}"}).digest == self.recipe().digest


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [("WAV", "PCM_16"), ("WAV", "PCM_U8"), ("WAV", "ULAW"), ("FLAC", "PCM_16"), ("RF64", "PCM_16")],
)
def test_a_file_of_16_bits_is_what_soundfile_reads_bit_by_bit(kind: str, subtype: str) -> None:
    samples = np.concatenate([clip(0.4), np.array([-32_768, -1, 0, 1, 32_767], np.int16)])
    data = encoded(samples, kind, subtype)
    for dtype in ("int16", "float32"):
        made = prepared(data, dtype=dtype)
        assert made.dtype == dtype
        np.testing.assert_array_equal(made, read(data, dtype))


@pytest.mark.parametrize(
    ("kind", "subtype"), [("WAV", "PCM_24"), ("WAV", "FLOAT"), ("OGG", None), ("MP3", None)]
)
def test_other_files_are_what_soundfile_reads_and_in_int16_the_nearest(
    kind: str, subtype: str | None
) -> None:
    data = encoded(clip(0.4) / 32_768, kind, subtype)
    floats = read(data, "float32")
    np.testing.assert_array_equal(prepared(data, dtype="float32"), floats)
    assert np.abs(prepared(data) - floats * 32_768.0).max() <= 0.5


def test_what_is_louder_than_full_is_clipped_in_int16() -> None:
    data = encoded(np.array([2.0, -2.0, 1.0, -1.0]), "WAV", "FLOAT")
    assert prepared(data).tolist() == [32_767, -32_768, 32_767, -32_768]


def test_samples_that_are_no_numbers_fail_in_int16() -> None:
    data = encoded(np.array([0.5, np.nan]), "WAV", "FLOAT")
    with pytest.raises(SampleError, match="no numbers"):
        prepared(data)


def test_several_channels_become_their_mean() -> None:
    samples = clip(0.2, channels=2)
    made = prepared(encoded(samples), dtype="float32")
    np.testing.assert_array_equal(made, (samples / 32_768.0).mean(axis=1).astype(np.float32))


def test_another_rate_is_resampled_and_the_same_rate_is_left_alone() -> None:
    seconds = np.arange(RATE) / RATE
    data = encoded((20_000 * np.sin(2 * np.pi * 440 * seconds)).astype(np.int16))
    np.testing.assert_array_equal(prepared(data, rate=RATE), read(data, "int16"))
    made = prepared(data, rate=8_000)
    expected = 20_000 * np.sin(2 * np.pi * 440 * np.arange(8_000) / 8_000)
    assert len(made) == 8_000
    assert np.abs(made - expected)[200:-200].max() < 20  # of 20,000: not at the ends, where it sets in


def test_silence_is_trimmed_at_both_ends_and_nowhere_else() -> None:
    tone, silence = clip(0.5, 1), np.full(RATE, 2, np.int16)
    data = encoded(np.concatenate([silence, tone, silence, tone, silence]))
    made = prepared(data, trim=40)
    np.testing.assert_array_equal(made, np.concatenate([tone, silence, tone]))
    assert len(prepared(data)) == 3 * RATE + 2 * len(tone)
    assert len(prepared(encoded(np.zeros(RATE, np.int16)), trim=40)) == RATE


@pytest.mark.parametrize("name", bad_sounds())
def test_a_bad_file_says_what_is_wrong_with_it(name: str) -> None:
    data, reason = bad_sounds()[name]
    with pytest.raises(SampleError) as raised:
        prepared(data)
    assert raised.value.reason == reason
    assert raised.value.message


def test_a_header_that_claims_much_takes_no_memory() -> None:
    data, _ = bad_sounds()["claims-4-gb.wav"]
    with pytest.raises(SampleError, match=r"4,294,967,280 bytes of sound, there are 16,000"):
        prepared(data)
    slow = encoded(clip(0.1), rate=1)  # at the highest rate it would have 1.2 thousand million samples
    with pytest.raises(SampleError) as raised:
        prepared(slow, rate=768_000)
    assert raised.value.reason == "too_large"
