"""When a watched source is looked at: the decision alone, with a time of its own."""

import pytest

from stager.lines import line_of
from stager.watch.hint import EVERYTHING, FOLDERS_MOST, NOTHING, Hint
from stager.watch.messages import (
    Beat,
    FromWatcher,
    Gone,
    Hinted,
    KnownFiles,
    ToWatcher,
    Watching,
    WatchPlace,
    read_by_service,
    read_by_watcher,
)
from stager.watch.watched import FAILED_S, GATHER_S, PAUSES, REST_S, Looked, LookFailed, Watched

HERE = Hint.of(["a"])
WALL = 1.8e9


def watched(every_s: float | None = None) -> Watched:
    return Watched(0.0, WALL, every_s)


def look(state: Watched, at: float, took_s: float = 0.1, how: Looked | LookFailed | None = None) -> float:
    """A look that begins now; return when it has ended."""
    state.begin(at, WALL + at)
    state.ended(at + took_s, WALL + at + took_s, how or Looked(is_changed=True))
    return at + took_s


def test_nothing_is_looked_at_before_something_is_heard() -> None:
    state = watched()
    assert state.due_at() is None
    state.hinted(5.0, NOTHING)
    assert state.due_at() is None


def test_a_look_comes_when_the_place_rests() -> None:
    state = watched()
    state.hinted(5.0, HERE)
    state.hinted(5.5, Hint.of(["b"]))
    assert state.due_at() == 5.5 + REST_S
    assert state.begin(6.5, WALL).hint == Hint.of(["a", "b"])


def test_a_place_that_never_rests_is_looked_at_all_the_same() -> None:
    state = watched()
    for tick in range(100):
        state.hinted(5.0 + tick / 2, HERE)
    assert state.due_at() == 5.0 + GATHER_S


def test_a_burst_of_a_thousand_hints_is_one_look_and_what_comes_meanwhile_is_the_next() -> None:
    state = watched()
    for number in range(1000):
        state.hinted(1.0 + number / 1000, Hint.of([f"f{number % 7}"]))
    assert state.begin(3.0, WALL).hint.folders == {f"f{number}" for number in range(7)}
    state.hinted(3.1, HERE)
    assert state.due_at() is None  # one after the other
    state.ended(3.5, WALL, Looked(is_changed=True))
    assert state.due_at() == 3.1 + REST_S
    assert state.begin(4.2, WALL).hint == HERE


def test_looks_that_find_nothing_new_come_later_and_later_but_not_without_end() -> None:
    state, now, waits = watched(), 0.0, []
    for _ in range(12):
        state.hinted(now, HERE)
        now = look(state, now + GATHER_S, 2.0, Looked())
        state.hinted(now, HERE)
        due_at = state.due_at()
        assert due_at is not None
        waits.append(due_at - now)
    assert waits == sorted(waits)
    assert waits[-1] == 2.0 * PAUSES[1]
    state.begin(now, WALL)
    state.ended(now + 2.0, WALL, Looked(is_changed=True))
    state.hinted(now + 2.0, HERE)
    assert state.due_at() == now + 2.0 + 2.0 * PAUSES[0]


def test_files_that_somebody_still_writes_come_at_the_next_look() -> None:
    state = watched()
    state.hinted(1.0, HERE)
    ended = look(state, 2.0, 0.1, Looked(is_changed=True, unripe=Hint.of(["late"])))
    assert state.due_at() == ended + REST_S
    assert state.begin(9.0, WALL).hint == Hint.of(["late"])


def test_a_look_that_failed_is_tried_again_later_and_later_with_its_hint() -> None:
    state, now, waits = watched(), 1.0, []
    state.hinted(0.0, HERE)
    for _ in range(12):
        now = look(state, now, 0.1, LookFailed("no answer", is_gone=False))
        due_at = state.due_at()
        assert due_at is not None
        waits.append(due_at - now)
        now = due_at
    assert waits[0] == pytest.approx(FAILED_S[0])
    assert waits[-1] == pytest.approx(FAILED_S[1])
    assert not state.is_frozen
    assert state.begin(now, WALL).hint == HERE


