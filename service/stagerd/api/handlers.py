"""What handlers share: the way to the loop, and who asks."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, Protocol, TypeVar

from fastapi import Request

T = TypeVar("T")
ONE_VERSION: Final = "are the service and this program of one version?"


class Ask(Protocol):
    """Has the loop do something, and waits for it."""

    async def __call__(self, act: Callable[[], T]) -> T: ...


def on_loop(method: Callable[..., T], ask: Ask) -> Callable[..., Coroutine[Any, Any, T]]:
    """A handler that takes what the owner's method takes, as its signature tells FastAPI."""

    @wraps(method)
    async def answer(**told: Any) -> T:
        return await ask(lambda: method(**told))

    return answer


def user_of(request: Request) -> int:
    """Who asks, by the kernel's word."""
    return int(request.client.host) if request.client else -1
