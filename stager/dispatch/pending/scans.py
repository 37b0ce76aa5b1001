"""Scans that are to come: of a data set one after the other."""

import os
from collections.abc import Callable, Iterator

from stager.cache.cache import Cache
from stager.dispatch.task import ScanTask, ScanToCome, list_of
from stager.reader.record import DatasetSpec, manifest_path
from stager.scan.scan import Scan
from stager.worker.messages import KnownVersion, ScanSource


class Scans:
    """Those that have not begun, the oldest first."""

    def __init__(self, cache: Cache, can_relist: Callable[[str], bool]) -> None:
        """`can_relist`: nobody uses the numbers that a data set's samples have now."""
        self._cache, self._can_relist = cache, can_relist
        self._to_come: list[ScanToCome] = []

    def put(self, scan: ScanToCome) -> None:
        self._to_come.append(scan)

    def forget(self, job: int) -> None:
        """A job has ended: a scan for it need not begin."""
        self._to_come = [scan for scan in self._to_come if scan.job != job]

    def ready(self, may_begin: Callable[[DatasetSpec], bool]) -> Iterator[ScanToCome]:
        """Those that can begin now, one after the other."""
        for scan in list(self._to_come):
            if may_begin(scan.spec):
                self._to_come.remove(scan)
                yield scan

    def begin(self, number: int, scan: ScanToCome) -> tuple[ScanTask, ScanSource]:
        """A scan as a task, and what a worker is told of it."""
        path = self._cache.scratch / f"scan-{os.getpid()}-{number}"  # an owner before us may have one
        job, spec, is_urgent, relist, tries = scan
        before, known = None, self._cache.known(spec.name)
        if known is not None:
            manifest = manifest_path(known.directory, known.record.manifest, known.record.lineage)
            is_outgrown = self._cache.is_outgrown(spec.name) and self._can_relist(spec.name)
            before = KnownVersion(list_of(known), manifest, is_outgrown, is_alike=known.spec == spec)
        task = ScanTask(number, spec, job, Scan(path), is_urgent, tries, relist)
        return task, ScanSource(number, spec, path, before, is_urgent, relist)
