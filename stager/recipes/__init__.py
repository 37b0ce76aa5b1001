"""How an object's bytes become a sample's arrays.

To open a recipe is cheap: no decoder is imported before the first `prepare`.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from stager.errors import NotReady, UsageError, nearest
from stager.interfaces import Recipe
from stager.recipes.image.recipe import ImageRecipe, check_image

KINDS = ("image",)
NEEDS: Final = {"image": {"PIL": "pillow", "simplejpeg": "simplejpeg"}}  # modules, and their packages


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


def check_installed(spec: Mapping[str, Any]) -> None:
    """Raise NotReady if a package is missing that the recipe needs. Cheap: nothing is imported."""
    kind = check_recipe(spec)["kind"]
    missing = [package for module, package in NEEDS[kind].items() if not _is_there(module)]
    if missing:
        raise _not_ready(kind, f"{' and '.join(missing)}: not installed")


def check_ready(spec: Mapping[str, Any]) -> None:
    """The same, and that they can be loaded: for those who are going to prepare samples."""
    kind = check_recipe(spec)["kind"]
    for module, package in NEEDS[kind].items():
        try:
            import_module(module)
        except (ImportError, OSError) as error:  # OSError: it is installed, but one of its libraries is not
            raise _not_ready(kind, f"{package}: {error}") from None


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _not_ready(kind: str, what: str) -> NotReady:
    return NotReady(f"the recipe {kind!r} needs {what}", hint="pip install 'stager[service]'")
