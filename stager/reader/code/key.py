"""The key of a person's function: whether its code, or anything that it reaches, is as it was."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stager.errors import CacheError, UsageError
from stager.reader.code.parts import say_part
from stager.reader.code.walk import Walk
from stager.reader.values import canonical_json, digest_of


@dataclass(frozen=True, slots=True)
class CodeKey:
    """`parts`: what each function, constant or package that it reaches is known by.

    A part is "code DIGEST", "constant DIGEST", "default DIGEST", "closure DIGEST", "bound DIGEST" or
    "version 2.1". Lines are for people: a function that only moved has the same digest.
    """

    name: str  # of the function
    parts: Mapping[str, str]
    lines: Mapping[str, int]  # where functions begin

    @property
    def digest(self) -> str:
        return digest_of(canonical_json([self.name, dict(self.parts)]).encode())

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "parts": dict(self.parts), "lines": dict(self.lines)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CodeKey":
        try:
            return cls(str(value["name"]), dict(value["parts"]), dict(value["lines"]))
        except (KeyError, TypeError, ValueError):
            raise CacheError("the key of a function cannot be read") from None


def key_of(function: Callable[..., Any]) -> CodeKey:
    """The key of a function, or of anything that can be called. Raise UsageError if it has none.

    A person's own code is keyed by what it does, all other packages by their versions. Own is what is not
    installed, or was installed from a directory or a repository. What a function reads from files, and
    modules that it imports by a name it makes up, are not seen.
    """
    walk = Walk()
    try:
        text = walk.value(function)
    except RecursionError:
        raise UsageError("the function reaches values that hold one another too deep") from None
    inner = getattr(function, "func", getattr(function, "__func__", function))
    if text not in walk.parts:  # it is a method, a partial, an object
        name = getattr(inner, "__qualname__", type(inner).__qualname__)
        walk.parts[name] = f"bound {digest_of(text.encode('utf-8', 'surrogatepass'))}"
        text = name
    return CodeKey(text, walk.parts, walk.lines)


def changes(before: CodeKey, after: CodeKey) -> list[str]:
    """What is no longer as it was, a sentence each: `preprocess.norm changed (line 14)`."""
    parts = {**before.parts, **after.parts}
    names = [*after.parts, *(name for name in before.parts if name not in after.parts)]
    if before.parts["Python"] != after.parts["Python"]:  # it makes other bytecode of the same text
        names = [name for name in names if not parts[name].startswith("code ")]
    told = [_change(name, before, after) for name in names if before.parts.get(name) != after.parts.get(name)]
    return told if before.name == after.name else [f"{after.name} in place of {before.name}", *told]


def _change(name: str, before: CodeKey, after: CodeKey) -> str:
    was, now = before.parts.get(name, ""), after.parts.get(name, "")
    kind, _, value = (now or was).partition(" ")
    what = f"{name} {value}" if kind == "version" else say_part(name, kind)
    line = f" (line {after.lines[name]})" if name in after.lines else ""
    if not was:
        return f"{what} is used now{line}"
    if not now:
        return f"{what} is no longer used"
    return f"{name} {was.partition(' ')[2]} -> {value}" if kind == "version" else f"{what} changed{line}"
