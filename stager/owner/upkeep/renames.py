"""Data sets whose name in stager.toml has changed: what is staged of them goes on under the new one."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stager.cache.cache import Cache
from stager.errors import UsageError
from stager.owner.upkeep.removals import Removals
from stager.reader.record import DatasetSpec, name_for_url
from stager.reader.values import canonical_json
from stager.recipes import has_several

log = logging.getLogger("stager")


def find_renames(wanted: Mapping[str, DatasetSpec], staged: Mapping[str, DatasetSpec]) -> dict[str, str]:
    """The new names of data sets that are staged, by their old ones: the same source, layout and recipe.

    An old name is in the config no more, and was not made up from a URL; nothing is staged by the new one.
    """
    free = {
        name: _told(spec)
        for name, spec in staged.items()
        if name not in wanted and not name.startswith(name_for_url(spec.source.url))
    }
    renames: dict[str, str] = {}
    for new, spec in wanted.items():
        old = next((name for name, told in free.items() if told == _told(spec)), None)
        if new not in staged and old is not None:
            renames[old] = new
            del free[old]
    return renames


def _told(spec: DatasetSpec) -> str:
    """All that a data set is but for its name, and for its functions' code: that is looked at by a scan."""
    recipe = _without_code(spec.recipe)
    return canonical_json(replace(spec, name="any", recipe=recipe).to_json())


def _without_code(recipe: Mapping[str, Any]) -> dict[str, Any]:
    if has_several(recipe):
        return {name: _without_code(table) for name, table in recipe.items()}
    return {name: value for name, value in recipe.items() if (recipe.get("kind"), name) != ("python", "code")}


class Renames:
    """Has the cache follow the config."""

    def __init__(self, cache: Cache, removals: Removals) -> None:
        self._cache, self._removals = cache, removals

    def follow(self, only: str | None = None) -> None:
        """Take over what is staged under old names; `only`: under the old name of this data set.

        One that is in use keeps its name until the next time, and of that one, raise UsageError.
        """
        staged = {name: dataset.spec for name, dataset in self._cache.datasets.items()}
        for old, new in find_renames(self._cache.config.datasets, staged).items():
            if only in (None, new):
                uses = self._removals.uses(old)
                if not uses:
                    self._removals.forget_orders(old)
                    self._cache.rename(old, new)
                    log.info("data set renamed name=%s before=%s", new, old)
                elif only is None:
                    log.warning("data set not renamed yet name=%s before=%s because=%r", new, old, uses)
                else:
                    raise UsageError(
                        f"{new} is staged as {old}, its name before, and is in use: {uses}",
                        hint=f"wait for the end, then try again; or name it {old} again until then",
                    )
