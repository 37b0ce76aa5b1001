"""Messages between processes of ours: a dataclass each, sent as one line of JSON that says its kind."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self, TypeVar


class Message:
    """Whatever is sent is a dataclass of this kind."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # each kind is a dataclass

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """As the other side wrote it; TypeError, if it is of another build."""
        return cls(**value)


M = TypeVar("M", bound=Message)


def line_of(message: Message) -> str:
    return json.dumps({"kind": type(message).__name__, **message.to_json()}, default=str) + "\n"  # paths


def by_name(*kinds: type[M]) -> dict[str, type[M]]:
    """The kinds of messages that one side reads."""
    return {kind.__name__: kind for kind in kinds}


def read_line(line: str, kinds: Mapping[str, type[M]]) -> M:
    """What the other side says. Raise ValueError if it was cut off."""
    value = json.loads(line)
    return kinds[value.pop("kind")].from_json(value)
