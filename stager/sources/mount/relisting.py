"""A few folders of a directory are listed anew: what they have now, and which known ones are gone."""

# Paths are bytes here, as in directory.py.

import os
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from stager.interfaces import Scanning
from stager.reader.values import ObjectInfo, decode_key, encode_key
from stager.sources.mount.asked import Asked
from stager.sources.mount.directory import Walk


@dataclass(frozen=True, slots=True)
class Relisted:
    """What was found. Folders are named by their paths; "" is the root."""

    objects: list[ObjectInfo]  # in key order
    folders: frozenset[str]  # of which all files are among these
    trees: frozenset[str]  # of which all that is below is among these

    def has(self, folder: str) -> bool:
        """Whether a folder was listed anew: what was known of it counts no more."""
        return folder in self.folders or _is_in_one_of(folder, self.trees)


def relist(
    root: Path,
    folders: Collection[str],
    trees: Collection[str],
    known: Iterable[str],
    scanning: Scanning,
    asked: Asked,
) -> Relisted | None:
    """List the files right in these folders, all below these trees, and all below folders that are not known.

    None: a link is among them. Then an object may be under several keys, and only a whole scan tells.
    """
    walk = _Relisting(os.path.realpath(root), str(root), scanning, asked)
    try:
        return walk.relisted(folders, trees, set(known))
    except _Linked:
        return None


class _Linked(Exception):
    """A link was met."""


class _Relisting(Walk):
    def __init__(self, root: str, name: str, scanning: Scanning, asked: Asked) -> None:
        super().__init__(os.fsencode(root), name, scanning, asked)

    def relisted(self, folders: Collection[str], trees: Collection[str], known: set[str]) -> Relisted:
        self._identity = self._root_identity()
        below: dict[str, set[str]] = defaultdict(set)
        for folder in known - {""}:
            below[_above(folder)].add(folder)
        asked = {folder for folder in folders if not _is_hidden(folder)}
        deep = {folder for folder in trees if not _is_hidden(folder)}
        flat: set[str] = set()
        keys: list[bytes] = []
        for folder in sorted(asked, key=encode_key):  # what is above comes first
            if _is_in_one_of(folder, deep):
                continue
            self._check(folder)
            listed = self._keys_in(_prefix(folder))
            there = {decode_key(key[:-1]) for key in listed if key.endswith(b"/")}
            keys += [key for key in listed if not key.endswith(b"/")]
            deep |= (there - known - asked) | (below[folder] - there)
            flat.add(folder)
        objects = [info for key in keys if (info := self._info(key))]
        deep = {folder for folder in deep if not _is_in_one_of(_above(folder), deep)}
        for folder in deep:
            self._check(folder)
            objects += self._below(_prefix(folder))
        objects.sort(key=lambda info: encode_key(info.key))
        return Relisted(objects, frozenset(flat), frozenset(deep))

    def _check(self, folder: str) -> None:
        """A folder may have become a link, and so may what is above it."""
        path = os.path.join(self.root, encode_key(folder)).rstrip(b"/")  # noqa: PTH118
        if os.path.realpath(path) != path:
            raise _Linked

    def _key(self, folder: bytes, entry: "os.DirEntry[bytes]") -> bytes | None:
        if entry.is_symlink() and not entry.name.startswith(b"."):
            raise _Linked
        return super()._key(folder, entry)


def _prefix(folder: str) -> bytes:
    """How the keys of a folder's objects begin."""
    return encode_key(folder) + b"/" if folder else b""


def _above(folder: str) -> str:
    return folder.rpartition("/")[0]


def _with_above(folder: str) -> list[str]:
    """A folder, and all that it is in but for the root."""
    names = folder.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _is_in_one_of(folder: str, trees: Collection[str]) -> bool:
    return any(above in trees for above in _with_above(folder))


def _is_hidden(folder: str) -> bool:
    return any(name.startswith(".") for name in folder.split("/"))
