"""Whose a module is: the person's own, Python's, or a package that has a version."""

import json
import sys
import sysconfig
from enum import Enum
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stager.errors import UsageError

_INSTALLED: Final = {"site-packages", "dist-packages"}
_OWN_URLS: Final = {"dir_info", "vcs_info"}  # pip installed it from a directory or a repository


class Origin(Enum):
    OWN = "own"  # keyed by code
    PYTHON = "python"  # keyed by Python's version
    PACKAGE = "package"  # keyed by its version


def top_of(module: str) -> str:
    """The package that a module is of: a.b.c is of a."""
    return module.partition(".")[0]


@cache
def owner_of(top: str) -> Origin:
    """Whose a module at the top is. It is not imported."""
    path = _path_of(top)
    if top in sys.stdlib_module_names and (path is None or path.is_relative_to(_STDLIB)):
        return Origin.PYTHON
    if path is None or not _INSTALLED & set(path.parts):
        return Origin.OWN
    return Origin.OWN if _is_own_install(top) else Origin.PACKAGE


@cache
def version_of(top: str) -> str:
    """The version of an installed package. Raise UsageError if it has none."""
    names = _distributions(top)
    if names:
        return ", ".join(metadata.version(name) for name in names)
    version = getattr(import_module(top), "__version__", None)
    if not isinstance(version, str):
        raise UsageError(
            f"the package {top} has no version, so nobody can tell when its functions change",
            hint="install it by pip, or put it beside your own code",
        )
    return version


_STDLIB: Final = Path(sysconfig.get_path("stdlib"))


def _path_of(top: str) -> Path | None:
    """Where it is; None for what has no file."""
    module = sys.modules.get(top)
    if module is not None:
        paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    else:
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            return None
        if spec is None or spec.origin in ("built-in", "frozen"):
            return None
        paths = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return next((Path(path).absolute() for path in paths if path), None)


def _distributions(top: str) -> list[str]:
    """What was installed and has this module. Mostly it has the module's own name."""
    try:
        metadata.version(top)
    except metadata.PackageNotFoundError:
        return sorted(set(_all_distributions().get(top, ())))
    return [top]


@cache
def _all_distributions() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())


def _is_own_install(top: str) -> bool:
    """Whether pip installed it from a directory or a repository: its code changes under one version."""
    for name in _distributions(top):
        told = metadata.distribution(name).read_text("direct_url.json")
        if told is not None and _OWN_URLS & set(json.loads(told)):
            return True
    return False
