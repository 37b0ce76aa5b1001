"""What a kind of recipe has: how its keys are checked, how it is opened, and the packages that it needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stager.interfaces import Data, Kind, Recipe

Keys = Mapping[str, Any]  # of a recipe's table in stager.toml
BATCHES: Final = ("stack", "pad", "ragged")  # how samples of different shape make a batch


@dataclass(frozen=True, slots=True)
class RecipeKind:
    """One of the kinds that a recipe's table may name."""

    check: Callable[[Keys], dict[str, Any]]  # every key, with its default if it was not given; or UsageError
    open: Callable[[Keys], Recipe]  # of keys that were checked
    takes: Kind
    packages: Mapping[str, str] = field(default_factory=dict)  # modules that it needs, and their packages
    extra: str = "service"  # of ours, which installs them
    load: Callable[[], None] = lambda: None  # what the first sample would else wait for
    # Keys for samples with these bytes, for `stager check`; or SampleError if it takes no such samples.
    guess: Callable[[Sequence[Data]], dict[str, Any]] = lambda data: {}
    boxed: Mapping[str, Any] = field(default_factory=dict)  # such keys beside a box; none: it takes no box
    describe: Callable[[], str] = lambda: ""  # which way it goes on this machine, if there are several
