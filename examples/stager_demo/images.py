"""The images of the demo: coloured shapes on soft backgrounds, one class a colour and shape."""

import colorsys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stager_demo.s3server import S3Server

COLOURS: Final = {"red": 0.0, "yellow": 0.16, "green": 0.38, "blue": 0.6, "purple": 0.8}
SHAPES: Final = ("bars", "circle", "square", "triangle")
CLASSES: Final = sorted(f"{colour}-{shape}" for colour in COLOURS for shape in SHAPES)
WIDTH, HEIGHT, IMAGES_A_CLASS, IMAGES_A_PART = 500, 375, 150, 25


def key_of(name: str, number: int) -> str:
    return f"shapes/{name}/{number:04}.jpg"


def put_images(part: tuple["S3Server", int, int]) -> list[int]:
    """Make and upload some images of a class; return their sizes."""
    import simplejpeg

    s3, label, first = part
    sizes = []
    for number in range(first, first + IMAGES_A_PART):
        body = simplejpeg.encode_jpeg(make_image(label, number), 90, "RGB", "420")
        client(s3).put_object(Bucket=s3.public_bucket, Key=key_of(CLASSES[label], number), Body=body)
        sizes.append(len(body))
    return sizes


@cache
def client(s3: "S3Server") -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=s3.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
    )


def make_image(label: int, number: int) -> Any:
    """A coloured shape somewhere on a soft background, and a camera's noise over it."""
    import numpy as np
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([label, number])
    colour, shape = CLASSES[label].split("-")
    corners = [[rgb(rng.random(), 0.35, rng.uniform(0.4, 0.8)) for _ in range(2)] for _ in range(2)]
    image = Image.fromarray(np.array(corners, np.uint8)).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    x, y, radius = rng.uniform(160, 340), rng.uniform(120, 255), rng.uniform(60, 110)
    draw_shape(ImageDraw.Draw(image), shape, x, y, radius, rgb(COLOURS[colour], 0.8, rng.uniform(0.7, 1)))
    top, left = rng.integers(0, (HEIGHT, WIDTH))
    noise = camera_noise()[top : top + HEIGHT, left : left + WIDTH] * rng.uniform(11, 24)
    return np.clip(np.asarray(image, np.int16) + noise.astype(np.int16), 0, 255).astype(np.uint8)


def draw_shape(draw: Any, shape: str, x: float, y: float, r: float, ink: tuple[int, ...]) -> None:
    if shape == "circle":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=ink)
    elif shape == "square":
        draw.rectangle((x - r, y - r, x + r, y + r), fill=ink)
    elif shape == "triangle":
        draw.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=ink)
    else:
        for bar in (-1, -0.5, 0, 0.5):
            draw.rectangle((x - r, y + bar * r, x + r, y + (bar + 0.25) * r), fill=ink)


def rgb(hue: float, saturation: float, value: float) -> tuple[int, ...]:
    return tuple(int(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, value))


@cache
def camera_noise() -> Any:
    """Noise of which each image takes a piece: to draw it anew would take longer than all the rest."""
    import numpy as np

    return np.random.default_rng(0).normal(size=(2 * HEIGHT, 2 * WIDTH, 1)).astype(np.float32)
