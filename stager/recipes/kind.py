"""What a kind of recipe has: how its keys are checked, how it is opened, and the packages that it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stager.interfaces import Recipe

Keys = Mapping[str, Any]  # of a recipe's table in stager.toml


@dataclass(frozen=True, slots=True)
class RecipeKind:
    """One of the kinds that a recipe's table may name."""

    check: Callable[[Keys], dict[str, Any]]  # every key, with its default if it was not given; or UsageError
    open: Callable[[Keys], Recipe]  # of keys that were checked
    packages: Mapping[str, str] = field(default_factory=dict)  # modules that it needs, and their packages
    load: Callable[[], None] = lambda: None  # what the first sample would else wait for
    describe: Callable[[], str] = lambda: ""  # which way it goes on this machine, if there are several
