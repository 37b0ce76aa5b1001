"""`record.json`: what a kept result is of, which files it has, and why it was computed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from stager.errors import CacheError
from stager.reader.memo.key import CallKey
from stager.reader.values import digest_of

RECORD: Final = "record.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class MemoRecord:
    """One result of one function.

    `tree`: what it is made of, in its own module's words. `files`: by path in its folder, bytes and checksum.
    """

    name: str
    key: CallKey
    tree: Any
    files: Mapping[str, tuple[int, str]]
    made_at: float
    took_s: float  # to compute it
    why: tuple[str, ...]  # it was computed, and not loaded
    gone_at: float = 0.0
    gone_why: str = ""

    @property
    def digest(self) -> str:
        return self.key.digest

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def departed(self, at: float, why: str) -> "MemoRecord":
        """The same, of a result that is gone: when and why."""
        return replace(self, gone_at=at, gone_why=why)

    def to_text(self) -> str:
        value = {
            "format": FORMAT,
            "name": self.name,
            "key": self.key.to_json(),
            "tree": self.tree,
            "files": {name: list(about) for name, about in self.files.items()},
            "made_at": self.made_at,
            "took_s": self.took_s,
            "why": list(self.why),
            "gone_at": self.gone_at,
            "gone_why": self.gone_why,
        }
        return json.dumps({**value, "sum": _sum(value)})

    @classmethod
    def read(cls, path: Path) -> "MemoRecord | None":
        """The record in a file; None if there is no file. Raise CacheError if it cannot be read."""
        try:
            value = json.loads(path.read_bytes())
            if value["format"] != FORMAT:
                raise ValueError(f"it has format {value['format']}, this stager reads {FORMAT}")
            if value.pop("sum") != _sum(value):
                raise ValueError("its sum is another one")
            files = {name: (int(size), str(checksum)) for name, (size, checksum) in value["files"].items()}
            return cls(
                *(value["name"], CallKey.from_json(value["key"]), value["tree"], files),
                *(value["made_at"], value["took_s"], tuple(value["why"])),
                *(value["gone_at"], value["gone_why"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CacheError(f"{path} cannot be read: {error}", hint="it is computed anew") from None


def _sum(value: Mapping[str, Any]) -> str:
    """Not sorted: a dict of the result keeps its order."""
    return digest_of(json.dumps(value).encode())
