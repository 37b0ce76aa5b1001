"""The files of samples that functions have made and that no durable shard has yet: the owner's side."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stager.cache.budget import Budget
from stager.cache.dataset import Dataset
from stager.functions.made import made_path
from stager.reader.values import Numbers

KEPT_S: Final = 7 * 24 * 3600.0  # after a crash, for a job that is taken up again


class MadeFiles:
    """Workers write them, within the reservation of a shard; what a crash has left counts as used."""

    def __init__(self, directory: Path, budget: Budget, now: float, datasets: Iterable[Dataset]) -> None:
        """`now`: by the wall; `datasets`: by all recipes that are still wanted."""
        self.directory, self._budget = directory, budget
        self._left: dict[str, int] = {}  # name -> bytes
        wanted = {dataset.record.recipe[:16] for dataset in datasets}
        for path in directory.iterdir() if directory.is_dir() else ():
            told = path.stat()
            if path.name.split("-", 1)[0] in wanted and now - told.st_mtime < KEPT_S:
                self._left[path.name] = told.st_size
            else:
                path.unlink()
        budget.used_bytes += sum(self._left.values())

    def forget(self, dataset: Dataset, samples: Numbers) -> None:
        """These samples are staged."""
        for tag in dataset.records.values("tag", samples).tolist() if dataset.is_made else ():
            path = made_path(self.directory, dataset.record.recipe, tag)
            path.unlink(missing_ok=True)
            self._budget.used_bytes -= self._left.pop(path.name, 0)
