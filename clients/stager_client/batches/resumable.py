"""What every framework's loader has of the BatchLoader's."""

from collections.abc import Mapping
from typing import Any

from stager.reader.cuts.patches.patch import Patches
from stager.reader.samples.changes import Changes
from stager_client.batches.loader import BatchLoader


class Resumable:
    """It can stop at any batch and go on elsewhere, and take another version between two epochs."""

    loader: BatchLoader

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; without it, each epoch that is read to its end is followed by the next."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where we are, to go on at this batch later, on any number of ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where that loader was. Raise UsageError if it read other data, or changed them otherwise."""
        self.loader.load_state_dict(state)

    def refresh(self, version: str | None = None) -> Changes:
        """Read the newest version from the next epoch on, or one that is kept, by its digest.

        What it returns says what has changed: `print` it. Raise UsageError in the middle of an epoch, or if
        classes have come or gone: labels would change their meaning.
        """
        return self.loader.refresh(version)

    @property
    def volumes(self) -> list[tuple[int, ...]]:
        """The shapes of the volumes that patches are cut of, by their numbers."""
        cut = self.loader.assembly.cut
        return [grid.shape for grid, _ in cut.grids] if isinstance(cut, Patches) else []

    def stats(self) -> dict[str, float]:
        """Batches; how long the loop waited for them, its transform included; how long it computed."""
        return self.loader.stats()
