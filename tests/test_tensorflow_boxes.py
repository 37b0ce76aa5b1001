"""Boxes in TensorFlow: every pixel as by Pillow, and examples/train_boxes.py. By `make tensorflow`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compare_boxes import compare, configured, wrong
from images import natural
from running import Place
from test_wounds import FIELDS, SAMPLES, made_at

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow", reason="TensorFlow has an environment of its own: make tensorflow")

from stager_client.augment import HorizontalFlip, RandomCrop
from stager_client.numpy import StagedArrays
from stager_client.tensorflow import staged_dataset

EXAMPLE = Path(__file__).parent.parent / "examples/train_boxes.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = made_at(tmp_path_factory.mktemp("wounds"))
    assert place.json("prefetch", "wounds")["staged"] == SAMPLES
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


def test_every_pixel_and_every_box_is_as_by_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "boxes"
    folder.mkdir()
    for number in range(3):
        Image.fromarray(natural(160, 120, seed=number)).save(folder / f"{number}.jpg", quality=92)
    lines = [
        f"{at % 3}.jpg,{'ab'[at % 2]},{9 * at - 5},{5 * at},{9 * at + 40},{5 * at + 31}" for at in range(9)
    ]
    (folder / "boxes.csv").write_text(
        "\n".join(["path,label,xmin,ymin,xmax,ymax", *lines, "0.jpg,a,5,5,5,9"])
    )
    place = configured(folder, tmp_path)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    counts = compare(place, folder, "tensorflow")
    assert not wrong(counts), counts
    assert (counts["read"], counts["bad"]) == (9, 1)


def test_fields_are_cropped_alike_and_are_those_of_numpy(place: Place) -> None:
    options = {
        "where": "fold != 1",
        "shuffle": True,
        "seed": 3,
        "augment": [RandomCrop(90), HorizontalFlip()],
    }
    pairs = zip(staged_dataset("wounds", 4, **options), StagedArrays("wounds", 4, **options), strict=True)
    for (values, labels), (arrays, targets) in pairs:
        np.testing.assert_array_equal(labels, targets)
        for name in (*FIELDS, "age"):
            np.testing.assert_array_equal(values[name], arrays[name])


def test_the_example_trains_on_every_fold(place: Place) -> None:
    command = [sys.executable, str(EXAMPLE), "--folds", "2", "--epochs", "1", "--batch-size", "4"]
    done = subprocess.run(command, env=place.env(), capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["fold 0", "fold 1"]
