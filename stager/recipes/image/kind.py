"""What a table of kind "image" may say, and which recipe that is."""

from collections.abc import Mapping
from typing import Any, Final

from stager.errors import UsageError, nearest
from stager.interfaces import Recipe
from stager.recipes.image import native
from stager.recipes.image.box import check_box, check_margin
from stager.recipes.image.boxed import BoxedRecipe
from stager.recipes.image.pixels.resize import resizer_name
from stager.recipes.image.recipe import ImageRecipe, Side, decoders
from stager.recipes.kind import RecipeKind
from stager.recipes.paths import check_path

ENCODINGS: Final = ("raw", "jpeg")
DEFAULTS: Final[dict[str, Any]] = {
    "resize": 256,
    "crop": 224,
    "encode": "raw",
    "quality": 90,
    "decode_scale": 0,
    "max_pixels": 50_000_000,
}
SIDE_MAX: Final = 16_384
RANGES: Final = {
    "crop": (0, SIDE_MAX),
    "quality": (1, 100),
    "decode_scale": (0, 8),
    "max_pixels": (1, 178_956_970),  # beyond that, Pillow refuses by itself
}
# These are in a checked table only if they were given: recipes of before they came keep their spec.
CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "dtype": ("uint8", "uint16", "float32"),
    "channels": (1, 3),
    "filter": ("bilinear", "nearest"),
}
LATER: Final = ("path", "box", "margin", *CHOICES)
BOXED: Final = ("box", *CHOICES)  # with one of these it is a BoxedRecipe


def check_image(keys: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of an image recipe, checked, with defaults for those that are not given."""
    given = {key: value for key, value in keys.items() if value is not None}
    for key in given:
        if key not in DEFAULTS and key not in LATER:
            raise UsageError(f"unknown key {key} in the recipe", hint=nearest(key, [*DEFAULTS, *LATER]))
    # 256 and 224 belong together: who gives one of them and not the other wants only that one.
    alone = {"resize": 0, "crop": 0} if given.keys() & {"resize", "crop"} else {}
    checked = {**DEFAULTS, **alone, **{key: given[key] for key in DEFAULTS if key in given}}
    for key, (low, high) in RANGES.items():
        if type(checked[key]) is not int or not low <= checked[key] <= high:
            raise UsageError(f"recipe {key} is {checked[key]!r}", hint=f"use a whole number, {low} to {high}")
    if checked["encode"] not in ENCODINGS:
        raise UsageError(f"recipe encode is {checked['encode']!r}", hint="use " + " or ".join(ENCODINGS))
    checked["resize"] = _check_resize(checked["resize"], checked["crop"])
    return checked | _check_later(checked, {key: given[key] for key in LATER if key in given})


def _check_resize(resize: Any, crop: int) -> Side:
    if isinstance(resize, list | tuple):
        if len(resize) != 2 or not all(type(side) is int and 0 < side <= SIDE_MAX for side in resize):
            raise UsageError(f"recipe resize is {resize!r}", hint="height and width, as in [128, 128]")
        if crop:
            raise UsageError(
                "recipe crop goes with the shorter side, and resize has both", hint="leave out crop"
            )
        return (resize[0], resize[1])
    if type(resize) is not int or not 0 <= resize <= SIDE_MAX:
        hint = f"the shorter side, a whole number, 0 to {SIDE_MAX}; or both: [height, width]"
        raise UsageError(f"recipe resize is {resize!r}", hint=hint)
    if 0 < resize < crop:
        raise UsageError(
            f"recipe crop {crop} is larger than resize {resize}", hint=f"use crop = {resize} or less"
        )
    return resize


def _check_later(checked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    later = dict(given)
    if "path" in later:
        later["path"] = check_path(later["path"])
        if not later["path"]:
            del later["path"]
    for key, choices in CHOICES.items():
        if key in later and (type(later[key]), later[key]) not in [(type(one), one) for one in choices]:
            hint = "use " + " or ".join(map(repr, choices))
            raise UsageError(f"recipe {key} is {later[key]!r}", hint=hint)
    if "box" in later:
        later["box"] = check_box(later["box"])
    if "margin" in later:
        later["margin"] = check_margin(later["margin"])
        if "box" not in later:
            raise UsageError("recipe margin is for a box", hint='add box = ["xmin", "ymin", "xmax", "ymax"]')
    if later.get("dtype", "uint8") != "uint8" and later.setdefault("channels", 1) != 1:
        raise UsageError(f"{later['dtype']} is for images of one channel", hint="leave out channels")
    if checked["encode"] == "jpeg" and later.get("channels", 3) != 3:
        raise UsageError("a JPEG is stored of colours only", hint='use encode = "raw"')
    if checked["decode_scale"] and any(key in later for key in BOXED):
        raise UsageError("decode_scale is for whole images in colour", hint="leave out decode_scale")
    return later


def _open(keys: Mapping[str, Any]) -> Recipe:
    resize = keys["resize"]
    sized = {**keys, "resize": tuple(resize) if isinstance(resize, list) else resize}
    if not any(key in keys for key in BOXED):
        return ImageRecipe(**sized)
    return BoxedRecipe(**{**sized, "box": tuple(keys.get("box", ()))})


def _load() -> None:
    decoders()
    resizer_name()  # which has the self-test run


PACKAGES: Final = {"PIL": "pillow", "simplejpeg": "simplejpeg"}
IMAGE: Final = RecipeKind(
    check_image,
    _open,
    ImageRecipe.takes,
    PACKAGES,
    load=_load,
    guess=lambda data: {"resize": DEFAULTS["resize"], "crop": DEFAULTS["crop"]},
    boxed={"resize": [DEFAULTS["crop"], DEFAULTS["crop"]]},
    describe=native.describe,
)
