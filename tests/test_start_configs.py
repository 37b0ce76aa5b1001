"""Configs of docs/CONFIG.md to start from, with their commands and programs: all run as they are written."""

import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from making import jpeg
from messy import put
from running import Place
from s3server import S3Server

PAGE: Final = Path(__file__).parent.parent / "docs" / "CONFIG.md"
WNIDS: Final = [f"n{1_440_000 + at:08d}" for at in range(110)]
IMAGENET: Final = "ILSVRC/Data/CLS-LOC"
SHOWN: Final = {  # below each title, what its program has then
    "ImageNet from S3, 100 classes": "len(val), train.classes == val.classes, train.targets == val.targets",
    "train, val and test, as from Kaggle": "train.targets, val.targets, val.classes, names, test[1][0].shape",
    "A flat folder and a CSV of labels, with folds": (
        "train.classes, train.targets, val.targets, val.classes, val[0][0].shape"
    ),
}


class Start(NamedTuple):
    config: str
    commands: list[str]
    program: str


def start(title: str) -> Start:
    """What the page has below a title."""
    section = PAGE.read_text().split(f"### {title}\n")[1].split("\n### ")[0].split("\n## ")[0]
    blocks = re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)
    (config,), (commands,), (program,) = (
        [text for known, text in blocks if known == kind] for kind in ("toml", "", "python")
    )
    return Start(config, [line.removeprefix("$ ") for line in commands.splitlines()], program)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> dict[str, Any]:
    """All of them in one config: tables are made, a service starts and stages, and the programs run."""
    place = Place(tmp_path_factory.mktemp("starts"))
    lay_down(place.root, s3)
    starts = [start(title) for title in SHOWN]
    here = f"{place.root}/data/"
    config = "".join(each.config for each in starts).replace('"/data/', f'"{here}')
    place.configure(re.sub(r'(source = "s3:.*)', rf'\1\nendpoint_url = "{s3.endpoint_url}"', config))
    commands = [command.replace(" /data/", f" {here}") for each in starts for command in each.commands]
    for command in commands:
        if not command.startswith("stager"):
            run(place, command)
    with place.service():
        for command in commands:
            if command.startswith("stager"):
                run(place, command)
        told = [f"print(json.dumps([{values}]))" for values in SHOWN.values()]
        programs = [f"{each.program}\n{line}" for each, line in zip(starts, told, strict=True)]
        done = place.python("import json\n" + "\n".join(programs))
    assert done.returncode == 0, done.stderr
    return dict(zip(SHOWN, map(json.loads, done.stdout.splitlines()), strict=True))


def lay_down(root: Path, s3: S3Server) -> None:
    rows = ["ImageId,PredictionString"]
    for at, wnid in enumerate(WNIDS):
        name = f"ILSVRC2012_val_{at:08d}"
        rows.append(f"{name},{wnid} 1 2 30 40 {wnid} 5 6 70 80 ")
        for key in (f"train/{wnid}/{wnid}_18.JPEG", f"val/{name}.JPEG"):
            s3.client().put_object(Bucket=s3.bucket, Key=f"{IMAGENET}/{key}", Body=jpeg(at))
    (root / "LOC_val_solution.csv").write_text("\n".join(rows))
    names = ["train/cat/1", "train/dog/2", "train/fox/3", "val/fox/7", "test/8", "test/9"]
    put(root / "data/pets", {f"{name}.jpg": jpeg(at) for at, name in enumerate(names)})
    dogs = {f"00{at}.jpg": jpeg(at) for at in range(5)}
    rows = ["file,breed,fold", "000.jpg,pug,1", "001.jpg,husky,2", "002.jpg,pug,0", "003.jpg,beagle,1"]
    labels = "\n".join([*rows, "004.jpg,husky,0"]).encode()
    put(root / "data/dogs", {**dogs, "labels.csv": labels})


def run(place: Place, command: str) -> None:
    env = {**place.env(), "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=place.root,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_imagenet_from_s3_with_100_classes_and_a_flat_val_has_the_same_classes_in_both(
    shown: dict[str, Any],
) -> None:
    assert shown["ImageNet from S3, 100 classes"] == [100, True, True]


def test_train_val_and_test_have_one_labelling_though_val_lacks_classes(shown: dict[str, Any]) -> None:
    assert shown["train, val and test, as from Kaggle"] == [
        [0, 1, 2],
        [2],
        ["cat", "dog", "fox"],
        ["8.jpg", "9.jpg"],
        [3, 224, 224],
    ]


def test_a_flat_folder_and_a_csv_are_a_data_set_whose_folds_have_one_labelling(shown: dict[str, Any]) -> None:
    assert shown["A flat folder and a CSV of labels, with folds"] == [
        ["beagle", "husky", "pug"],
        [0, 1, 2],
        [1, 2],
        ["beagle", "husky", "pug"],
        [3, 224, 224],
    ]
