"""stager check: it finds the layout and the recipe of a place, and its config stages it."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from making import image_folder
from parquets import parquet_of, photos
from running import Place
from stager.check.config import config_for
from stager.check.place import Finding, look_at
from stager.config import parse_config
from stager.reader.values import SourceSpec
from tars import shard, tar_of


def fill(root: Path, kind: str) -> Path:
    """A place with a dozen samples or more, of a kind."""
    place = root / kind
    (place / "a").mkdir(parents=True)
    if kind == "folder":
        image_folder(place, 2, 8)
    elif kind == "tar":
        (place / "train-0.tar").write_bytes(shard(0, 16))
        (place / "val-0.tar").write_bytes(shard(16, 3))
    elif kind == "texts-in-tar":
        (place / "0.tar").write_bytes(tar_of((f"{n}.txt", b"%d" % n) for n in range(12)))
    elif kind == "parquet":
        (place / "train.parquet").write_bytes(parquet_of(photos(range(16))))
    elif kind == "arrays":
        for at in range(12):
            np.save(place / f"a/{at}.npy", np.zeros((4 + at % 3, 3), np.float32))
    elif kind == "rows":  # a flat folder, and a CSV beside it
        image_folder(place, 1, 12)
        names = sorted(path.name for path in place.rglob("*.jpg"))
        rows = [f"{name},{'ab'[at % 2]},{at % 3}" for at, name in enumerate(names)]
        (place / "labels.csv").write_text("\n".join(["file,label,fold", *rows]))
    elif kind == "metadata":
        image_folder(place, 1, 12)
        (folder,) = (path for path in place.iterdir() if any(path.iterdir()))
        rows = [json.dumps({"file_name": path.name, "label": "x"}) for path in sorted(folder.iterdir())]
        (folder / "metadata.jsonl").write_text("\n".join(rows))
    elif kind == "splits":
        image_folder(place / "train", 2, 8)
        image_folder(place / "test", 1, 8)
        for path in sorted((place / "test").rglob("*.jpg")):
            path.rename(place / "test" / path.name)
    elif kind == "strange":
        for at in range(12):
            (place / f"a/{at}.xyz").write_bytes(b"\xff\x00")
    return place


def found_in(path: Path) -> Finding:
    return look_at(SourceSpec(str(path)))


@pytest.mark.parametrize(
    ("kind", "layout", "recipe"),
    [
        ("folder", "folder", {"kind": "image", "resize": 256, "crop": 224}),
        ("tar", "tar", {"kind": "image", "path": "jpg", "resize": 256, "crop": 224}),
        ("texts-in-tar", "tar", {"kind": "text", "path": "txt"}),
        ("parquet", "parquet", {"kind": "image", "path": "image", "resize": 256, "crop": 224}),
        ("rows", "table", {"kind": "image", "path": "class000/{file}", "resize": 256, "crop": 224}),
        ("metadata", "table", {"kind": "image", "resize": 256, "crop": 224}),
        ("arrays", "folder", {"kind": "array", "dtype": "float32", "shape": [-1, 3], "batch": "ragged"}),
        ("strange", "folder", {"kind": "bytes"}),
    ],
)
def test_it_finds_what_fits_and_its_config_is_one(
    tmp_path: Path, kind: str, layout: str, recipe: dict[str, object]
) -> None:
    finding = found_in(fill(tmp_path, kind))
    assert finding.fits is not None
    assert (finding.fits.layout, finding.fits.recipe) == (layout, recipe)
    assert len(finding.fits.samples) == finding.fits.good == 10
    text = config_for("it.is", finding.source, finding.fits)
    spec = parse_config(tomllib.loads(text), None).datasets["it.is"]
    assert (spec.source.url, spec.layout) == (str(tmp_path / kind), layout)


def test_the_table_of_a_flat_folder_is_found_with_its_label_and_its_paths(tmp_path: Path) -> None:
    fits = found_in(fill(tmp_path, "rows")).fits
    assert fits is not None
    assert fits.options == {"table": "labels.csv", "label": "label"}
    assert (fits.found, {sample.label for sample in fits.samples}) == (12, {"a", "b"})
    assert [sample.attributes["fold"] for sample in fits.samples[:3]] == [0, 1, 2]


@pytest.mark.parametrize(
    "names", ["xmin,ymin,xmax,ymax", "Left,Top,Right,Bottom", "bbox_x1,bbox_y1,bbox_x2,bbox_y2"]
)
def test_the_columns_of_a_box_are_found_and_a_config_with_it_stages(tmp_path: Path, names: str) -> None:
    source = fill(tmp_path, "rows")
    lines = (source / "labels.csv").read_text().splitlines()
    boxed = [f"{lines[0]},{names}", *(f"{line},2,3,30,40" for line in lines[1:])]
    (source / "labels.csv").write_text("\n".join(boxed))
    finding = found_in(source)
    assert finding.fits is not None
    assert finding.fits.good == 10
    assert finding.fits.recipe["box"] == names.split(",")
    config = config_for("pets", finding.source, finding.fits)
    spec = parse_config(tomllib.loads(config), None).datasets["pets"]
    place = Place(tmp_path)
    place.configure(config)
    assert place.json("prefetch", "pets")["staged"] == 12
    assert list(spec.recipe["resize"]) == [224, 224]


def test_what_a_scan_leaves_out_is_no_sample_of_a_check(tmp_path: Path) -> None:
    fits = found_in(fill(tmp_path, "splits")).fits
    assert fits is not None
    assert (fits.found, {sample.split for sample in fits.samples}) == (16, {"train"})
    assert "8 images of a split that are in no class folder" in fits.left_out


def test_rows_whose_paths_find_nothing_are_told_the_path_that_does(tmp_path: Path) -> None:
    source = fill(tmp_path, "rows")
    place = Place(tmp_path)
    place.configure(
        f"[datasets.pets]\nsource = '{source}'\nlayout = 'table'\ntable = 'labels.csv'\nlabel = 'label'\n"
        "[datasets.pets.recipe]\npath = '{file}'\n"
    )
    done = place.run("prefetch", "pets")
    assert done.returncode == 2
    assert "path = 'class000/{file}' in the recipe finds them" in done.stderr


def test_samples_are_shown_with_split_label_fields_and_attributes(tmp_path: Path) -> None:
    finding = found_in(fill(tmp_path, "tar"))
    assert finding.fits is not None
    sample = finding.fits.samples[1]
    assert (sample.key, sample.split, sample.label) == ("train-0.tar/000001", "train", "1")
    assert sample.fields == {"image": "uint8 224x224x3"}
    assert sample.attributes == {"cls": 1, "fold": 1, "number": 1}


def test_a_place_where_nothing_fits_says_what_each_guess_lacks(tmp_path: Path) -> None:
    (tmp_path / "loose.xyz").write_bytes(b"x")
    (tmp_path / "broken.tar").write_bytes(b"x" * 3000)
    finding = found_in(tmp_path)
    assert finding.fits is None
    told = {trial["layout"]: trial["problem"] for trial in finding.to_json()["tried"]}
    assert told["folder"] == "left out: 2 files in no folder"
    done = Place(tmp_path / "place").run("check", str(tmp_path))
    assert done.returncode == 1
    assert "nothing fits:" in done.stderr


def test_the_command_writes_a_config_that_stages_the_place(tmp_path: Path) -> None:
    source = fill(tmp_path, "tar")
    (source / "train-1.tar").write_bytes(shard(30, 8)[:-12_000])
    place = Place(tmp_path)
    path = tmp_path / "new.toml"
    done = place.run("check", str(source), "--json", "--write", str(path))
    assert done.returncode in (0, 3), done.stderr
    told = json.loads(done.stdout)
    assert told["fits"]["layout"] == "tar"
    assert path.read_text() == told["config"]
    (name,) = tomllib.loads(told["config"])["datasets"]
    place.configure(told["config"])
    staged = place.run("prefetch", name, "--json")
    assert staged.returncode == 3, "the sample that is cut fails alone"
    assert json.loads(staged.stdout)["staged"] == 19 + 6
    again = place.run("check", str(source), "--write", str(path))
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
