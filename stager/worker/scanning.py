"""A source is listed and becomes a manifest: all of it, or the folders that changed."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from stager.interfaces import FoldersLayout, LeftOut, Recipe, Scanning, Source
from stager.layouts import open_layout
from stager.reader.samples.manifest import ListedManifest
from stager.reader.values import ObjectInfo
from stager.scan.again import find_again
from stager.scan.recall import Recall
from stager.scan.ripe import Ripening
from stager.scan.scan import Known, Scan, write_manifest, write_scan
from stager.sources import directory_of
from stager.sources.mount.asked import Asked
from stager.sources.mount.relisting import relist
from stager.worker.listing import SourceListing, nothing_known
from stager.worker.messages import Scanned, ScanSource

log = logging.getLogger(__name__)

TOLD_EVERY_S: Final = 1.0
UNRIPE_MOST: Final = 1_000  # folders that are told of


def scan(
    task: ScanSource, source: Source, recipe: Recipe, known: Known, told: "ScanProgress", calls: Asked
) -> Scanned:
    """Write a `Scan` of what a source has now."""
    spec, asked, directory = task.dataset, task.relist, directory_of(task.dataset.source)
    newest = known.newest if isinstance(known.newest, ListedManifest) and _is_alike(task) else None
    recall = Recall(newest) if newest is not None and not known.records.is_plain else None
    scanning, left_out = Scanning(told.went_on), LeftOut(recipe.takes)
    layout = open_layout(spec.layout, spec.options, recipe, left_out)
    ripening = None
    if asked is not None and directory is not None:
        ripening = Ripening(time.time_ns(), round(asked.rest_s * 1e9))
        may_be_part = newest is not None and newest.is_whole and asked.is_part and not known.relist
        if newest is not None and may_be_part and isinstance(layout, FoldersLayout):
            list_anew = partial(relist, directory, asked.folders, asked.trees, scanning=scanning, asked=calls)
            found = find_again(layout, newest, list_anew, ripening.passed, told.scanned)
            if found is not None:
                write_scan(Scan(task.path), found, known, is_part=True)
                return _scanned(task, left_out, scanning, ripening)
    passed = told.passed if ripening is None else _rested(ripening, told, _known_in(newest, recall))
    listing = SourceListing(source, scanning, passed, recall or nothing_known)
    has_folders = directory is not None and isinstance(layout, FoldersLayout)
    write_manifest(
        task.path, layout, listing, known, told.scanned, lambda: has_folders and not scanning.has_links
    )
    return _scanned(task, left_out, scanning, ripening)


def _is_alike(task: ScanSource) -> bool:
    """Whether the newest version was scanned by the same layout and recipe."""
    return task.known is not None and task.known.is_alike


def _rested(
    ripening: Ripening, told: "ScanProgress", known: Callable[[str], ObjectInfo | None]
) -> Callable[[Iterable[ObjectInfo]], Iterator[ObjectInfo]]:
    return lambda objects: ripening.passed(told.passed(objects), known)


def _known_in(newest: ListedManifest | None, recall: Recall | None) -> Callable[[str], ObjectInfo | None]:
    """What tells which object the newest version has under a key."""
    if recall is not None:
        return recall.object_of
    return newest.object_of if newest is not None else lambda key: None


def _scanned(task: ScanSource, left_out: LeftOut, scanning: Scanning, ripening: Ripening | None) -> Scanned:
    left_out.add(scanning.left_out)
    line = left_out.line()
    if line and task.relist is None:
        log.warning("%s: %s", task.dataset.name, line)
    unripe = sorted(ripening.folders)[:UNRIPE_MOST] if ripening else ()
    return Scanned(task.task, line, left_out.ending, None, left_out.lacks_samples, tuple(unripe))


class ScanProgress:
    """Says how far a scan is: a slow one, which goes on, is no silent one."""

    def __init__(self, say: Callable[[int], None]) -> None:
        self._say = say
        self._scanned = 0
        self._said_at = time.monotonic()

    def scanned(self, scanned: int) -> None:
        self._scanned, self._said_at = scanned, time.monotonic()
        self._say(scanned)

    def went_on(self) -> None:
        """Something was heard of the source. Any thread may tell."""
        if time.monotonic() - self._said_at > TOLD_EVERY_S:
            self.scanned(self._scanned)

    def passed(self, objects: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in objects:
            self.went_on()
            yield info
