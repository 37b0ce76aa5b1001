"""Boxes: each field of a row is cropped by the row's columns, and a box that is none fails alone."""

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from compare_boxes import Counts, compare, configured, wrong
from images import natural
from recipe_contract import Given, RecipeContract
from running import Place
from stager.errors import SampleError, UsageError
from stager.recipes import check_recipe, open_recipe
from stager.recipes.image.box import window_of

CORNERS = ["xmin", "ymin", "xmax", "ymax"]
BOX = (10, 5, 50.6, 40)


def encoded(pixels: npt.NDArray[Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def depth(dtype: str) -> npt.NDArray[Any]:
    rng = np.random.default_rng(3)
    if dtype == "float32":
        return rng.normal(size=(48, 64)).astype(np.float32)
    return rng.integers(0, np.iinfo(dtype).max, (48, 64), dtype=dtype, endpoint=True)


RGB = natural(64, 48)
COLOURS = encoded(RGB)
PLANES = {
    "uint8": encoded(depth("uint8")),
    "uint16": encoded(depth("uint16")),
    "float32": encoded(depth("float32"), "TIFF"),
}


class TestBoxedImage(RecipeContract):
    spec = {"box": CORNERS, "margin": 0.1, "resize": [20, 30]}
    other = {"box": CORNERS, "margin": 0.2, "resize": [20, 30]}

    def good(self) -> Mapping[str, Given]:
        return {"png": ([memoryview(COLOURS)], BOX)}

    def bad(self) -> Mapping[str, Given]:
        boxes = {
            "empty": (10, 10, 10, 20),
            "swapped": (20, 10, 10, 20),
            "outside": (64, 0, 70, 10),
            "above": (0, -9, 10, 0),
            "nothing": (None, 0, 1, 1),
            "nan": (float("nan"), 0, 1, 1),
            "infinite": (0, 0, float("inf"), 1),
            "text": ("left", 0, 1, 1),
            "less than a pixel": (10.1, 10.1, 10.2, 10.2),
        }
        cases: dict[str, Given] = {name: ([memoryview(COLOURS)], box) for name, box in boxes.items()}
        return cases | {"no image": ([memoryview(b"text")], BOX)}


class TestDeepMap(RecipeContract):
    spec = {"box": CORNERS, "dtype": "uint16", "resize": [20, 30]}
    other = {"box": CORNERS, "dtype": "float32", "resize": [20, 30]}

    def good(self) -> Mapping[str, Given]:
        return {name: ([memoryview(PLANES[name])], BOX) for name in ("uint8", "uint16")}

    def bad(self) -> Mapping[str, Given]:
        names = {"float": PLANES["float32"], "colours": COLOURS, "cut": PLANES["uint16"][:-400], "text": b"x"}
        return {name: ([memoryview(data)], BOX) for name, data in names.items()}


@pytest.mark.parametrize("dtype", PLANES)
@pytest.mark.parametrize("filter_name", ["bilinear", "nearest"])
def test_maps_keep_their_depth_and_are_cropped_and_resized_as_by_pillow(dtype: str, filter_name: str) -> None:
    spec = {"box": CORNERS, "dtype": dtype, "channels": 1, "resize": [20, 30], "filter": filter_name}
    made = open_recipe(spec).prepare([memoryview(PLANES[dtype])], BOX)["image"]
    with Image.open(io.BytesIO(PLANES[dtype])) as image:
        part = image.crop(BOX).resize((30, 20), Image.Resampling[filter_name.upper()])
    assert (made.dtype, made.shape) == (np.dtype(dtype), (20, 30, 1))
    np.testing.assert_array_equal(made[:, :, 0], np.asarray(part))


def test_a_map_that_is_not_resized_has_every_value_of_its_file() -> None:
    for dtype, data in PLANES.items():
        recipe = open_recipe({"dtype": dtype, "channels": 1, "resize": 0})
        np.testing.assert_array_equal(recipe.prepare([memoryview(data)], ())["image"][:, :, 0], depth(dtype))


def test_a_mask_with_a_palette_keeps_its_classes() -> None:
    classes = np.arange(48 * 64, dtype=np.uint8).reshape(48, 64) % 7
    mask = Image.fromarray(classes, "L").convert("P")
    mask.putpalette([value for colour in range(256) for value in (255 - colour, 3, colour)])
    mask.putdata(classes.reshape(-1).tolist())
    file = io.BytesIO()
    mask.save(file, "PNG")
    recipe = open_recipe({"channels": 1, "filter": "nearest", "resize": [24, 32]})
    made = recipe.prepare([memoryview(file.getvalue())], ())["image"]
    assert set(np.unique(made)) <= set(range(7))


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(*[st.floats(-20, 90) | st.integers(-20, 90)] * 4),
    st.sampled_from([0.0, 0.1, 1.5]),
)
def test_a_box_is_the_part_that_pillow_crops_clamped_to_the_image(box: Any, margin: float) -> None:
    left, top, right, bottom = box
    across, down = margin * (right - left), margin * (bottom - top)
    wider = max(left - across, 0), max(top - down, 0), min(right + across, 64), min(bottom + down, 48)
    is_none = left >= right or top >= bottom or right <= 0 or bottom <= 0 or left >= 64 or top >= 48
    if is_none or round(wider[0]) == round(wider[2]) or round(wider[1]) == round(wider[3]):
        with pytest.raises(SampleError) as raised:
            window_of(box, margin, 48, 64)
        assert raised.value.reason == "bad_row"
        return
    cropped = np.asarray(Image.fromarray(RGB).crop(wider))
    y, x, height, width = window_of(box, margin, 48, 64)
    np.testing.assert_array_equal(cropped, RGB[y : y + height, x : x + width])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"box": ["a", "b"]}, "recipe box"),
        ({"margin": 0.1}, "margin is for a box"),
        ({"box": CORNERS, "margin": -1}, "recipe margin"),
        ({"resize": [0, 3]}, "recipe resize"),
        ({"resize": [9, 9], "crop": 3}, "recipe crop"),
        ({"dtype": "int8"}, "recipe dtype"),
        ({"dtype": "uint16", "channels": 3}, "one channel"),
        ({"dtype": "uint16", "encode": "jpeg"}, "a JPEG"),
        ({"box": CORNERS, "decode_scale": 1}, "decode_scale"),
        ({"filter": "lanczos"}, "recipe filter"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_told_with_a_hint(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        check_recipe(spec)
    assert raised.value.hint


def test_recipes_of_before_boxes_keep_their_digests() -> None:
    assert open_recipe({}).digest == "9b46be84e75ca104b10a11e1ca14d4c8"
    assert check_recipe({}).keys() == {
        "kind",
        "resize",
        "crop",
        "encode",
        "quality",
        "decode_scale",
        "max_pixels",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images with forty boxes; some stick out, two are the same, three are none."""
    folder = tmp_path_factory.mktemp("boxes")
    rng = np.random.default_rng(7)
    lines = ["path,label,xmin,ymin,xmax,ymax"]
    for number in range(12):
        Image.fromarray(natural(160, 120, seed=number)).save(folder / f"{number}.jpg", quality=92)
    for row in range(40):
        left, top = rng.integers(-5, 150), rng.integers(-5, 110)
        right, bottom = left + rng.integers(12, 60), top + rng.integers(12, 60)
        lines.append(f"{row % 12}.jpg,{'RBC' if row % 3 else 'WBC'},{left},{top},{right},{bottom}")
    lines.append(lines[5])
    lines += ["1.jpg,RBC,30,30,30,60", "2.jpg,RBC,nan,1,20,20", "3.jpg,WBC,160,0,190,20"]
    (folder / "boxes.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = configured(folder, tmp_path_factory.mktemp("place"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGER_CONFIG", str(place.config))
        yield place


@pytest.mark.parametrize("client", ["numpy", "torch"])
def test_every_pixel_and_every_box_is_as_by_pillow(place: Place, folder: Path, client: str) -> None:
    counts: Counts = compare(place, folder, client)
    assert not wrong(counts), counts
    assert (counts["rows"], counts["bad"], counts["read"]) == (44, 3, 41)


def test_three_bad_boxes_fail_alone_each_with_one_line(place: Place) -> None:
    done = place.run("prefetch", "boxes")
    assert done.returncode == 3
    assert "3 samples failed; to see why: stager ls --failed boxes" in done.stderr
    failed = json.loads(place.run("ls", "--failed", "boxes", "--json").stdout)
    assert {(row["key"], row["reason"], row["detail"]) for row in failed} == {
        ("1.jpg#4", "bad_row", "line 43: the box (30, 30, 30, 60) is empty"),
        ("2.jpg#4", "bad_row", "line 44: the box (nan, 1, 20, 20) is not four numbers"),
        ("3.jpg#4", "bad_row", "line 45: the box (160, 0, 190, 20) is outside of the image, 160x120"),
    }
    why = place.json("why", "boxes", "3.jpg#4")["why"]
    assert "bad_row: line 45: the box" in why


def test_a_box_that_moved_restages_one_sample(place: Place, folder: Path) -> None:
    table = folder / "boxes.csv"
    text = table.read_text()
    first = text.splitlines()[1]
    shutil.copy(table, folder / "before")
    table.write_text(text.replace(first, first.rsplit(",", 1)[0] + ",119", 1))
    again = place.json("prefetch", "boxes", code=3)
    shutil.move(folder / "before", table)
    assert (again["staged"], again["already"]) == (1, 40)
