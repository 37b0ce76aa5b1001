"""A scan that looks at a few folders, and has the rest of the last version: the same digest, much sooner.

Only of directories whose folders label, and after a scan that left out no sample (`Manifest.is_whole`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.interfaces import Asked, FoldersLayout, Looked, Recalled
from stager.reader.samples.manifest import ListedManifest
from stager.reader.values import Numbers, ObjectInfo, Part, decode_key
from stager.scan.found import SCHEMA, Columns, FoundSamples, name_paths

_RECORDED: Final = ("key", "size", "version")  # columns of SCHEMA as records have them


class Relisted(Protocol):
    """Folders that were listed anew."""

    @property
    def objects(self) -> list[ObjectInfo]: ...

    def has(self, folder: str) -> bool:
        """Whether what was known of a folder counts no more."""


Passed = Callable[[Iterable[ObjectInfo], Callable[[str], ObjectInfo | None]], Iterator[ObjectInfo]]


def find_again(
    layout: FoldersLayout,
    newest: ListedManifest,
    relist: Callable[[set[str]], Relisted | None],
    passed: Passed,
    progress: Callable[[int], None],
) -> FoundSamples | None:
    """The samples of the newest version, but for folders that are listed anew. None: scan everything.

    `relist` is given all folders that have samples, and those above. `passed` is given the objects that were
    found, and tells of what is known under a key; it yields those that count.
    """
    known = _Known(newest)
    relisted = relist(known.with_above())
    if relisted is None:
        return None
    is_kept = ~np.asarray([relisted.has(folder) for folder in known.folders], dtype=np.bool_)[known.folder_of]
    before = known.infos(np.flatnonzero(~is_kept))
    fresh = Columns(layout)
    fresh.take(layout.entries(_Few(passed(relisted.objects, before.get))), progress)
    added = fresh.whole()
    kept = np.flatnonzero(is_kept)
    path_of = known.paths_of(kept, layout, fresh)
    classes, splits, (label_of, split_of) = name_paths(layout, fresh.paths)
    at = np.concatenate([path_of[known.folder_of[kept]], added["label"].to_numpy().astype(np.int64)])
    rows = _Rows(label_of[at], split_of[at], known.keys[kept].tolist() + added["key"].to_pylist())
    order = rows.order(len(kept), rows.is_torn(newest, kept, classes, splits))
    columns = {name: pa.concat_arrays([newest.column(name).take(pa.array(kept)), *added[name].chunks])
               for name in _RECORDED}  # fmt: skip
    for name, of_kept in (("key_hash", newest.key_hashes[kept]), ("tag", newest.tags[kept])):
        columns[name] = pa.array(np.concatenate([of_kept, added[name].to_numpy()]))
    columns |= {"label": pa.array(rows.labels), "split": pa.array(rows.splits)}
    table = pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    if len(order) != len(at) or np.any(np.diff(order) != 1):
        table = table.take(pa.array(order))
    progress(len(order))
    return FoundSamples(table.combine_chunks(), classes, splits, is_whole=len(order) == len(at))


class _Known:
    """The samples of a version by their folders."""

    def __init__(self, newest: ListedManifest) -> None:
        self._newest = newest
        keys = newest.column("key").to_pylist()
        self.keys: npt.NDArray[np.object_] = np.empty(len(keys), dtype=object)
        self.keys[:] = keys
        number_of: dict[bytes, int] = {}
        self.folder_of = np.fromiter(
            (number_of.setdefault(key.rpartition(b"/")[0], len(number_of)) for key in keys),
            dtype=np.int64,
            count=len(keys),
        )
        self.folders = [decode_key(folder) for folder in number_of]

    def with_above(self) -> set[str]:
        """All folders that have samples, and those above."""
        found = set(self.folders)
        for folder in self.folders:
            while (folder := folder.rpartition("/")[0]) and folder not in found:
                found.add(folder)
        return found

    def infos(self, places: Numbers) -> dict[str, ObjectInfo]:
        """The objects that some samples are, by their keys."""
        infos = self._newest.records.infos(self._newest.numbers[places])
        return {info.key: info.parts[0].info for info in infos}

    def paths_of(self, kept: Numbers, layout: FoldersLayout, fresh: Columns) -> Numbers:
        """For each folder with samples that are kept, the number of its path."""
        samples = np.bincount(self.folder_of[kept], minlength=len(self.folders))
        path_of = np.zeros(len(self.folders), dtype=np.int64)
        for number in np.flatnonzero(samples).tolist():
            path = layout.again(self.folders[number], int(samples[number]))
            path_of[number] = fresh.paths.setdefault(path, len(fresh.paths))
        return path_of


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples that are kept, in the order of their version, and behind them those that were found now."""

    labels: npt.NDArray[np.int32]
    splits: npt.NDArray[np.int8]
    keys: list[bytes]

    def is_torn(self, newest: ListedManifest, kept: Numbers, classes: list[str], splits: list[str]) -> bool:
        """Whether samples that are kept are of other classes or splits now: their order tells nothing."""
        of_class = np.asarray([*map(_numbering(classes), newest.classes), -1])
        of_split = np.asarray([*map(_numbering(splits), newest.splits), -1])
        is_same = of_class[newest.labels[kept]] == self.labels[: len(kept)]
        is_same &= of_split[newest.split_of[kept]] == self.splits[: len(kept)]
        return not is_same.all()

    def order(self, kept: int, is_torn: bool) -> Numbers:
        """By split, class and key. Where nothing came, the order of the version is that of the keys."""
        is_touched = np.full(len(self.keys), is_torn)
        if not is_torn and kept < len(self.keys):
            groups = self.splits.astype(np.int64) << 32 | self.labels
            is_touched = np.isin(groups, groups[kept:])
        touched = np.flatnonzero(is_touched)
        ranks = np.arange(len(self.keys))
        ranks[sorted(touched.tolist(), key=self.keys.__getitem__)] = np.arange(len(touched))
        order = np.lexsort((ranks, self.labels, self.splits))
        return order[int((self.labels < 0).sum()) :]  # what the layout does not name comes first


class _Few:
    """Some objects, as a plain layout asks for them."""

    def __init__(self, objects: Iterator[ObjectInfo]) -> None:
        self._objects = objects

    def objects(self, under: str = "") -> Iterator[ObjectInfo]:
        assert not under, "a plain layout takes all objects"
        return self._objects

    def read(self, part: Part) -> memoryview:
        raise AssertionError("a plain layout reads no object")

    def side_by_side(self, objects: Iterable[Asked], look: Callable[[Asked], Looked]) -> Iterator[Looked]:
        raise AssertionError("a plain layout looks into no object")

    def known(self, info: ObjectInfo) -> Recalled | None:
        return None


def _numbering(names: list[str]) -> Callable[[str], int]:
    """What tells the number of a name; -1: there is no such name."""
    number_of = {name: number for number, name in enumerate(names)}
    return lambda name: number_of.get(name, -1)
