"""What a cache holds, as JSON: our own, or one that another process owns."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stager import __version__, recipes
from stager.cache.budget import Budget
from stager.cache.dataset import Held
from stager.catalog.catalog import Catalog
from stager.catalog.rows import ShardRow
from stager.owner import meter
from stager.owner.explain import with_table_row
from stager.owner.memos import rows_of
from stager.reader.memo.store import MemoStore
from stager.reader.values import decode_key


class Shelves(Protocol):
    """A cache, as far as it is looked at."""

    directory: Path
    catalog: Catalog
    budget: Budget

    @property
    def open(self) -> Mapping[int, Held]: ...

    def named(self, name: str) -> Held: ...


class View:
    """Every method returns what can be sent as JSON."""

    def __init__(self, cache: Shelves, given_back: Callable[[int], int]) -> None:
        """`given_back`: bytes of a data set, by its id, that the disk has back."""
        self._shelves, self._given_back = cache, given_back

    def status(self) -> dict[str, Any]:
        datasets = [row for row in self.datasets() if row["is_current"]]
        names = ("name", "samples", "resident", "bytes", "format", "failed")
        return {
            "service": {
                "up": False,
                "pid": None,
                "version": __version__,
                "uptime_s": 0.0,
                "cache_dir": str(self._shelves.directory),
                "native": recipes.describe(),
            },
            "budget": self._shelves.budget.to_json(),
            "hot": None,
            "hung": [],
            "limits": None,
            "datasets": [{name: row[name] for name in names} | {"watch": None} for row in datasets],
            "sessions": [],
            "jobs": [],
        }

    def stats(self) -> dict[str, Any]:
        return meter.stats(self._shelves.catalog)

    def datasets(self) -> list[dict[str, Any]]:
        """Every data set, and every recipe of it that still has shards."""
        rows = []
        for row in self._shelves.catalog.datasets():
            held = self._shelves.catalog.holdings(row.id)
            dataset = self._shelves.open[row.id]
            resident, failed = dataset.counts()
            rows.append(
                {
                    "name": row.name,
                    "is_current": row.is_current,
                    "source": dataset.spec.source.url,
                    "recipe": dataset.spec.recipe,
                    "recipe_digest": row.recipe,
                    "samples": len(dataset.manifest),
                    "classes": len(dataset.manifest.classes),
                    "resident": resident,
                    "failed": failed,
                    "pinned": count(self._shelves.catalog.pinned_shards(row.id)) if held.pinned else 0,
                    "shards": held.shards,
                    "bytes": held.bytes - self._given_back(row.id),
                    "format": "+".join(held.formats) or "none",
                    "scanned_at": row.scanned_at,
                    "frozen": None,
                }
            )
        return rows

    def kept_results(self) -> list[dict[str, Any]]:
        return rows_of(MemoStore(self._shelves.directory).results())

    def failures(self, name: str) -> list[dict[str, Any]]:
        dataset = self._shelves.named(name)
        rows = self._shelves.catalog.failures(dataset.id)
        places = dataset.manifest.places_of(np.asarray([row.sample for row in rows], dtype=np.int64))
        return [
            {
                "dataset": name,
                "index": place,
                "key": decode_key(row.key),
                "reason": row.reason,
                "detail": with_table_row(row.detail, dataset.manifest.table_row(place)),
                "at": row.at,
            }
            for row, place in zip(rows, places.tolist(), strict=True)
            if place >= 0
        ]

    def classes(self, name: str) -> list[dict[str, Any]]:
        """The classes of a data set, with how much of each is resident."""
        dataset = self._shelves.named(name)
        manifest = dataset.manifest
        total, places = manifest.class_sizes(), manifest.places_of(dataset.resident())
        here = np.bincount(manifest.labels_at(places[places >= 0]), minlength=len(manifest.classes))
        return [
            {"class": known, "samples": int(many), "resident": int(have)}
            for known, many, have in zip(manifest.classes, total, here, strict=True)
        ]


def count(shards: Iterable[ShardRow]) -> int:
    """The samples in these shards."""
    return sum(int((shard.samples >= 0).sum()) for shard in shards)
