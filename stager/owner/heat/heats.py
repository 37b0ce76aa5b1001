"""Heat: kept on the disk now and then, and told to people."""

import logging
from functools import partial
from typing import Any, Final

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.dispatch.events import Beside
from stager.errors import StagerError
from stager.heat.file import heat_path, write_heat
from stager.heat.heat import HALF_LIFE_S, Warm
from stager.reader.index import is_resident

log = logging.getLogger("stager")

KEEP_EVERY_S: Final = 300.0  # a kill forgets the reads of so long; a stop forgets none
TOLD_MOST: Final = 100  # classes, and samples


class HeatKeeper:
    """Writes the heat of all data sets, beside the loop."""

    def __init__(self, cache: Cache, beside: Beside) -> None:
        self._cache, self._beside = cache, beside
        self._keep_at = cache.clock.now() + KEEP_EVERY_S
        self._kept: dict[int, int] = {}  # how much of each data set's reads is on the disk

    def now_and_then(self) -> None:
        """Write what has changed, on the thread beside the loop, once in a while."""
        if self._cache.clock.now() < self._keep_at:
            return
        self._keep_at = self._cache.clock.now() + KEEP_EVERY_S
        for dataset, warm in self._changed():
            self._beside.do(partial(self._write, dataset, warm), _nothing_more)

    def stop(self) -> None:
        """Keep what was read until now."""
        for dataset, warm in self._changed():
            self._write(dataset, warm)

    def _changed(self) -> list[tuple[Dataset, Warm]]:
        """The data sets that were read since they were written, with what is warm of them now."""
        found = [
            (dataset, dataset.heat.warm(self._cache.clock.wall()))
            for dataset in self._cache.open.values()
            if dataset.heat.changes != self._kept.get(dataset.id, 0)
        ]
        self._kept = {dataset.id: dataset.heat.changes for dataset in self._cache.open.values()}
        return found

    def _write(self, dataset: Dataset, warm: Warm) -> None:
        """A disk that is full costs what was read since the last time, and no more."""
        record = dataset.record
        try:
            path = heat_path(dataset.directory, record.recipe)
            write_heat(path, self._cache.scratch, record.lineage, warm)
        except (OSError, StagerError) as error:
            log.warning("heat not kept dataset=%s error=%r", dataset.name, str(error))


def _nothing_more(written: Exception | None) -> None:
    """What went wrong is in the log."""


def heat_json(dataset: Dataset, now: float) -> dict[str, Any]:
    """What of a data set is hot, the hottest first, and what of that is resident."""
    guess, manifest = dataset.guess(now), dataset.manifest
    warm = dataset.heat.warm(now)
    inside = manifest.has(warm.samples)
    samples, heat = warm.samples[inside], warm.heat[inside]
    here = is_resident(dataset.index.words[samples])
    total = float(heat.sum())
    labels = guess.labels_of(samples)
    by_class = np.bincount(labels, heat, len(manifest.classes)) if len(samples) else np.zeros(0)
    here_by_class = np.bincount(labels[here], heat[here], len(manifest.classes))
    sizes = manifest.class_sizes()
    hottest = np.argsort(-heat, kind="stable")[:TOLD_MOST]
    hottest_classes = [at for at in np.argsort(-by_class, kind="stable")[:TOLD_MOST] if by_class[at] > 0]
    places = manifest.places_of(samples[hottest]).tolist()
    return {
        "dataset": dataset.name,
        "half_life_s": HALF_LIFE_S,
        "reads": round(total, 2),
        "warm": len(samples),
        "resident_share": _share(float(heat[here].sum()), total),
        "classes": [
            {
                "class": manifest.classes[at],
                "samples": int(sizes[at]),
                "reads": round(float(by_class[at]), 2),
                "share": _share(float(by_class[at]), total),
                "resident_share": _share(float(here_by_class[at]), float(by_class[at])),
            }
            for at in hottest_classes
        ],
        "samples": [
            {
                "index": place,
                "key": manifest.key(place),
                "label": manifest.classes[int(labels[at])],
                "reads": round(float(heat[at]), 2),
                "share": _share(float(heat[at]), total),
                "resident": bool(here[at]),
            }
            for at, place in zip(hottest.tolist(), places, strict=True)
        ],
    }


def _share(part: float, total: float) -> float:
    return round(part / total, 6) if total else 0.0
