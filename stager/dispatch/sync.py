"""Published shards on their way to the disk: readers have them already, the catalog not yet."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stager.atomic import fsync_path
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.catalog.rows import ShardRow
from stager.dispatch.events import Events


@dataclass(frozen=True, slots=True)
class Durable:
    """A shard has reached the disk, or could not."""

    dataset: Dataset
    row: ShardRow
    error: OSError | None


class DurableQueue:
    """Syncs shards one after the other, on a thread of its own: nobody waits for the disk but the catalog."""

    def __init__(self, cache: Cache, events: Events) -> None:
        self._cache, self._events = cache, events
        self._disk = ThreadPoolExecutor(1, "durable")
        self._waiting: dict[int, tuple[Dataset, ShardRow]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, dataset: Dataset, row: ShardRow) -> None:
        """Make a shard durable; a Durable event says when."""
        self._waiting[row.number] = (dataset, row)
        self._disk.submit(self._sync, dataset, row)

    def done(self, event: Durable) -> None:
        """It is on the disk, or it failed for good."""
        del self._waiting[event.row.number]

    def datasets(self) -> set[int]:
        """The ids of data sets that have shards here."""
        return {dataset.id for dataset, _ in self._waiting.values()}

    def samples(self, dataset: Dataset) -> int:
        """Samples of a data set that wait."""
        return sum(len(row.samples) for waiting, row in self._waiting.values() if waiting is dataset)

    def paths(self) -> set[Path]:
        """Shards that are complete and not durable yet."""
        return {dataset.path_of(row) for dataset, row in self._waiting.values()}

    def stop(self) -> None:
        self._disk.shutdown()

    def _sync(self, dataset: Dataset, row: ShardRow) -> None:
        path, caught = dataset.path_of(row), None
        try:
            fsync_path(path)
            fsync_path(path.parent)
        except OSError as error:
            caught = error
        self._events.put(Durable(dataset, row, caught))
