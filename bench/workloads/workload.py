"""What a workload is, and what one run of the workloads has."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environments import Peer
from bench.report import Section
from bench.rounds import Answer, Rounds
from bench.servers import Service, running_service
from bench.workloads.slow_files import slow_environ


@dataclass(slots=True, kw_only=True)
class Place(Rounds):
    """One run: where it works, and on what. A workload appends to `rows` by `alternate`."""

    data: Path | None  # shared/data, with real files to measure on; None: they are made

    def child(
        self, module: str, task: Mapping[str, Any], python: Path | str = sys.executable, **env: str
    ) -> Answer:
        """Run bench.workloads.MODULE with a task in a process of its own; its last JSON is the answer."""
        return self.run(f"bench.workloads.{module}", python, task, **env)

    @contextmanager
    def service(self, name: str, datasets: str, capacity: str = "100GB", **env: str) -> Iterator[Service]:
        """A service with these tables of stager.toml, on an empty cache of its own."""
        with running_service(self.work / name, datasets, capacity, **env) as service:
            yield service

    def slow_files(self, folder: Path, delay_ms: float) -> dict[str, str]:
        """Variables for processes that are to find each opening of a file below a folder late by so much."""
        return slow_environ(folder, delay_ms)


@dataclass(frozen=True, slots=True)
class Workload:
    """One of them: its rows in the page, who else takes part, and how it is measured."""

    section: Section
    measure: Callable[[Place], None]
    peers: tuple[Peer, ...] = ()
