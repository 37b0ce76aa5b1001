"""Reads staged samples: index word, shard, row. A hit calls nobody."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.errors import CacheError, SampleError, ShardCorrupt, ShardError, UsageError
from stager.reader.encodings import decode
from stager.reader.index import (
    FORMAT_NAMES,
    IndexReader,
    Words,
    format_of,
    is_damaged,
    is_failed,
    is_resident,
    row_of,
    shard_of,
)
from stager.reader.record import DatasetRecord, index_path, shard_path
from stager.reader.samples.sample_list import SampleList
from stager.reader.shards import open_shard
from stager.reader.shards.file import open_files
from stager.reader.values import (
    Arrays,
    Numbers,
    Shapes,
    ShardReader,
    Starts,
    Windows,
    checksum_of,
    zeros_by_number,
)
from stager_client.memory import memory_bytes
from stager_client.rows import Mapping, ReadableShard, ReadableShards

Missing = list[int]  # places of samples that are not (or no longer) resident
Corrupt = list[int]  # places of samples whose bytes are not what was staged

NOT_READ = (ShardError, OSError, LookupError)  # whatever it is: `visit` looks again, and tells
NONE: Numbers = np.zeros(0, dtype=np.int64)
KEPT_PART = 0.5  # of memory that is free or can be freed: a data set so large stays in it
FRESH_ROWS = 8  # are read together and then checked, while they are in the CPU's cache

Batches = dict[str, npt.NDArray[Any]]  # of each field, a row for each sample
WindowsOf = Callable[[int, Shapes], Windows]  # of the sample at a place: which part of its fields is wanted
Choose = Callable[[Shapes], Windows]  # the same of one sample


class Reader:
    """A data set's files: the list of its samples, and the index. It knows samples by their numbers.

    It needs no manifest: whatever is scanned meanwhile, it goes on. Shards open at first touch, in the
    process that touches them. Any number of threads may use one.
    """

    def __init__(self, directory: Path, record: DatasetRecord, check_always: bool = False) -> None:
        self.directory, self.record = directory, record
        self._checks_always = check_always
        self.records = SampleList.open(directory, record.lineage, record.segments)
        path = index_path(directory, record.recipe, record.lineage)
        self.index = IndexReader(path, record.lineage, record.recipe)
        count = len(self.records)
        if len(self.index.words) < count:
            raise CacheError(
                f"{path}: it has {len(self.index.words)} samples, not {count}",
                hint="restart the service: it mends its indexes",
            )
        self._shards: dict[int, ShardReader] = {}
        # Of these, those with fields whose rows are all of one size, and where such a field's rows begin.
        self._fixed: dict[int, tuple[ShardReader, dict[str, Starts], Mapping | None]] = {}
        self._openings = 1  # counted after the fact: a table of an older count may lack what was opened
        self._evictions = self.index.evictions
        # The word under which a sample was last found right: one that is staged anew is checked anew.
        self._checked: npt.NDArray[np.uint64] = zeros_by_number(len(self.index.words), np.uint64)
        self._is_raw = all(field.encoding == "raw" for field in record.fields)
        self._fields = {field.name: field for field in record.fields}
        sizes = {name: field.row_bytes for name, field in self._fields.items()}
        self._row_bytes = {name: row_bytes for name, row_bytes in sizes.items() if row_bytes is not None}
        is_fixed, size_bytes = len(self._row_bytes) == len(sizes), count * sum(self._row_bytes.values())
        self._fits_memory = is_fixed and size_bytes < memory_bytes() * KEPT_PART
        # By the fields that are read: the shards that were open, and the state that this was of.
        self._opened: dict[tuple[str, ...], tuple[ReadableShards, tuple[int, int]]] = {}

    def visit(
        self,
        numbers: Sequence[int],
        take: Callable[[int, Arrays], None],
        names: Collection[str] | None = None,
        part: WindowsOf | None = None,
    ) -> tuple[Missing, Corrupt]:
        """Give each resident sample to `take`, with its place in `numbers`; return the others' places.

        The arrays are `take`'s own. Rows may be evicted under us: what was is among the missing, whatever
        `take` got. `names`: of the fields that are wanted; None: all. `part`: and which part of them.
        """
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        missing: Missing = []
        corrupt: Corrupt = []
        samples = np.asarray(numbers, dtype=np.int64)
        words = self.index.words[samples]  # a copy: they change under us
        resident, failed, damaged = is_resident(words).tolist(), is_failed(words), is_damaged(words)
        if failed.any():
            key = self.records.key(numbers[int(np.argmax(failed))])
            told = f"{key} could not be staged (stager ls --failed {self.record.spec.name} says why)"
            raise SampleError("unreadable", told)
        shards, rows, formats = shard_of(words).tolist(), row_of(words).tolist(), format_of(words).tolist()
        for at, number in enumerate(numbers):
            if not resident[at]:
                (corrupt if damaged[at] else missing).append(at)
                continue
            try:
                shard = self._shard(shards[at], formats[at])
                choose = None if part is None else partial(part, at)
                take(at, self._sample(number, shard, rows[at], words[at], names, choose))
            except ShardError:
                corrupt.append(at)
            except UsageError:  # there is no such part of it
                if self.index.words[number] == words[at]:
                    raise
        moved = np.flatnonzero(
            self.index.words[samples] != words
        ).tolist()  # after the copies: see shards/holes
        if moved:
            missing = sorted({*missing, *moved})
            corrupt = [at for at in corrupt if at not in moved]
        return missing, corrupt

    def fill(self, numbers: Numbers, out: Batches, rows: Numbers | None = None) -> tuple[Missing, Corrupt]:
        """Read each resident sample into a row of the arrays; return the others' places in `numbers`.

        `rows`: which row is whose; None: they are in order. Where rows are of one size they are read to where
        they belong; the rest goes by `visit`. Fields that `out` does not have are not read.
        """
        is_fixed = self._row_bytes.keys() >= out.keys()
        rest = self._fill_fixed(numbers, out, rows) if is_fixed else np.arange(len(numbers))
        if not len(rest):
            return [], []
        to = rest if rows is None else rows[rest]

        def take(at: int, arrays: Arrays) -> None:
            for name, array in arrays.items():
                out[name][to[at]] = array

        missing, corrupt = self.visit(numbers[rest].tolist(), take, out)
        return rest[missing].tolist(), rest[corrupt].tolist()

    def _fill_fixed(self, numbers: Numbers, out: Batches, rows: Numbers | None) -> Numbers:
        """Read rows that are all of one size; return the places of those that `visit` must look at."""
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        names, columns = tuple(out), list(out.values())
        words, left = self._open_shards(names).read(numbers, rows, columns, only_checked=True)
        if not left:
            return NONE
        rest, to = np.flatnonzero(words == 0), np.arange(len(numbers)) if rows is None else rows
        self._open(self.index.words[numbers[rest]])
        words, _ = self._open_shards(names).read(numbers[rest], to[rest], columns, only_checked=True)
        rest = rest[words == 0]
        if len(names) < len(self._fields):
            return np.asarray(rest)  # a checksum is of all fields: `visit` reads them all, for once
        parts = [rest[at : at + FRESH_ROWS] for at in range(0, len(rest), FRESH_ROWS)]
        return np.concatenate([NONE, *(self._fill_fresh(part, numbers, out, to) for part in parts)])

    def _fill_fresh(self, places: Numbers, numbers: Numbers, out: Batches, to: Numbers) -> Numbers:
        """Read rows for the first time, and check them; return the places of what is not right."""
        fresh, rows = numbers[places], to[places]
        words, _ = self._open_shards(tuple(out)).read(fresh, rows, list(out.values()), only_checked=False)
        wrong = words == 0
        for at in np.flatnonzero(~wrong).tolist():
            arrays: Arrays = {name: column[rows[at], ...] for name, column in out.items()}
            try:
                shard, row = self._shards[int(shard_of(words[at]))], int(row_of(words[at]))
                self._check(int(fresh[at]), shard, row, words[at], arrays)
            except NOT_READ:
                wrong[at] = True
        return np.asarray(places[wrong])

    def _open(self, words: Words) -> None:
        """Open the shards that these point to, as far as they can be."""
        words = words[is_resident(words)]
        shards, formats = shard_of(words).tolist(), format_of(words).tolist()
        for number, shard_format in set(zip(shards, formats, strict=True)):
            with suppress(*NOT_READ):
                shard = self._shard(number, shard_format)
                if shard.held() is None:
                    shard.descriptor()
                    self._openings += 1

    def _open_shards(self, names: tuple[str, ...]) -> ReadableShards:
        """The shards that are open now and have rows of one size of these fields."""
        now = self._openings, open_files.closings
        opened = self._opened.get(names)
        if opened is None or opened[1] != now:
            found = {}
            for number, (shard, starts, mapping) in list(self._fixed.items()):
                if (descriptor := shard.held()) is not None and starts.keys() >= set(names):
                    found[number] = ReadableShard(descriptor, [starts[name] for name in names], mapping)
            sizes = [self._row_bytes[name] for name in names]
            opened = ReadableShards(self.index.words, self._checked, sizes, found), now
            self._opened[names] = opened
        return opened[0]

    def _sample(
        self,
        number: int,
        shard: ShardReader,
        row: int,
        word: np.uint64,
        names: Collection[str] | None = None,
        choose: Choose | None = None,
    ) -> Arrays:
        """What is wanted of a sample; whatever that is, the first time all of it is read and checked."""
        if row >= len(shard):
            raise ShardCorrupt(f"a shard of {self.record.spec.name} has no row {row}")
        wanted = self._fields if names is None else names
        is_checked = self._checked[number] == word  # looked up once: other threads check, too
        if choose and is_checked and self._is_raw:
            return shard.row(row, lambda shapes: choose({name: shapes[name] for name in wanted}))
        is_all = len(wanted) == len(self._fields) or not is_checked
        arrays = shard.row(row, None if is_all else lambda shapes: dict.fromkeys(wanted, ()))
        if not is_checked:
            self._check(number, shard, row, word, arrays)
        found = arrays
        if not self._is_raw or len(arrays) > len(wanted):
            found = {name: decode(self._fields[name], arrays[name]) for name in wanted}
        if choose is None:
            return found
        windows = choose({name: array.shape for name, array in found.items()})
        return {name: found[name][window] if window else found[name] for name, window in windows.items()}

    def _check(self, number: int, shard: ShardReader, row: int, word: np.uint64, arrays: Arrays) -> None:
        """Compare a sample with its checksum, and note that it was found right under this word."""
        tag = self.records.tag(number)
        if checksum_of(tag, self.record.recipe, self.record.fields, arrays) != int(shard.checksums[row]):
            raise ShardCorrupt(f"{self.records.key(number)} does not match its checksum")
        if not self._checks_always:  # what is never noted as checked is checked at each read
            self._checked[number] = word

    def _shard(self, number: int, shard_format: int) -> ShardReader:
        shard = self._shards.get(number)
        if shard is None:
            shard = open_shard(shard_path(self.directory, number, FORMAT_NAMES[shard_format]))
            self._shards[number] = shard
            columns = {name: at for name in self._row_bytes if (at := shard.starts(name)) is not None}
            if columns:
                mapping = Mapping(shard.descriptor()) if self._fits_memory else None
                self._fixed[number] = shard, columns, mapping
            self._openings += 1
        return shard

    def _drop_evicted(self) -> None:
        """Let go of shards that were evicted, so that their space comes back."""
        self._evictions = self.index.evictions
        for number, shard in list(self._shards.items()):
            if shard.is_gone():
                self._shards.pop(number, None)  # another thread may be here, too
                self._fixed.pop(number, None)
        self._openings += 1
        self._opened = {}  # it holds files, and nobody may ask for it for long
