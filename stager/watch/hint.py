"""Where a source may have changed. A hint is never the truth: whoever gets one looks at the source."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

FOLDERS_MOST: Final = 10_000  # more of them are everything


@dataclass(frozen=True, slots=True)
class Hint:
    """Folders, by their path below the source; "" is its root."""

    folders: frozenset[str] = frozenset()  # what lies right in these
    trees: frozenset[str] = frozenset()  # all that lies below these
    is_everything: bool = False  # nobody knows where

    @classmethod
    def of(cls, folders: Iterable[str] = (), trees: Iterable[str] = ()) -> "Hint":
        found = cls(frozenset(folders), frozenset(trees))
        return EVERYTHING if len(found.folders) + len(found.trees) > FOLDERS_MOST else found

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> "Hint":
        """Objects of these keys came, changed or went."""
        return cls.of(key.rpartition("/")[0] for key in keys)

    def __bool__(self) -> bool:
        return bool(self.folders or self.trees or self.is_everything)

    def __or__(self, other: "Hint") -> "Hint":
        if self.is_everything or other.is_everything:
            return EVERYTHING
        return Hint.of(self.folders | other.folders, self.trees | other.trees)

    def to_json(self) -> dict[str, Any]:
        folders, trees = sorted(self.folders), sorted(self.trees)
        return {"folders": folders, "trees": trees, "is_everything": self.is_everything}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Hint":
        return EVERYTHING if value["is_everything"] else cls.of(value["folders"], value["trees"])


NOTHING: Final = Hint()
EVERYTHING: Final = Hint(is_everything=True)
