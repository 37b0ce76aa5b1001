"""When a watched source is looked at. It decides and does nothing; the time is passed in.

Hints are gathered until the place rests, but not for long. A look that failed is tried again later and later.
A source that vanished freezes the data set: then looks only ask whether it is back as it was.
"""

from dataclasses import dataclass
from typing import Any, Final

from stager.watch.hint import EVERYTHING, NOTHING, Hint

REST_S: Final = 1.0  # without a hint: then the place rests
GATHER_S: Final = 3.0  # after the first hint a look begins, whether it rests or not
# Times what the last look took, the next one waits; at most, if looks find nothing new one after the other.
PAUSES: Final = (1.0, 10.0)
VAIN_MOST: Final = 8
FAILED_S: Final = (2.0, 300.0)  # until a look that failed is tried again: at first, and at most
SILENT_S: Final = 20.0  # a watcher that says nothing for so long hangs in its mount


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be looked at. `is_dry`: only whether all is as it was."""

    hint: Hint
    is_dry: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """A look is over. `unripe`: where files were found that somebody still wrote."""

    is_changed: bool = False
    unripe: Hint = NOTHING


@dataclass(frozen=True, slots=True)
class LookFailed:
    """It came to nothing. `is_gone`: because so much is gone that it may be the source which is."""

    why: str
    is_gone: bool


class Watched:
    """One data set."""

    def __init__(self, now: float, wall: float, every_s: float | None) -> None:
        """`every_s`: the whole source is looked at so often, whatever is hinted."""
        self._every_s, self._next_at = every_s, now
        self._pending, self._first_at, self._last_at = NOTHING, now, now
        self._not_before = self._calm_at = now
        self._look: tuple[Look, float] | None = None  # that is under way, and since when
        self._failures = self._vain = 0  # looks that failed, or found nothing new, one after the other
        self._is_away = False  # there is no use in looking
        self.frozen_why, self.frozen_at = "", 0.0
        self.since, self.last_change = wall, 0.0

    # What is heard

    def hinted(self, now: float, hint: Hint) -> None:
        """Something may have changed."""
        if hint:
            if not self._pending:
                self._first_at = now
            self._last_at = now
            self._pending |= hint
            if self.is_frozen:  # something stirs: perhaps it is back
                self._not_before = min(self._not_before, max(now + REST_S, self._calm_at))

    def gone(self, now: float, wall: float, why: str) -> None:
        """The source is not there, or not the one that it was."""
        self._is_away = True
        self._freeze(now, wall, why)

    def back(self, now: float) -> None:
        """Something is there again. A look will tell what."""
        if self._is_away:
            self._is_away, self._failures, self._not_before = False, 0, now + REST_S

    def taken(self, now: float, wall: float, is_overtaken: bool) -> None:
        """A person has had the newest version taken. `is_overtaken`: it is older than what we took."""
        self._thaw(wall)
        self.last_change = wall
        self._failures, self._not_before = 0, now
        if is_overtaken:
            self.hinted(now, EVERYTHING)

    # What is to be done

    def due_at(self) -> float | None:
        """When the next look is to begin; None: something must be heard before."""
        if self._look is not None or self._is_away:
            return None
        if self.is_frozen:
            return self._not_before
        times = [self._next_at] if self._every_s is not None else []
        if self._pending:
            times.append(min(self._last_at + REST_S, self._first_at + GATHER_S))
        return max(min(times), self._not_before) if times else None

    def begin(self, now: float, wall: float) -> Look:
        """A look begins."""
        is_whole = self.is_frozen or (self._every_s is not None and now >= self._next_at)
        look = Look(EVERYTHING if is_whole else self._pending, self.is_frozen)
        if not look.is_dry:
            self._pending = NOTHING
        self._look = look, now
        if not look.is_dry:
            self.since = wall
        return look

    def ended(self, now: float, wall: float, how: Looked | LookFailed) -> bool:
        """A look is over; return whether that ended a freeze."""
        assert self._look is not None, "no look was under way"
        (look, began), self._look = self._look, None
        pause, most = PAUSES
        self._calm_at = now + (now - began) * most
        if isinstance(how, LookFailed):
            self._failed(now, wall, look, how)
            return False
        self._failures, self.since = 0, wall if not look.is_dry else self.since
        if look.is_dry:
            if self._is_away:
                return False  # it went while we looked
            self._thaw(wall)
            self._not_before = now
            self.hinted(now, EVERYTHING)
            return True
        self._vain = 0 if how.is_changed else min(self._vain + 1, VAIN_MOST)
        if how.is_changed:
            self.last_change = wall
        self._not_before = now + (now - began) * min(pause * 2**self._vain, most)
        if self._every_s is not None:
            self._next_at = now + self._every_s
        self.hinted(now, how.unripe)
        return False

    def _failed(self, now: float, wall: float, look: Look, how: LookFailed) -> None:
        first, most = FAILED_S
        wait_s = min(first * 2**self._failures, most)
        self._failures += 1
        if how.is_gone and not self._is_away:
            self._freeze(now, wall, how.why)
        if not look.is_dry:
            self.hinted(now, look.hint)
            self.since = wall
        self._not_before = now + wait_s

    def _freeze(self, now: float, wall: float, why: str) -> None:
        if not self.is_frozen:
            self.frozen_at = self.since = wall
        self.frozen_why = why
        self._not_before = now

    def _thaw(self, wall: float) -> None:
        if self.is_frozen:
            self.frozen_why, self.since = "", wall

    @property
    def is_frozen(self) -> bool:
        return bool(self.frozen_why)

    @property
    def state(self) -> str:
        if self.is_frozen:
            return "frozen"
        return "looking" if self._look is not None else "resting"

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "since": round(self.since, 3),
            "why": self.frozen_why,
            "last_change": round(self.last_change, 3) or None,
        }
