"""Leases: which versions are read, and for how long that counts."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stager.catalog.catalog import Catalog
from stager.errors import UsageError
from stager.sessions import leases
from stager.sessions.leases import SILENT_S, START_S, Leases, began


@dataclass
class FakeClock:
    at: float = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


@dataclass
class Machine:
    """Processes by number, and when each began."""

    processes: dict[int, int] = field(default_factory=dict)

    def began(self, pid: int) -> int:
        return self.processes.get(pid, 0)


SEEN, UNSEEN = 70, 80


@pytest.fixture
def machine() -> Machine:
    return Machine({SEEN: 5})


def leases_of(path: Path, clock: FakeClock, machine: Machine) -> Leases:
    catalog = path / "catalog.db"
    return Leases(Catalog(catalog, clock, is_new=not catalog.exists()), clock, machine.began)


def close(leases: Leases) -> None:
    leases._catalog.close()


def test_a_version_is_held_as_long_as_its_process_lives_however_silent_it_is(
    tmp_path: Path, machine: Machine
) -> None:
    clock = FakeClock()
    leases = leases_of(tmp_path, clock, machine)
    leases.take("s", "pets", "m1", SEEN)
    leases.take("t", "pets", "m2", SEEN)
    clock.at += 100 * SILENT_S
    assert leases.held() == {"pets": {"m1", "m2"}}
    close(leases)


@pytest.mark.parametrize("began_later", [0, 6], ids=["gone", "its number is another's"])
def test_the_lease_of_a_process_that_has_ended_is_let_go_of(
    tmp_path: Path, machine: Machine, began_later: int
) -> None:
    clock = FakeClock()
    leases = leases_of(tmp_path, clock, machine)
    leases.take("s", "pets", "m1", SEEN)
    machine.processes[SEEN] = began_later
    assert leases.held() == {}
    assert not leases.heard("s")  # should it speak again, it says hello again
    close(leases)
    again = leases_of(tmp_path, clock, machine)
    assert again.held() == {}
    close(again)


def test_a_process_that_cannot_be_seen_holds_its_version_as_long_as_it_is_heard(
    tmp_path: Path, machine: Machine
) -> None:
    clock = FakeClock()
    leases = leases_of(tmp_path, clock, machine)
    leases.take("s", "pets", "m1", UNSEEN)
    for _ in range(3):
        clock.at += SILENT_S - 1
        assert leases.held() == {"pets": {"m1"}}
        assert leases.heard("s")
    clock.at += SILENT_S + 1
    assert leases.held() == {}
    close(leases)


def test_leases_outlive_us_and_nothing_is_given_back_before_others_could_say_hello(
    tmp_path: Path, machine: Machine
) -> None:
    clock = FakeClock()
    leases = leases_of(tmp_path, clock, machine)
    leases.take("s", "pets", "m1", SEEN)
    close(leases)
    again = leases_of(tmp_path, clock, machine)
    assert again.held() == {"pets": {"m1"}}
    assert not again.are_known
    clock.at += START_S
    assert again.are_known
    close(again)


def test_there_are_so_many_leases_and_no_more(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASES_MOST", 2)
    ours = leases_of(tmp_path, FakeClock(), machine)
    for session in ("s", "t", "s"):
        ours.take(session, "pets", "m1", SEEN)
    with pytest.raises(UsageError, match="2 readers are open"):
        ours.take("u", "pets", "m1", SEEN)
    close(ours)


def test_when_a_process_began_is_known_until_it_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert began(child.pid) >= began(os.getpid()) > 0
    child.communicate()
    assert began(child.pid) == 0
