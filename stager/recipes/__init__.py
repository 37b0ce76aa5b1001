"""How a sample's parts become its fields.

To open a recipe is cheap: no decoder is imported before the first `prepare`.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stager.errors import NotReady, UsageError, nearest
from stager.interfaces import Recipe
from stager.recipes.array import ARRAY
from stager.recipes.audio.recipe import AUDIO
from stager.recipes.fields import FieldsRecipe
from stager.recipes.image.kind import IMAGE
from stager.recipes.kind import RecipeKind
from stager.recipes.plain import BYTES, JSON, TEXT
from stager.recipes.python import PYTHON, with_code
from stager.recipes.volume import VOLUME

KINDS: Final[dict[str, RecipeKind]] = {
    "image": IMAGE,
    "array": ARRAY,
    "audio": AUDIO,
    "bytes": BYTES,
    "json": JSON,
    "volume": VOLUME,
    "text": TEXT,
    "python": PYTHON,
}
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


def is_code(spec: Mapping[str, Any]) -> bool:
    """Whether a recipe runs a function of a person's."""
    return "python" in _kinds_of(spec)


def beside(spec: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A checked recipe whose functions are looked for in this folder, or below it."""
    if has_several(spec):
        return {name: beside(table, folder) for name, table in spec.items()}
    return {**spec, "folder": str(folder / spec["folder"])} if spec["kind"] == "python" else spec


def keyed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe that is staged by: with the code of its functions as it is now. Raise UsageError."""
    checked = check_recipe(spec)
    if has_several(checked):
        return {name: keyed(table) for name, table in checked.items()}
    kind = checked.pop("kind")
    return {"kind": kind, **(with_code(checked) if kind == "python" else checked)}


def kind_for(ending: str) -> str:
    """The kind of recipe that takes files which end so; nothing, if none does."""
    return next((name for name, kind in KINDS.items() if ending in kind.takes.endings), "")


def has_several(spec: Mapping[str, Any]) -> bool:
    """Whether a recipe has a table for each of several fields."""
    return bool(spec) and all(isinstance(value, Mapping) for value in spec.values())


def check_installed(spec: Mapping[str, Any]) -> None:
    """Raise NotReady if a package is missing that the recipe needs. Cheap: nothing is imported."""
    for kind in _kinds_of(spec):
        check_kind(kind)


def check_kind(kind: str) -> None:
    """The same of a kind of recipe."""
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
    return NotReady(f"the recipe {kind!r} needs {what}", hint=f"pip install 'stager[{KINDS[kind].extra}]'")
