"""How an object's bytes become a sample's arrays.

To open a recipe is cheap: no decoder is imported before the first `prepare`.
"""

from collections.abc import Mapping
from typing import Any

from stager.errors import UsageError, nearest
from stager.model import Recipe
from stager.recipes.image import ImageRecipe, check_image

KINDS = ("image",)


def open_recipe(spec: Mapping[str, Any]) -> Recipe:
    """Make the recipe that a config's recipe table describes. Raise UsageError if it describes none."""
    checked = check_recipe(spec)
    del checked["kind"]
    return ImageRecipe(**checked)


def check_recipe(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The one way to write this recipe: every key, with its default if it was not given."""
    kind = spec.get("kind", "image")
    if kind not in KINDS:
        raise UsageError(f"recipe kind is {kind!r}", hint=nearest(str(kind), KINDS))
    return {"kind": kind, **check_image({key: value for key, value in spec.items() if key != "kind"})}
