"""What a client says when it opens a data set whose recipe is written otherwise than it is staged."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from stager.reader.amount import Amount
from stager.reader.settings import Settings
from stager_client.reading.finding import warn_of_other_recipe

STAGED = {
    "kind": "volume",
    "brick": [32, 32, 32],
    "scale": {"mask": [2, 2, 2]},
    "fields": {"image": "uint8", "mask": "uint8"},
}


def settings(**keys: Any) -> Settings:
    room = Amount(bytes=1)
    return Settings(Path("stager.toml"), Path("cache"), Path("socket"), room, room, recipes={"scan": keys})


@pytest.mark.parametrize("keys", [{"scale": {"mask": 2}}, {"brick": 32}, {"scale": {"mask": [2, 2, 2]}}, {}])
def test_a_number_for_all_sides_is_no_other_recipe(keys: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_recipe("scan", settings(**keys), STAGED)


@pytest.mark.parametrize(
    "keys", [{"scale": {"mask": 4}}, {"brick": [32, 32, 16]}, {"fields": {"image": "uint16"}}]
)
def test_another_recipe_is_told(keys: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="staged with another recipe"):
        warn_of_other_recipe("scan", settings(**keys), STAGED)
