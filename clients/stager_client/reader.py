"""Reads staged samples: index word, shard, row. A hit calls nobody."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager import native
from stager.dataset import DatasetRecord, index_path, manifest_path, shard_path
from stager.errors import SampleError, ShardCorrupt, ShardError, StagerError
from stager.index import (
    FORMAT_NAMES,
    IndexReader,
    Words,
    format_of,
    is_failed,
    is_resident,
    row_of,
    shard_of,
)
from stager.manifest import Manifest
from stager.model import Arrays, Field, Numbers, ShardReader, checksum_of
from stager.shards import FORMATS, open_shard

Missing = list[int]  # places of samples that are not (or no longer) resident
Corrupt = list[int]  # places of samples whose bytes are not what was staged

NOT_READ = (ShardError, OSError, LookupError)  # whatever it is: `visit` looks again, and tells
FRESH_ROWS = 8  # are read together and then checked, while they are in the CPU's cache

Batches = Mapping[str, npt.NDArray[Any]]  # of each field, a row for each sample


class Reader:
    """A data set's files. Shards open at first touch, in the process that touches them.

    Any number of threads may use one.
    """

    def __init__(self, directory: Path, record: DatasetRecord) -> None:
        self.directory, self.record = directory, record
        self.manifest = Manifest.open(manifest_path(directory, record.manifest))
        path = index_path(directory, record.recipe, record.manifest)
        self.index = IndexReader(path, len(self.manifest), record.manifest, record.recipe)
        self._shards: dict[int, ShardReader] = {}
        # Shards whose rows are all of one size: how to get the descriptor, and where a field's rows begin.
        self._opened: dict[int, tuple[Callable[[], int], list[Sequence[int]]]] = {}
        self._evictions = self.index.evictions
        # The word under which a sample was last found right: one that is staged anew is checked anew.
        self._checked: npt.NDArray[np.uint64] = np.zeros(len(self.manifest), dtype=np.uint64)
        self._is_raw = all(field.encoding == "raw" for field in record.fields)
        sizes = [(field.name, field.row_bytes) for field in record.fields]
        fixed = [(name, row_bytes) for name, row_bytes in sizes if row_bytes is not None]
        self._columns = fixed if len(fixed) == len(sizes) else []
        self._suffixes = [FORMATS[name].suffix for name in FORMAT_NAMES]

    def visit(self, numbers: Sequence[int], take: Callable[[int, Arrays], None]) -> tuple[Missing, Corrupt]:
        """Give each resident sample to `take`, with its place in `numbers`; return the others' places.

        The arrays are `take`'s own. Rows may be evicted under us: what was is among the missing, whatever
        `take` got.
        """
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        missing: Missing = []
        corrupt: Corrupt = []
        wanted = np.asarray(numbers, dtype=np.int64)
        words = self.index.words[wanted]  # a copy: they change under us
        resident, failed = is_resident(words).tolist(), is_failed(words)
        if failed.any():
            key = self.manifest.key(numbers[int(np.argmax(failed))])
            told = f"{key} could not be staged (stager ls --failed {self.record.spec.name} says why)"
            raise SampleError("unreadable", told)
        shards, rows, formats = shard_of(words).tolist(), row_of(words).tolist(), format_of(words).tolist()
        for at, number in enumerate(numbers):
            if not resident[at]:
                missing.append(at)
                continue
            try:
                shard = self._shard(shards[at], formats[at])
                take(at, self._sample(number, shard, rows[at], words[at]))
            except ShardError:
                corrupt.append(at)
        moved = np.flatnonzero(
            self.index.words[wanted] != words
        ).tolist()  # after the copies: see shards/holes
        if moved:
            missing = sorted({*missing, *moved})
            corrupt = [at for at in corrupt if at not in moved]
        return missing, corrupt

    def fill(self, numbers: Numbers, out: Batches, rows: Numbers | None = None) -> tuple[Missing, Corrupt]:
        """Read each resident sample into a row of the arrays; return the others' places in `numbers`.

        `rows`: which row is whose; None: they are in order. Where rows are of one size they are read to where
        they belong; the rest goes by `visit`.
        """
        rows = np.arange(len(numbers)) if rows is None else rows
        rest = self._fill_fixed(numbers, out, rows) if self._columns else list(range(len(numbers)))
        if not rest:
            return [], []

        def take(at: int, arrays: Arrays) -> None:
            for name, array in arrays.items():
                out[name][rows[rest[at]]] = array

        missing, corrupt = self.visit(numbers[rest].tolist(), take)
        return [rest[at] for at in missing], [rest[at] for at in corrupt]

    def _fill_fixed(self, numbers: Numbers, out: Batches, to: Numbers) -> list[int]:
        """Read rows that are all of one size; return the places of those that `visit` must look at."""
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        words = self.index.words[numbers]  # a copy: they change under us
        resident = is_resident(words)
        known = (words == self._checked[numbers]) & resident
        shards, rows = shard_of(words).tolist(), row_of(words).tolist()
        rest = set(np.flatnonzero(~resident).tolist())
        rest |= self._read(np.flatnonzero(known).tolist(), shards, rows, out, to)
        fresh = np.flatnonzero(resident & ~known).tolist()
        rest |= self._open(fresh, shards, format_of(words).tolist())
        fresh = [at for at in fresh if at not in rest]
        for part in (fresh[at : at + FRESH_ROWS] for at in range(0, len(fresh), FRESH_ROWS)):
            lost = self._read(part, shards, rows, out, to)
            came = [at for at in part if at not in lost]
            rest |= lost | self._wrong(came, numbers, words, shards, rows, out, to)
        rest.update(np.flatnonzero(self.index.words[numbers] != words).tolist())  # see shards/holes
        return sorted(rest)

    def _open(self, places: list[int], shards: list[int], formats: list[int]) -> set[int]:
        """Open the shards that these samples are in; return the places of those whose shard cannot be."""
        lost: set[int] = set()
        for at in places:
            try:
                self._shard(shards[at], formats[at])
            except NOT_READ:
                lost.add(at)
        return lost

    def _read(
        self, places: list[int], shards: list[int], rows: list[int], out: Batches, to: Numbers
    ) -> set[int]:
        """Read rows of open shards to where they belong; return the places of what cannot be read."""
        lost: set[int] = set()
        opened = self._opened
        for column, (name, _) in enumerate(self._columns):
            found, files, offsets = [], [], []
            for at in places:
                try:
                    descriptor, columns = opened[shards[at]]
                    offset, file = columns[column][rows[at]], descriptor()
                except NOT_READ:
                    lost.add(at)
                else:
                    found.append(at)
                    files.append(file)
                    offsets.append(offset)
            lost.update(found[at] for at in native.read_rows(files, offsets, to[found], out[name]))
        return lost

    def _wrong(
        self,
        places: list[int],
        numbers: Numbers,
        words: Words,
        shards: list[int],
        rows: list[int],
        out: Batches,
        to: Numbers,
    ) -> set[int]:
        """The places of samples that were read and do not match their checksum."""
        wrong: set[int] = set()
        for at in places:
            try:
                arrays = {name: out[name][to[at], ...] for name, _ in self._columns}
                self._check(int(numbers[at]), self._shards[shards[at]], rows[at], words[at], arrays)
            except NOT_READ:
                wrong.add(at)
        return wrong

    def _sample(self, number: int, shard: ShardReader, row: int, word: np.uint64) -> Arrays:
        if row >= len(shard):
            raise ShardCorrupt(f"a shard of {self.record.spec.name} has no row {row}")
        arrays = shard.row(row)
        if self._checked[number] != word:
            self._check(number, shard, row, word, arrays)
        if self._is_raw:
            return arrays
        return {field.name: _decode(field, arrays[field.name]) for field in self.record.fields}

    def _check(self, number: int, shard: ShardReader, row: int, word: np.uint64, arrays: Arrays) -> None:
        """Compare a sample with its checksum, and note that it was found right under this word."""
        tag = int(self.manifest.tags[number])
        if checksum_of(tag, self.record.recipe, self.record.fields, arrays) != int(shard.checksums[row]):
            raise ShardCorrupt(f"{self.manifest.key(number)} does not match its checksum")
        self._checked[number] = word

    def _shard(self, number: int, shard_format: int) -> ShardReader:
        shard = self._shards.get(number)
        if shard is None:
            shard = open_shard(shard_path(self.directory, number, self._suffixes[shard_format]))
            columns = [starts for name, _ in self._columns if (starts := shard.starts(name)) is not None]
            if self._columns and len(columns) == len(self._columns):
                self._opened[number] = (shard.descriptor, columns)
            self._shards[number] = shard
        return shard

    def _drop_evicted(self) -> None:
        """Let go of shards that were evicted, so that their space comes back."""
        self._evictions = self.index.evictions
        words = self.index.words
        here = set(np.unique(shard_of(words[is_resident(words)])).tolist())
        for number in [number for number in list(self._shards) if number not in here]:
            self._shards.pop(number, None)  # another thread may be here, too
            self._opened.pop(number, None)


def _decode(field: Field, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if field.encoding != "jpeg":
        return stored
    try:
        import simplejpeg
    except ModuleNotFoundError:
        raise StagerError(
            "this data set is staged as JPEG, and simplejpeg is not installed",
            hint='pip install simplejpeg, or encode = "raw" in the recipe',
        ) from None
    decoded: npt.NDArray[Any] = simplejpeg.decode_jpeg(stored.data, colorspace="RGB")
    return decoded
