"""Reads staged samples: index word, mapped shard, row. A hit calls nobody."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stager.dataset import DatasetRecord, index_path, manifest_path, shard_path
from stager.errors import SampleError, ShardCorrupt, ShardError, StagerError
from stager.index import FORMAT_NAMES, IndexReader, format_of, is_failed, is_resident, row_of, shard_of
from stager.manifest import Manifest
from stager.model import Arrays, Field, Numbers, ShardReader, checksum_of
from stager.shards import FORMATS, open_shard

Missing = list[int]  # places of samples that are not (or no longer) resident
Corrupt = list[int]  # places of samples whose bytes are not what was staged


class Reader:
    """A data set's files, mapped. Shards open at first touch, in the process that touches them."""

    def __init__(self, directory: Path, record: DatasetRecord) -> None:
        self.directory, self.record = directory, record
        self.manifest = Manifest.open(manifest_path(directory, record.manifest))
        path = index_path(directory, record.recipe, record.manifest)
        self.index = IndexReader(path, len(self.manifest), record.manifest, record.recipe)
        self._shards: dict[int, ShardReader] = {}
        self._blocks: dict[int, list[tuple[str, npt.NDArray[Any]]]] = {}  # rows side by side
        self._evictions = self.index.evictions
        # The word under which a sample was last found right: one that is staged anew is checked anew.
        self._checked: npt.NDArray[np.uint64] = np.zeros(len(self.manifest), dtype=np.uint64)
        self._is_raw = all(field.encoding == "raw" for field in record.fields)
        self._suffixes = [FORMATS[name].suffix for name in FORMAT_NAMES]

    def visit(self, numbers: Sequence[int], take: Callable[[int, Arrays], None]) -> tuple[Missing, Corrupt]:
        """Give each resident sample to `take`, with its place in `numbers`; return the others' places.

        `take` copies: rows may be evicted under us. What was is among the missing, whatever `take` got.
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

    def fill(self, numbers: Numbers, out: Arrays) -> tuple[Missing, Corrupt]:
        """Copy each resident sample into its row of the arrays; return the others' places.

        What was found right before, in a block, costs little more than the copy; the rest goes by `visit`.
        """
        if self.index.evictions != self._evictions:
            self._drop_evicted()
        words = self.index.words[numbers]  # a copy: they change under us
        known = (words == self._checked[numbers]) & is_resident(words)
        rest: list[int] = []
        rows = zip(known.tolist(), shard_of(words).tolist(), row_of(words).tolist(), strict=True)
        for at, (is_known, shard, row) in enumerate(rows):
            blocks = self._blocks.get(shard) if is_known else None
            if blocks is None:
                rest.append(at)
                continue
            for name, block in blocks:
                out[name][at] = block[row]
        moved = np.flatnonzero(
            self.index.words[numbers] != words
        ).tolist()  # after the copies: see shards/holes
        if moved:
            rest = sorted({*rest, *moved})
        if not rest:
            return [], []

        def take(at: int, arrays: Arrays) -> None:
            for name, array in arrays.items():
                out[name][rest[at]] = array

        missing, corrupt = self.visit(numbers[rest].tolist(), take)
        return [rest[at] for at in missing], [rest[at] for at in corrupt]

    def _sample(self, number: int, shard: ShardReader, row: int, word: np.uint64) -> Arrays:
        if row >= len(shard):
            raise ShardCorrupt(f"a shard of {self.record.spec.name} has no row {row}")
        arrays = shard.row(row)
        fields = self.record.fields
        if self._checked[number] != word:
            checksum = checksum_of(int(self.manifest.tags[number]), self.record.recipe, fields, arrays)
            if checksum != int(shard.checksums[row]):
                raise ShardCorrupt(f"{self.manifest.key(number)} does not match its checksum")
            self._checked[number] = word
        if self._is_raw:
            return arrays
        return {field.name: _decode(field, arrays[field.name]) for field in fields}

    def _shard(self, number: int, shard_format: int) -> ShardReader:
        shard = self._shards.get(number)
        if shard is None:
            shard = open_shard(shard_path(self.directory, number, self._suffixes[shard_format]))
            self._shards[number] = shard
            blocks = [(field.name, shard.block(field.name)) for field in self.record.fields]
            if self._is_raw and all(block is not None for _, block in blocks):
                self._blocks[number] = [(name, block) for name, block in blocks if block is not None]
        return shard

    def _drop_evicted(self) -> None:
        """Let go of shards that were evicted, so that their space comes back."""
        self._evictions = self.index.evictions
        words = self.index.words
        here = set(np.unique(shard_of(words[is_resident(words)])).tolist())
        for number in [number for number in self._shards if number not in here]:
            del self._shards[number]
            self._blocks.pop(number, None)


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
