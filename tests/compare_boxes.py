"""Every box of a folder, staged and read by a client, against Pillow's crop and resize: 0 mismatches.

    python tests/compare_boxes.py FOLDER [--client numpy|torch|tensorflow]

The folder has boxes.csv (path,label,xmin,ymin,xmax,ymax) and the images that it names.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from running import Place

CORNERS = ("xmin", "ymin", "xmax", "ymax")
CLIENTS = ("numpy", "torch", "tensorflow")
MARGIN = 0.25
CONFIG = """
[datasets.boxes]
source = "{folder}"
layout = "table"
table = "boxes.csv"
label = "label"
[datasets.boxes.recipe.cell]
path = "{{path}}"
box = ["xmin", "ymin", "xmax", "ymax"]
resize = [96, 80]
[datasets.boxes.recipe.around]
path = "{{path}}"
box = ["xmin", "ymin", "xmax", "ymax"]
margin = {margin}
resize = 64
crop = 64
[datasets.boxes.recipe.whole]
path = "{{path}}"
resize = [60, 80]
"""
Row = dict[str, Any]
Counts = dict[str, int]
Sample = tuple[dict[str, npt.NDArray[Any]], str]  # fields and attributes, and the class


def configured(folder: Path, root: Path) -> Place:
    return Place(root).configure(CONFIG.format(folder=folder, margin=MARGIN))


def rows_of(folder: Path) -> list[Row]:
    """The rows of the table, each with its line; corners that are no numbers are NaN."""
    rows: list[Row] = []
    with (folder / "boxes.csv").open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            corners = [float("nan")] * 4
            with suppress(ValueError):
                corners = [float(row[name]) for name in CORNERS]
            rows.append({"line": line, "path": row["path"], "label": row["label"], "box": corners})
    return rows


def expected(folder: Path, row: Row) -> dict[str, npt.NDArray[Any]] | None:
    """The fields of a row, by Pillow; None: its box is none."""
    left, top, right, bottom = row["box"]
    with Image.open(folder / row["path"]) as opened:
        image = opened.convert("RGB")
    if not (left < right and top < bottom and left < image.width and top < image.height):
        return None
    if not (right > 0 and bottom > 0):
        return None
    bilinear = Image.Resampling.BILINEAR

    def cropped(margin: float) -> Image.Image:
        across, down = margin * (right - left), margin * (bottom - top)
        corner = max(left - across, 0), max(top - down, 0)
        return image.crop((*corner, min(right + across, image.width), min(bottom + down, image.height)))

    around = cropped(MARGIN)
    size = (64, 64 * around.height // around.width)
    if around.width > around.height:
        size = (64 * around.width // around.height, 64)
    around = around.resize(size, bilinear)
    x, y = round((size[0] - 64) / 2), round((size[1] - 64) / 2)
    return {
        "cell": np.asarray(cropped(0).resize((80, 96), bilinear)),
        "around": np.asarray(around.crop((x, y, x + 64, y + 64))),
        "whole": np.asarray(image.resize((80, 60), bilinear)),
    }


def read(client: str) -> Iterator[Sample]:
    """Every sample of the data set, once, as NumPy has it."""
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "skip_failed": True}
    if client == "torch":
        from stager_client.torch import StagedDataset, StagedLoader

        data = StagedDataset("boxes", skip_failed=True)
        for fields, labels in StagedLoader(data, 32, shuffle=True, seed=5):
            columns = {name: tensor.numpy() for name, tensor in fields.items()}
            images = {
                name: column.transpose(0, 2, 3, 1) for name, column in columns.items() if column.ndim == 4
            }
            yield from _each(columns | images, [data.classes[label] for label in labels.tolist()])
        return
    from stager_client.numpy import StagedArrays

    arrays = StagedArrays("boxes", 32, **options)
    batches: Any = arrays
    if client == "tensorflow":
        from stager_client.tensorflow import as_dataset

        batches = as_dataset(arrays).as_numpy_iterator()
    for fields, labels in batches:
        yield from _each(fields, [arrays.classes[label] for label in labels.tolist()])


def _each(columns: dict[str, npt.NDArray[Any]], labels: list[str]) -> Iterator[Sample]:
    for at, label in enumerate(labels):
        yield {name: column[at] for name, column in columns.items()}, label


def compare(place: Place, folder: Path, client: str) -> Counts:
    """Stage all boxes, read them, and count what differs."""
    done = place.run("prefetch", "boxes", "--json")
    assert done.returncode in (0, 3), done.stderr
    rows = rows_of(folder)
    wanted = {row["line"]: expected(folder, row) for row in rows}
    bad = {line for line, fields in wanted.items() if fields is None}
    failed = json.loads(place.run("ls", "--failed", "boxes", "--json").stdout)
    told = {int(row["detail"].split(":")[0].removeprefix("line ")) for row in failed}
    left: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for row in rows:
        if row["line"] not in bad:
            left.setdefault((row["label"], tuple(row["box"])), []).append(row["line"])
    counts = {"rows": len(rows), "bad": len(bad), "bad_told_wrong": len(told ^ bad)}
    counts |= {"read": 0, "pixels": 0, "pixel_mismatches": 0, "box_mismatches": 0}
    for fields, label in read(client):
        counts["read"] += 1
        lines = left.get((label, tuple(float(fields[corner]) for corner in CORNERS)), [])
        fits = [line for line in lines if _same(wanted[line], fields)] or lines[:1]
        if not fits:
            counts["box_mismatches"] += 1
            continue
        lines.remove(fits[0])
        for name, pixels in (wanted[fits[0]] or {}).items():
            counts["pixels"] += pixels.size
            counts["pixel_mismatches"] += int((pixels != fields[name]).sum())
    counts["box_mismatches"] += sum(map(len, left.values()))  # that no sample had
    return counts


def _same(wanted: dict[str, npt.NDArray[Any]] | None, fields: dict[str, npt.NDArray[Any]]) -> bool:
    return wanted is not None and all(np.array_equal(wanted[name], fields[name]) for name in wanted)


def wrong(counts: Counts) -> bool:
    mismatches = [counts[name] for name in ("bad_told_wrong", "pixel_mismatches", "box_mismatches")]
    return any(mismatches) or counts["read"] != counts["rows"] - counts["bad"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--client", choices=CLIENTS, default="numpy")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    with tempfile.TemporaryDirectory() as root:
        place = configured(folder, Path(root))
        os.environ["STAGER_CONFIG"] = str(place.config)
        counts = compare(place, folder, asked.client)
    print(asked.client, json.dumps(counts))
    return int(wrong(counts))


if __name__ == "__main__":
    sys.exit(main())
