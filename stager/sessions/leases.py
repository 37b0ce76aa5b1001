"""Which versions are read: a reader says hello when it opens a data set, and its reports go on saying so.

A lease decides what is kept, never what is safe: a reader without one sees misses, or a clear error. It lasts
as long as the process that said hello; where that cannot be seen (a container), as long as it is heard.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from stager.catalog.catalog import Catalog
from stager.catalog.rows import LeaseRow
from stager.clock import Clock
from stager.errors import UsageError

SILENT_S: Final = 600.0  # of a process that we cannot see
START_S: Final = 60.0  # after a start, readers that opened while we were away have so long to say so
LEASES_MOST: Final = 10_000


def began(pid: int) -> int:
    """When a process began, in ticks: its number may be given to another one later. 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


class Leases:
    """All leases, by session. They outlive us: the catalog has them."""

    def __init__(self, catalog: Catalog, clock: Clock, began: Callable[[int], int] = began) -> None:
        self._catalog, self._clock, self._began = catalog, clock, began
        self._by_session = {row.session: row for row in catalog.leases()}
        self._heard = dict.fromkeys(self._by_session, clock.now())
        self._known_at = clock.now() + START_S

    def take(self, session: str, dataset: str, manifest: str, pid: int) -> None:
        """A session reads this version of a data set."""
        if session not in self._by_session and len(self._by_session) >= LEASES_MOST:
            raise UsageError(f"{LEASES_MOST} readers are open", hint="close some of them")
        row = LeaseRow(session, dataset, manifest, pid, self._began(pid) if pid > 0 else 0)
        self._heard[session] = self._clock.now()
        known = self._by_session.get(session)
        if known is not None and known.began and self._is_alive(known):
            return  # a worker of the process that opened it speaks for it
        if known != row:
            self._by_session[session] = row
            self._catalog.put_lease(row)

    def give_up(self, session: str, pid: int) -> bool:
        """A session is over. False: whoever says so did not open it."""
        known = self._by_session.get(session)
        if known is None or known.pid != pid:
            return False
        del self._by_session[session], self._heard[session]
        self._catalog.remove_leases([session])
        return True

    def forget(self, sessions: Iterable[str]) -> None:
        """These read no more, whatever they say of themselves: what they have open is going."""
        gone = [session for session in sessions if self._by_session.pop(session, None) is not None]
        self._catalog.remove_leases(gone)

    def heard(self, session: str) -> bool:
        """A session is alive. False: we do not know what it reads."""
        self._heard[session] = self._clock.now()
        return session in self._by_session

    @property
    def are_known(self) -> bool:
        """Whether whoever opened something while we were away has had the time to say so."""
        return self._clock.now() >= self._known_at

    def held(self) -> dict[str, set[str]]:
        """The manifests that are read, by the names of their data sets."""
        gone = [session for session, row in self._by_session.items() if not self._is_alive(row)]
        for session in gone:
            del self._by_session[session]
        self._heard = {session: self._heard[session] for session in self._by_session}
        if gone:
            self._catalog.remove_leases(gone)
        held: dict[str, set[str]] = {}
        for row in self._by_session.values():
            held.setdefault(row.dataset, set()).add(row.manifest)
        return held

    def sessions_of(self, name: str) -> set[str]:
        """The sessions that read a data set."""
        self.held()  # forgets those that are gone
        return {session for session, row in self._by_session.items() if row.dataset == name}

    def readers_of(self, name: str) -> Counter[str]:
        """How many sessions read each version of a data set, by manifest."""
        self.held()  # forgets those that are gone
        return Counter(row.manifest for row in self._by_session.values() if row.dataset == name)

    def _is_alive(self, row: LeaseRow) -> bool:
        if row.began and self._began(row.pid) == row.began:
            return True
        return self._clock.now() - self._heard[row.session] < (0 if row.began else SILENT_S)