def test_a_source_that_lost_too_much_freezes_and_thaws_when_it_is_back_as_it_was() -> None:
    state = watched()
    state.hinted(0.0, HERE)
    ended = look(state, 2.0, 0.1, LookFailed("60 % are gone", is_gone=True))
    assert state.to_json() | {"last_change": None} == {
        "state": "frozen", "since": WALL + ended, "why": "60 % are gone", "last_change": None,
    }  # fmt: skip
    due_at = state.due_at()
    assert due_at == ended + FAILED_S[0]
    asked = state.begin(due_at, WALL)
    assert (asked.is_dry, asked.hint) == (True, EVERYTHING)
    assert state.state == "frozen"
    assert not state.ended(due_at + 0.1, WALL, LookFailed("58 % are gone", is_gone=True))
    assert (state.frozen_why, state.to_json()["since"]) == ("58 % are gone", WALL + ended)  # since it began
    state.begin(100.0, WALL)
    assert state.ended(100.1, WALL + 100.1, Looked())
    assert not state.is_frozen
    taken = state.begin(102.0, WALL)
    assert (taken.is_dry, taken.hint) == (False, EVERYTHING)  # what changed meanwhile is taken now


def test_while_the_source_is_away_nobody_looks_and_when_it_is_back_the_first_look_takes_nothing() -> None:
    state = watched(every_s=60.0)
    state.gone(3.0, WALL + 3, "nothing is there")
    state.hinted(4.0, EVERYTHING)
    assert state.due_at() is None
    state.gone(9.0, WALL + 9, "no such directory")
    assert (state.frozen_why, state.frozen_at) == ("no such directory", WALL + 3)
    state.back(20.0)
    assert state.due_at() == 20.0 + REST_S
    assert state.begin(21.0, WALL).is_dry


def test_a_source_that_goes_while_it_is_looked_at_stays_frozen_whatever_the_look_says() -> None:
    state = watched()
    state.gone(1.0, WALL, "gone")
    state.back(2.0)
    state.begin(3.0, WALL)
    state.gone(3.5, WALL, "gone again")
    assert not state.ended(4.0, WALL, Looked())
    assert state.frozen_why == "gone again"
    assert state.due_at() is None


def test_something_that_stirs_in_a_frozen_source_is_looked_at_soon() -> None:
    state, now = watched(), 0.0
    state.hinted(now, HERE)
    now = 2.0
    for _ in range(6):
        now = look(state, now, 0.1, LookFailed("gone", is_gone=True))
        due_at = state.due_at()
        assert due_at is not None
        now = due_at
    now = look(state, now, 0.1, LookFailed("gone", is_gone=True))
    state.hinted(now + 5.0, HERE)
    assert state.due_at() == now + 5.0 + REST_S


def test_a_person_s_word_thaws() -> None:
    state = watched()
    state.hinted(0.0, HERE)
    look(state, 1.0, 0.1, LookFailed("gone", is_gone=True))
    state.taken(5.0, WALL + 5, is_overtaken=False)
    assert (state.is_frozen, state.to_json()["last_change"]) == (False, WALL + 5)
    assert not state.begin(6.0, WALL).is_dry


def test_a_listing_that_a_look_overtook_is_looked_at_again() -> None:
    state = watched()
    state.taken(5.0, WALL, is_overtaken=False)
    assert state.due_at() is None
    state.taken(6.0, WALL, is_overtaken=True)
    assert state.begin(8.0, WALL).hint == EVERYTHING


def test_a_bucket_is_listed_at_once_and_then_at_its_interval() -> None:
    state = watched(every_s=60.0)
    assert state.due_at() == 0.0
    assert state.begin(0.0, WALL).hint == EVERYTHING
    state.ended(1.0, WALL, Looked(is_changed=True))
    assert state.due_at() == 61.0
    state.hinted(10.0, HERE)  # an event came
    assert state.due_at() == 10.0 + REST_S
    assert state.begin(11.0, WALL).hint == HERE


def test_hints_of_many_folders_are_everything() -> None:
    many = Hint.of(map(str, range(FOLDERS_MOST)))
    assert not many.is_everything
    assert (many | HERE) == EVERYTHING
    assert (NOTHING | HERE) == HERE
    assert (EVERYTHING | HERE) == EVERYTHING
    assert Hint.of_keys(["a/1.jpg", "a/b/2.jpg", "3.jpg"]) == Hint.of(["a", "a/b", ""])


@pytest.mark.parametrize("message", [WatchPlace({"url": "/x"}, 30.0), KnownFiles("/c", "l", ("s",), "m")])
def test_what_a_watcher_is_told_arrives(message: ToWatcher) -> None:
    again = read_by_watcher(line_of(message))
    assert line_of(again) == line_of(message)
    assert type(again) is type(message)


@pytest.mark.parametrize(
    "message",
    [
        *(Watching("inotify", watches=3), Gone("no such directory"), Beat()),
        *(Hinted(EVERYTHING), Hinted(Hint.of(["a", "\udcff"], ["b/c"]))),
    ],
)
def test_what_a_watcher_says_arrives(message: FromWatcher) -> None:
    assert read_by_service(line_of(message)) == message
    assert line_of(message).isascii()
