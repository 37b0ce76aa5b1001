"""Wounds as a camera with a depth sensor sees them: python examples/boxes_data.py FOLDER --samples 300

A photo, a picture of the depth in colours, and the depth in millimetres, each in a folder of its own; and
samples.csv with a row each: the three names, a box, the phase of the wound, a fold, an age.
"""

import argparse
import csv
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 640, 480
PHASES: Final = {"early": (200, 60, 50), "middle": (170, 90, 60), "late": (140, 110, 90)}
COLUMNS: Final = ("photo", "depth_rgb", "depth", "xmin", "ymin", "xmax", "ymax", "phase", "fold", "age")
ENDINGS: Final = {"photo": "jpg", "depth_rgb": "png", "depth": "png"}


def scene(number: int) -> tuple[dict[str, Image.Image], dict[str, Any]]:
    """The three pictures of one wound, and its row."""
    rng = np.random.default_rng(number)
    phase = list(PHASES)[number % len(PHASES)]
    radius = rng.uniform(40, 120)
    x, y = rng.uniform(radius, WIDTH - radius), rng.uniform(radius, HEIGHT - radius)
    across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    inside = np.clip(1 - np.hypot(across - x, down - y) / radius, 0, 1)
    grain = rng.normal(0, 6, (HEIGHT // 4, WIDTH // 4)).repeat(4, 0).repeat(4, 1)
    skin = np.asarray([225, 180, 150]) + grain[:, :, None]
    photo = np.where(inside[:, :, None] > 0, np.asarray(PHASES[phase]) + grain[:, :, None], skin)
    depth = 600 + 0.1 * across + 40 * inside + rng.normal(0, 0.6, inside.shape)
    near = np.clip((depth - 600) / 110, 0, 1)
    colours = np.stack([255 * near, 255 * (1 - np.abs(2 * near - 1)), 255 * (1 - near)], axis=2) // 8 * 8
    images = {
        "photo": Image.fromarray(np.clip(photo, 0, 255).astype(np.uint8)),
        "depth_rgb": Image.fromarray(colours.astype(np.uint8)),
        "depth": Image.fromarray(depth.astype(np.uint16)),
    }
    box = {"xmin": x - radius, "ymin": y - radius, "xmax": x + radius, "ymax": y + radius}
    row = {name: round(float(side)) for name, side in box.items()}
    return images, {**row, "phase": phase, "fold": number // len(PHASES) % 3, "age": 20 + number % 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--scenes", type=int, default=300, help="the others are copies under other names")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in ENDINGS:
        (options.folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(options.samples):
        names = {name: f"{number:04}.{ending}" for name, ending in ENDINGS.items()}
        if number < options.scenes:
            images, row = scene(number)
            for name, image in images.items():
                image.save(options.folder / name / names[name], quality=90)
        else:
            row = rows[number - options.scenes]
            for name, file in names.items():
                copied = (options.folder / name / row[name]).read_bytes()
                (options.folder / name / file).write_bytes(copied)
        rows.append({**row, **names})
    with (options.folder / "samples.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
