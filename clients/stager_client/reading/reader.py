"""Reads staged samples: index word, shard, row. A hit calls nobody."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stager.errors import CacheError, SampleError, ShardCorrupt, ShardError, UsageError
from stager.reader.cuts.cut import Cut, Draws, NoSuchPart, Rows, Sides
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
from stager.reader.samples.by_number import zeros_by_number
from stager.reader.samples.sample_list import SampleList
from stager.reader.shards import open_shard
from stager.reader.shards.file import open_files
from stager.reader.values import Arrays, Numbers, ShardReader, Starts, StoredArray, checksum_of
from stager_client.reading.disk import ReadAhead
from stager_client.reading.memory import memory_bytes
from stager_client.reading.rows import FoundRows, Mapping, ReadableShard, ReadableShards

Missing = list[int]  # places of samples that are not (or no longer) resident
Corrupt = list[int]  # places of samples whose bytes are not what was staged

NOT_READ = (ShardError, OSError, LookupError)  # whatever it is: `visit` looks again, and tells
NONE: Numbers = np.zeros(0, dtype=np.int64)
KEPT_PART = 0.5  # of memory that is free or can be freed: a data set so large stays in it
PARTS_SHOWN = 4  # of a sample that cannot be had
FRESH_ROWS = 8  # are read together and then checked, while they are in the CPU's cache

Batches = dict[str, npt.NDArray[Any]]  # of each field, a row for each sample


class _Opened(NamedTuple):
    """A shard, and of its fields: where rows begin, and their sides, if they are not all of one size."""

    shard: ShardReader
    starts: dict[str, Starts]
    sides: dict[str, Sides | None]
    mapping: Mapping | None
    noted: list[str]  # of these, the shard does not say where all rows are: 0, until a row is found right

    def note(self, row: int, stored: dict[str, StoredArray]) -> None:
        """Where a row lies that was found right."""
        for name in self.noted:
            if (sides := self.sides[name]) is not None:
                sides[row] = stored[name].shape
            self.starts[name][row] = stored[name].offset


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
        self._shards: dict[int, _Opened] = {}
        self._openings = 1  # counted after the fact: a table of an older count may lack what was opened
        self._evictions = self.index.evictions
        # The word under which a sample was last found right: one that is staged anew is checked anew.
        self._checked: npt.NDArray[np.uint64] = zeros_by_number(len(self.index.words), np.uint64)
        self._is_raw = all(field.encoding == "raw" for field in record.fields)
        self._fields = {field.name: field for field in record.fields}
        sizes = {name: field.row_bytes for name, field in self._fields.items()}
        self._row_bytes = {name: row_bytes for name, row_bytes in sizes.items() if row_bytes is not None}
        is_fixed, size_bytes = len(self._row_bytes) == len(sizes), count * sum(self._row_bytes.values())
        self._ahead = ReadAhead()
        self._fits_memory = is_fixed and size_bytes < memory_bytes() * KEPT_PART
        # By the fields that are read: the shards that were open, and the state that this was of.
        self._opened: dict[tuple[str, ...], tuple[ReadableShards, tuple[int, int]]] = {}

    def count_resident(self, numbers: Numbers) -> int:
        """How many of these samples are resident now."""
        return int(np.count_nonzero(is_resident(self.index.words[numbers])))

    def what(self, number: int) -> str:
        """A sample as an error names it: with what it is made of, if that is not one object of that key."""
        key = self.records.key(number)
        if self.records.is_plain:
            return key
        parts = list(dict.fromkeys(part.info.key for part in self.records.infos([number])[0].parts))
        more = f" and {len(parts) - PARTS_SHOWN:,} more" if len(parts) > PARTS_SHOWN else ""
        return f"{key} (of {', '.join(parts[:PARTS_SHOWN])}{more})" if parts not in ([], [key]) else key

    def visit(
        self,
        numbers: Sequence[int],
        take: Callable[[int, Arrays], None],
        names: Collection[str] | None = None,
    ) -> tuple[Missing, Corrupt]:
        """Give each resident sample to `take`, with its place in `numbers`; return the others' places.

        The arrays are `take`'s own. Rows may be evicted under us: what was is among the missing, whatever
        `take` got. `names`: of the fields that are wanted; None: all.
        """
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        missing: Missing = []
        corrupt: Corrupt = []
        samples = np.asarray(numbers, dtype=np.int64)
        words = self.index.words[samples]  # a copy: they change under us
        self._read_ahead(samples, words, names)
        resident, failed, damaged = is_resident(words).tolist(), is_failed(words), is_damaged(words)
        if failed.any():
            what = self.what(numbers[int(np.argmax(failed))])
            told = f"{what} could not be staged (stager ls --failed {self.record.spec.name} says why)"
            raise SampleError("unreadable", told, hint="skip_failed=True leaves such samples out")
        shards, rows, formats = shard_of(words).tolist(), row_of(words).tolist(), format_of(words).tolist()
        fresh = np.flatnonzero(is_resident(words) & (self._checked[samples] != words))
        tags = dict(zip(fresh.tolist(), self.records.tags(samples[fresh]), strict=True))
        for at, number in enumerate(numbers):
            if not resident[at]:
                (corrupt if damaged[at] else missing).append(at)
                continue
            try:
                shard = self._shard(shards[at], formats[at])
                take(at, self._sample(number, shard, rows[at], words[at], names, tags.get(at)))
            except ShardError:
                corrupt.append(at)
        moved = np.flatnonzero(
            self.index.words[samples] != words
        ).tolist()  # after the copies: see shards/holes
        if moved:
            missing = sorted({*missing, *moved})
            corrupt = [at for at in corrupt if at not in moved]
        self._ahead.look()
        return missing, corrupt

    def fill(self, numbers: Numbers, out: Batches, rows: Numbers | None = None) -> tuple[Missing, Corrupt]:
        """Read each resident sample into a row of the arrays; return the others' places in `numbers`.

        `rows`: which row is whose; None: they are in order. Where rows are of one size they are read to where
        they belong; the rest goes by `visit`. Fields that `out` does not have are not read.
        """
        is_fixed = self._row_bytes.keys() >= out.keys()
        rest = self._fill_fixed(numbers, out, rows) if is_fixed else np.arange(len(numbers))
        self._ahead.look()
        if not len(rest):
            return [], []
        to = rest if rows is None else rows[rest]

        def take(at: int, arrays: Arrays) -> None:
            for name, array in arrays.items():
                out[name][to[at]] = array

        missing, corrupt = self.visit(numbers[rest].tolist(), take, out)
        return rest[missing].tolist(), rest[corrupt].tolist()

    def cut(
        self, numbers: Numbers, cut: Cut, draws: Draws, rows: Rows, out: Batches
    ) -> tuple[Missing, Corrupt]:
        """Copy what a cut takes of these rows to the arrays, which have a row for each draw.

        Return the places of rows that are not to be had: of their draws, nothing is to be used. What is
        encoded, or compared with its checksum at each read, is read whole; of the rest, only those bytes.
        """
        if self._checks_always or any(self._fields[name].encoding != "raw" for name in out):
            return self._cut_whole(numbers, cut, draws, rows, out)
        found, corrupt = self._find(numbers, tuple(out))
        draw_of = rows.draw_of()
        while len(whole := _others(len(draws), draw_of[found.words == 0])):
            places, some = rows.some(whole)
            of = found.some(places)
            try:
                pieces = cut.pieces(draws.some(whole), some, dict(zip(out, of.sides, strict=True)))
            except NoSuchPart as error:
                row = places[error.row]
                if self.index.words[numbers[row]] == found.words[row]:
                    raise self._no_such_part(int(numbers[row]), error) from None
                found.words[row] = 0  # it has gone: what is there now has other sides
                continue
            tables, columns = [pieces[name] for name in out], list(out.values())
            if self._ahead.is_on:
                self._ahead.hint(*found.held.spans(of, tables, columns))
            found.words[places] = found.held.copy(of, tables, columns)
            break
        self._ahead.look()
        lost = np.flatnonzero(found.words == 0)
        return (np.setdiff1d(lost, corrupt) if corrupt else lost).tolist(), corrupt

    def _find(self, numbers: Numbers, names: tuple[str, ...]) -> tuple[FoundRows, Corrupt]:
        """Where rows lie of which only pieces are read: each was checked before, as a whole."""
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        found = self._open_shards(names).find(numbers)
        rest = np.flatnonzero(found.words == 0)
        if not len(rest):
            return found, []
        self._open(self.index.words[numbers[rest]])
        _, corrupt = self.visit(numbers[rest].tolist(), lambda at, arrays: None, ())
        return self._open_shards(names).find(numbers), rest[corrupt].tolist()

    def _cut_whole(
        self, numbers: Numbers, cut: Cut, draws: Draws, rows: Rows, out: Batches
    ) -> tuple[Missing, Corrupt]:
        """The same of rows that are read whole, one draw after the other."""
        missing: Missing = []
        corrupt: Corrupt = []
        for draw in range(len(draws)):
            places, some = rows.some(np.array([draw]))
            arrays: list[Arrays] = [{}] * len(places)
            found = self.visit(numbers[places].tolist(), arrays.__setitem__, out)
            missing += places[found[0]].tolist()
            corrupt += places[found[1]].tolist()
            if any(found):
                continue
            sides = {name: np.array([of[name].shape for of in arrays], np.int64) for name in out}
            try:
                pieces = cut.pieces(draws.some(np.array([draw])), some, sides)
            except NoSuchPart as error:
                raise self._no_such_part(int(numbers[places[error.row]]), error) from None
            for name, items in out.items():
                pieces[name].check(np.prod(sides[name], axis=1), items.size)
                pieces[name].copy(items, partial(_items_of, [of[name] for of in arrays]))
        return missing, corrupt

    def _no_such_part(self, number: int, error: NoSuchPart) -> UsageError:
        return UsageError(
            f"{self.records.key(number)} of {self.record.spec.name}: {error.message}", error.hint
        )

    def _fill_fixed(self, numbers: Numbers, out: Batches, rows: Numbers | None) -> Numbers:
        """Read rows that are all of one size; return the places of those that `visit` must look at."""
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        names, columns = tuple(out), list(out.values())
        if not self._fits_memory:  # else whole pieces of the file come, in pages that are read faster
            self._read_ahead(numbers, self.index.words[numbers], names)
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
        wrong, tags = words == 0, self.records.tags(fresh)
        for at in np.flatnonzero(~wrong).tolist():
            arrays: Arrays = {name: column[rows[at], ...] for name, column in out.items()}
            try:
                opened, row = self._shards[int(shard_of(words[at]))], int(row_of(words[at]))
                self._check(int(fresh[at]), tags[at], opened, row, words[at], arrays, {})
            except NOT_READ:
                wrong[at] = True
        return np.asarray(places[wrong])

    def _read_ahead(self, numbers: Numbers, words: Words, names: Collection[str] | None) -> None:
        """Have the kernel fetch what will be read of these samples, if what is read comes from the disk."""
        if not self._ahead.is_on:
            return
        self._open(words)
        shards = {number: opened.shard for number, opened in list(self._shards.items())}
        self._ahead.rows(words, self._checked[numbers] == words, names, shards)

    def _open(self, words: Words) -> None:
        """Open the shards that these point to, as far as they can be."""
        words = words[is_resident(words)]
        shards, formats = shard_of(words).tolist(), format_of(words).tolist()
        for number, shard_format in set(zip(shards, formats, strict=True)):
            with suppress(*NOT_READ):
                shard = self._shard(number, shard_format).shard
                if shard.held() is None:
                    shard.descriptor()
                    self._openings += 1

    def _open_shards(self, names: tuple[str, ...]) -> ReadableShards:
        """The shards that are open now, and where the rows of these fields lie in them."""
        now = self._openings, open_files.closings
        opened = self._opened.get(names)
        if opened is None or opened[1] != now:
            found = {}
            for number, (shard, starts, sides, mapping, _) in list(self._shards.items()):
                if (descriptor := shard.held()) is not None and starts.keys() >= set(names):
                    lie = [starts[name] for name in names], mapping, [sides[name] for name in names]
                    found[number] = ReadableShard(descriptor, *lie)
            sizes = [self._row_bytes.get(name, 0) for name in names]
            shapes = [self._fields[name].shape for name in names]
            opened = ReadableShards(self.index.words, self._checked, sizes, found, shapes), now
            self._opened[names] = opened
        return opened[0]

    def _sample(
        self,
        number: int,
        opened: _Opened,
        row: int,
        word: np.uint64,
        names: Collection[str] | None,
        tag: int | None,
    ) -> Arrays:
        """What is wanted of a sample; whatever that is, the first time all of it is read and checked.

        `tag`: its own, if it has to be checked.
        """
        shard = opened.shard
        if row >= len(shard):
            raise ShardCorrupt(f"a shard of {self.record.spec.name} has no row {row}")
        wanted = self._fields if names is None else names
        is_checked = self._checked[number] == word  # looked up once: other threads check, too
        stored = shard.stored(row) if wanted or not is_checked else {}
        arrays = {name: shard.read(stored[name]) for name in (wanted if is_checked else self._fields)}
        if not is_checked:
            tag = self.records.tag(number) if tag is None else tag  # it was checked when we looked
            self._check(number, tag, opened, row, word, arrays, stored)
        if self._is_raw and len(arrays) == len(wanted):
            return arrays
        return {name: decode(self._fields[name], arrays[name]) for name in wanted}

    def _check(
        self,
        number: int,
        tag: int,
        opened: _Opened,
        row: int,
        word: np.uint64,
        arrays: Arrays,
        stored: dict[str, StoredArray],
    ) -> None:
        """Compare a sample with its checksum, and note that it was found right under this word."""
        checksum = int(opened.shard.checksums[row])
        if checksum_of(tag, self.record.recipe, self.record.fields, arrays) != checksum:
            raise ShardCorrupt(f"{self.records.key(number)} does not match its checksum")
        if not self._checks_always:  # what is never noted as checked is checked at each read
            opened.note(row, stored)
            self._checked[number] = word  # the last: others go by it

    def _shard(self, number: int, shard_format: int) -> _Opened:
        opened = self._shards.get(number)
        if opened is None:
            shard = open_shard(shard_path(self.directory, number, FORMAT_NAMES[shard_format]))
            raw = {name: field for name, field in self._fields.items() if field.encoding == "raw"}
            known = {name: shard.starts(name) for name in raw}
            starts = {
                name: np.zeros(len(shard), np.int64) if of is None else of for name, of in known.items()
            }
            sides = {
                name: None if field.is_fixed else np.zeros((len(shard), len(field.shape)), np.int64)
                for name, field in raw.items()
            }
            mapping = Mapping(shard.descriptor()) if self._fits_memory else None
            noted = [name for name, of in known.items() if of is None]
            # Another thread may have opened it meanwhile: what is noted of rows is noted in one place.
            opened = self._shards.setdefault(number, _Opened(shard, starts, sides, mapping, noted))
            self._openings += 1
        return opened

    def _drop_evicted(self) -> None:
        """Let go of shards that were evicted, so that their space comes back."""
        self._evictions = self.index.evictions
        for number, opened in list(self._shards.items()):
            if opened.shard.is_gone():
                self._shards.pop(number, None)  # another thread may be here, too
        self._openings += 1
        self._opened = {}  # it holds files, and nobody may ask for it for long


def _others(count: int, but: Numbers) -> Numbers:
    """All numbers below a count, but for these."""
    is_one = np.ones(count, np.bool_)
    is_one[but] = False
    return np.flatnonzero(is_one)


def _items_of(arrays: Sequence[npt.NDArray[Any]], row: int, start: int, count: int) -> npt.NDArray[Any]:
    return arrays[row].reshape(-1)[start : start + count]
