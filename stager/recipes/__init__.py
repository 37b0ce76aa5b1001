"""How a sample's parts become its fields.

To open a recipe is cheap: no decoder is imported before the first `prepare`.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from stager.errors import NotReady, UsageError, nearest
from stager.interfaces import Recipe
from stager.recipes.array import ARRAY
from stager.recipes.fields import FieldsRecipe
from stager.recipes.image.recipe import IMAGE
from stager.recipes.kind import RecipeKind

KINDS: Final[dict[str, RecipeKind]] = {"image": IMAGE, "array": ARRAY}
DEFAULT: Final = "image"


def open_recipe(spec: Mapping[str, Any]) -> Recipe:
    """Make the recipe that a config's recipe table describes. Raise UsageError if it describes none."""
    checked = check_recipe(spec)
    if has_several(checked):
        return FieldsRecipe({name: open_recipe(table) for name, table in checked.items()})
    kind = checked.pop("kind")
    return KINDS[kind].open(checked)


def check_recipe(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The one way to write this recipe: every key, with its default if it was not given."""
    if has_several(spec):
        return {name: _check_one(table) for name, table in spec.items()}
    return _check_one(spec)


def _check_one(spec: Mapping[str, Any]) -> dict[str, Any]:
    kind = spec.get("kind", DEFAULT)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"recipe kind is {kind!r}", hint=nearest(str(kind), KINDS))
    return {"kind": kind, **KINDS[kind].check({key: spec[key] for key in spec if key != "kind"})}


def has_several(spec: Mapping[str, Any]) -> bool:
    """Whether a recipe has a table for each of several fields."""
    return bool(spec) and all(isinstance(value, Mapping) for value in spec.values())


def check_installed(spec: Mapping[str, Any]) -> None:
    """Raise NotReady if a package is missing that the recipe needs. Cheap: nothing is imported."""
    for kind in _kinds_of(spec):
        missing = [package for module, package in KINDS[kind].packages.items() if not _is_there(module)]
        if missing:
            raise _not_ready(kind, f"{' and '.join(missing)}: not installed")


def check_ready(spec: Mapping[str, Any]) -> None:
    """The same, and that they can be loaded: for those who are going to prepare samples."""
    for kind in _kinds_of(spec):
        for module, package in KINDS[kind].packages.items():
            try:
                import_module(module)
            except (
                ImportError,
                OSError,
            ) as error:  # OSError: it is installed, but one of its libraries is not
                raise _not_ready(kind, f"{package}: {error}") from None


def load_libraries() -> None:
    """Import what samples of any kind need, before the first one is asked for."""
    for kind in KINDS.values():
        with suppress(Exception):  # what cannot be imported, the first sample tells
            kind.load()


def describe() -> str:
    """Which way samples are prepared on this machine."""
    return ", ".join(filter(None, (kind.describe() for kind in KINDS.values())))


def _kinds_of(spec: Mapping[str, Any]) -> list[str]:
    checked = check_recipe(spec)
    tables = checked.values() if has_several(checked) else [checked]
    return sorted({table["kind"] for table in tables})


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _not_ready(kind: str, what: str) -> NotReady:
    return NotReady(f"the recipe {kind!r} needs {what}", hint="pip install 'stager[service]'")
