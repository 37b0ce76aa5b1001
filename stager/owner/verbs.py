"""What a command asks of the owner of a cache: a line a verb, and the API's routes are made of it, too.

A verb whose path has all it takes is a GET, and needs nothing else. One that posts has a body with bounds of
its own: stagerd writes that route out. So does whatever cannot be done on the loop alone.
"""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from stager.owner.owner import Owner

P = ParamSpec("P")
T = TypeVar("T")


class Verb(Generic[P, T]):
    """Where the service answers, and the method of the owner that does. What the path has not, is posted."""

    def __init__(self, path: str, act: Callable[Concatenate[Owner, P], T]) -> None:
        self.path, self.act, self.name = path, act, act.__name__
        self._signature = inspect.signature(act)
        _, *names = self._signature.parameters
        self.posted = frozenset(name for name in names if f"{{{name}}}" not in path)

    def request(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, dict[str, Any] | None]:
        """The path and the body that ask a service the same."""
        _, *told = self._signature.bind(None, *args, **kwargs).arguments.items()
        body = {name: value for name, value in told if name in self.posted}
        return self.path.format_map(dict(told)), body if self.posted else None


STATUS: Final = Verb("/status", Owner.status)
STATS: Final = Verb("/stats", Owner.stats)
DATASETS: Final = Verb("/datasets", Owner.datasets)
FAILURES: Final = Verb("/datasets/{name}/failures", Owner.failures)
CLASSES: Final = Verb("/datasets/{name}/classes", Owner.classes)
WHY: Final = Verb("/datasets/{name}/why", Owner.why)
VERSIONS: Final = Verb("/datasets/{name}/versions", Owner.versions)
COMPARE: Final = Verb("/datasets/{name}/compare", Owner.compare)
REFRESH: Final = Verb("/datasets/{name}/refresh", Owner.refresh)
STAGE_HOT: Final = Verb("/hot", Owner.stage_hot)
REMOVE: Final = Verb("/datasets/{name}/remove", Owner.remove)
HEAT: Final = Verb("/datasets/{name}/heat", Owner.heat)
READS: Final = Verb("/datasets/{name}/reads", Owner.reads)
CANCEL: Final = Verb("/jobs/{job}/cancel", Owner.cancel)
SHARDS: Final = Verb("/shards", Owner.shards)
MEMOS: Final = Verb("/memos", Owner.kept_results)
MEMO_WHY: Final = Verb("/memos/{name}", Owner.why_memo)
PROBLEMS: Final = Verb("/problems", Owner.problems)

VERBS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Verb))
