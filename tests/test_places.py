"""Who hangs: it is asked less and less, and the others as before."""

import threading
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from stager.dispatch import places
from stager.dispatch.places import FORGOTTEN_S, HERE, TRY_MOST_S, Places
from stager.reader.record import DatasetSpec
from stager.reader.values import SourceSpec
from stager.sources.mount.asked import SILENT_S, Asked

LAB, OTHER, S3 = SourceSpec("/mnt/lab/a"), SourceSpec("/data/b"), SourceSpec("s3://bucket")


@dataclass
class Hand:
    """A clock that is set by hand."""

    time_s: float = 100.0
    asked: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.time_s

    def wall(self) -> float:
        return self.time_s


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def known(clock: Hand, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(places, "remote_mount", lambda path: "/mnt/lab" if "lab" in str(path) else "")
    return Places(clock)


def test_all_data_sets_of_a_mount_are_at_one_place(known: Places) -> None:
    at = [known.of(SourceSpec(url)) for url in ("/mnt/lab/a", "file:///mnt/lab/b%20c", "/data", "s3://lab")]
    assert at == ["/mnt/lab", "/mnt/lab", HERE, HERE]


def test_a_place_that_hangs_is_tried_with_one_task_ever_more_rarely(known: Places, clock: Hand) -> None:
    place = known.of(LAB)
    assert known.may_try(place, has_task=True)
    known.told(LAB, 6.0, "a stat of /mnt/lab/a/b.jpg")
    tries = []
    for _ in range(4000):
        assert not known.may_try(place, has_task=True), "one at a time"
        if known.may_try(place, has_task=False):
            tries.append(clock.time_s)
            known.tried(place)
        clock.time_s += 0.1
    waits = [after - before for before, after in pairwise(tries)]
    assert waits[:5] == pytest.approx([1, 2, 4, 8, 16], abs=0.21)
    assert max(waits) <= TRY_MOST_S + 0.2
    assert known.may_try(known.of(OTHER), has_task=True), "others are asked as ever"
    known.answered(LAB)
    assert known.may_try(place, has_task=True)


def test_what_is_told_says_since_when_and_for_what(known: Places, clock: Hand) -> None:
    spec = DatasetSpec("lab", LAB, "folder", {})
    assert known.to_json(spec) is None
    known.told(LAB, 6.0, "a stat of /mnt/lab/a/b.jpg")
    clock.time_s += 6
    known.told(LAB, 12.0, "a read of /mnt/lab/a/c.jpg")  # another worker, and another call
    assert known.to_json(spec) == {
        "dataset": "lab",
        "source": "/mnt/lab/a",
        "hung_s": 12.0,
        "what": "a read of /mnt/lab/a/c.jpg",
    }
    assert known.to_json(DatasetSpec("other", OTHER, "folder", {})) is None
    known.told(LAB, 0.0, "")
    assert known.to_json(spec) is None


def test_a_local_source_that_hangs_is_apart_from_the_others_from_then_on(known: Places) -> None:
    known.told(OTHER, 6.0, "a read of /data/b/1.jpg")
    assert known.of(OTHER) == "/data/b"
    assert known.hung(S3) is None
    known.answered(OTHER)
    assert known.of(OTHER) == "/data/b"


def test_nobody_knows_of_a_place_that_was_not_asked_for_long(known: Places, clock: Hand) -> None:
    known.told(LAB, 6.0, "a stat of /mnt/lab/a")
    clock.time_s += FORGOTTEN_S + 1
    known.forget_old()
    assert known.hung(LAB) is None


def test_a_call_that_takes_long_is_no_silence_while_the_place_answers_others() -> None:
    clock, witnessed = Hand(), []
    asked = Asked(lambda: witnessed.append(clock.time_s), clock.now)
    assert asked.silence() is None
    asked.ask("a read of", "/mnt/lab/large")
    clock.time_s += SILENT_S - 1
    assert (asked.silence(), witnessed) == (None, [])
    clock.time_s += 10
    assert asked.silence() is None
    assert witnessed == [clock.time_s], "it was asked for something else, and answered that"


def test_a_place_is_silent_from_its_last_answer_on() -> None:
    clock, hangs = Hand(), threading.Event()
    asked = Asked(lambda: hangs.wait(30) or None, clock.now)
    asked.ask("a stat of", b"/mnt/lab/a.jpg")
    clock.time_s += 3
    asked.ask("a stat of", b"/mnt/lab/b.jpg")  # so the first was answered
    clock.time_s += SILENT_S + 1
    told = asked.silence()
    assert told is not None
    assert (told.seconds, told.what) == (SILENT_S + 1, "a stat of /mnt/lab/b.jpg")
    asked.answered()
    hangs.set()
    assert asked.silence() is None
