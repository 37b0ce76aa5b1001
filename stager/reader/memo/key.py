"""The key of a call: a function by its code, each argument by its value; and what two calls differ in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stager.errors import CacheError
from stager.reader.code.key import CodeKey, changes
from stager.reader.values import canonical_json, digest_of

# What a part of an argument is told as, if it is a digest that says nothing to a person.
_TOLD: Final = {
    "content": "the content of {what} changed",
    "version": "{what} has another version",
    "recipe": "{what} has another recipe",
    "samples": "{what} has other samples",
}
_FOLLOWS: Final = ("content", "samples")


@dataclass(frozen=True, slots=True)
class ArgumentKey:
    """What an argument is known by.

    `what`: for people: "the file folds.csv". `parts`: by name; "value", "dtype" and "shape" are texts that a
    person can read, those of _TOLD are digests. `code`: of one that is a function or an object of a class.
    """

    what: str
    parts: Mapping[str, str]
    code: CodeKey | None = None

    def to_json(self) -> dict[str, Any]:
        code = None if self.code is None else self.code.to_json()
        return {"what": self.what, "parts": dict(self.parts), "code": code}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ArgumentKey":
        code = None if value["code"] is None else CodeKey.from_json(value["code"])
        return cls(str(value["what"]), dict(value["parts"]), code)

    def told(self) -> list[Any]:
        """What decides the key."""
        return [dict(self.parts), None if self.code is None else self.code.digest]


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call of a function, so that two calls share a digest only if they give one result."""

    code: CodeKey
    arguments: Mapping[str, ArgumentKey] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        given = {name: argument.told() for name, argument in self.arguments.items()}
        return digest_of(canonical_json([self.code.digest, given]).encode())

    def to_json(self) -> dict[str, Any]:
        given = {name: argument.to_json() for name, argument in self.arguments.items()}
        return {"code": self.code.to_json(), "arguments": given}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CallKey":
        try:
            given = {str(name): ArgumentKey.from_json(told) for name, told in value["arguments"].items()}
            return cls(CodeKey.from_json(value["code"]), given)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CacheError("the key of a call cannot be read") from None


def differences(before: CallKey, after: CallKey) -> list[str]:
    """What a call has that another one had not, a sentence each: `argument seed: 1 -> 2`."""
    told = changes(before.code, after.code) if before.code != after.code else []
    names = [*after.arguments, *(name for name in before.arguments if name not in after.arguments)]
    for name in names:
        was, now = before.arguments.get(name), after.arguments.get(name)
        if was is None or now is None:
            told.append(f"argument {name} is {'given now' if was is None else 'no longer given'}")
        else:
            told += [f"argument {name}: {change}" for change in _argument_changes(was, now)]
    return told


def nearest_differences(others: Iterable[CallKey], key: CallKey) -> list[str]:
    """The differences from the call that is most alike. Of two, from the one with the same arguments.

    Whoever has edited a function and runs all folds again is told so of each fold.
    """
    told = [differences(other, key) for other in others]
    return min(told, key=_distance, default=[])


def _distance(told: list[str]) -> tuple[int, int]:
    return len(told), sum(change.startswith("argument ") for change in told)


def _argument_changes(was: ArgumentKey, now: ArgumentKey) -> list[str]:
    if was.parts.keys() != now.parts.keys():
        return [f"{was.what} -> {now.what}"]
    differing = [name for name in now.parts if was.parts[name] != now.parts[name]]
    # Another file has another content, another version other samples: that goes without saying.
    leading = [name for name in differing if name not in _FOLLOWS] or differing
    told = [_TOLD[name].format(what=now.what) for name in leading if name in _TOLD]
    told = [_text_change(name, was, now) for name in leading if name not in _TOLD] + told
    if was.code is not None and now.code is not None and was.code.digest != now.code.digest:
        told += changes(was.code, now.code)
    return told


def _text_change(name: str, was: ArgumentKey, now: ArgumentKey) -> str:
    change = f"{was.parts[name]} -> {now.parts[name]}"
    return change if name == "value" else f"{name} {change}"
