"""What one caller may ask of the service: bytes a request, sessions and jobs a user."""

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stager.errors import UsageError
from stager.reader.service import API
from stager.reader.settings import ORDER_NUMBERS_MAX

BODY_BYTES_MAX: Final = 4 << 20
ORDER_BYTES_MAX: Final = BODY_BYTES_MAX + ORDER_NUMBERS_MAX * 4 * 4 // 3  # an order of one's own, in base64
SESSIONS_A_USER_MAX: Final = 1_000
ORDERED_A_USER_MAX: Final = 64_000_000  # samples of all orders of a user's sessions: each takes memory
JOBS_A_USER_MAX: Final = 100  # that have not ended


class BoundedBodies:
    """Refuses a body that is too long as soon as that is known, and reads no further."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_order = scope["path"].startswith(f"{API}/datasets/") and scope["path"].endswith("/sessions")
        limit_bytes = ORDER_BYTES_MAX if has_order else BODY_BYTES_MAX
        told = dict(scope["headers"]).get(b"content-length", b"0")
        left_bytes = limit_bytes
        is_told_too_long = told.isdigit() and int(told) > limit_bytes

        async def receive_so_much() -> Message:
            nonlocal left_bytes
            if is_told_too_long:
                raise _too_long(limit_bytes)
            message = await receive()
            left_bytes -= len(message.get("body", b""))
            if left_bytes < 0:
                raise _too_long(limit_bytes)
            return message

        await self._app(scope, receive_so_much, send)


def _too_long(limit_bytes: int) -> HTTPException:
    return HTTPException(413, f"a body has at most {limit_bytes:,} bytes", {"Connection": "close"})


class Users:
    """Which user has begun which sessions and jobs. Asked on the loop only."""

    def __init__(self) -> None:
        self._sessions: dict[int, dict[str, int]] = defaultdict(dict)  # by user: samples of each one's orders
        self._jobs: dict[int, set[int]] = defaultdict(set)

    def may_read(self, user: int, session: str, samples: int, known: Collection[str]) -> None:
        """Raise UsageError if a user has too many sessions, of those that are `known` now."""
        ours = {name: count for name, count in self._sessions[user].items() if name in known}
        ours.pop(session, None)
        if len(ours) >= SESSIONS_A_USER_MAX:
            raise UsageError(
                f"user {user} has {len(ours):,} sessions open, the most that one user may have",
                hint="close some readers; silent ones are forgotten after ten minutes",
            )
        if sum(ours.values()) + samples > ORDERED_A_USER_MAX:
            raise UsageError(
                f"the orders of user {user} have more than {ORDERED_A_USER_MAX:,} samples in all",
                hint="close some readers; silent ones are forgotten after ten minutes",
            )
        self._sessions[user] = {**ours, session: samples}

    def may_begin(self, user: int, unfinished: Collection[int]) -> None:
        """Raise UsageError if a user has too many jobs, of those that are `unfinished` now."""
        self._jobs[user].intersection_update(unfinished)
        if len(self._jobs[user]) >= JOBS_A_USER_MAX:
            raise UsageError(
                f"user {user} has {JOBS_A_USER_MAX} unfinished jobs, the most that one user may have",
                hint="wait for them: stager status",
            )

    def began(self, user: int, job: int) -> None:
        self._jobs[user].add(job)
