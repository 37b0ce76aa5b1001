"""What is asked of a mount and was not answered yet: since when it is silent, and for what."""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

SILENT_S: Final = 5.0  # a place of which nothing was heard for so long is silent
WITNESS_S: Final = 1.0  # in which it can show that it is not


class Silence(NamedTuple):
    """A place does not answer."""

    seconds: float
    what: str  # the call that has waited longest, as people are told it


class Asked:
    """The calls that are under way at one place, one a thread. Any thread may ask; one looks.

    A call may take long although the place answers: of a large file, or of one that hangs alone. So before a
    place counts as silent it is asked for something that no cache knows (`witness`), and may answer that.
    """

    def __init__(
        self, witness: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.witness, self._clock = witness, clock
        self._open: dict[int, tuple[float, str, str | bytes]] = {}  # by thread
        self._heard_at = 0.0
        self._witnessing: threading.Thread | None = None

    def ask(self, verb: str, name: str | bytes) -> None:
        """This thread begins a call. It is said as both."""
        self._open[threading.get_ident()] = self._clock(), verb, name

    def answered(self) -> None:
        """The call of this thread has come back, with whatever."""
        self._open.pop(threading.get_ident(), None)
        self._heard_at = self._clock()

    def silence(self) -> Silence | None:
        """How long nothing was heard, if that is long and somebody waits. To find out may take a second."""
        waiting = list(self._open.values())
        if not waiting:
            return None
        began, verb, name = min(waiting, key=lambda one: one[0])
        since = max(began, self._heard_at)
        if self._clock() - since < SILENT_S:
            return None
        if self._has_witness():
            self._heard_at = self._clock()
            return None
        what = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
        return Silence(self._clock() - since, f"{verb} {what}")

    def _has_witness(self) -> bool:
        """Whether the place answers at all. Never two threads hang for that."""
        if self._witnessing is None or not self._witnessing.is_alive():
            self._witnessing = threading.Thread(target=self._call_witness, name="witness", daemon=True)
            self._witnessing.start()
            self._witnessing.join(WITNESS_S)
        return not self._witnessing.is_alive()

    def _call_witness(self) -> None:
        try:
            self.witness()
        except OSError:  # that is an answer, too
            return
