"""A source's samples at one time, in order, with a digest: an Arrow file that readers map."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.atomic import fsync_path
from stager.errors import CacheError
from stager.model import (
    Entry,
    Layout,
    Numbers,
    ObjectInfo,
    canonical_json,
    decode_key,
    digest_of,
    encode_key,
    key_hash,
    sample_tag,
)

MANIFEST_FORMAT: Final = 1
CHUNK_ENTRIES: Final = 16_384  # entries held as Python values at once
PROGRESS_ENTRIES: Final = 10_000

# Further columns (boxes, times, more objects a sample) come after these; readers skip what they do not know.
SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_binary()),
        ("size", pa.int64()),
        ("version", pa.large_string()),
        ("label", pa.int32()),
        ("split", pa.int8()),
        ("key_hash", pa.uint64()),
        ("tag", pa.uint64()),
    ]
)


class Column:
    """A column that grows in place: Arrow's chunks would have to be held twice to become one."""

    def __init__(self, field: pa.Field) -> None:
        self._type = field.type
        self.data = bytearray()
        self.ends = bytearray(8) if field.type in (pa.large_binary(), pa.large_string()) else None

    def whole(self) -> pa.Array:
        """The column as Arrow has it, not copied. It grows no more."""
        width = 8 if self.ends is not None else self._type.byte_width
        count = (len(self.data) if self.ends is None else len(self.ends) - 8) // width
        buffers = [self.data] if self.ends is None else [self.ends, self.data]
        return pa.Array.from_buffers(self._type, count, [None, *map(pa.py_buffer, buffers)])


Columns = dict[str, Column]  # by name


class Manifest:
    """An open manifest. Sample numbers are positions in it."""

    def __init__(self, table: pa.Table) -> None:
        (self._batch,) = table.to_batches() or [_empty()]
        about = json.loads(table.schema.metadata[b"stager"])
        if about["format"] != MANIFEST_FORMAT:
            raise CacheError(
                f"the manifest has format {about['format']}, this stager reads {MANIFEST_FORMAT}",
                hint="use one version of stager for the service and the clients",
            )
        self.digest: str = about["digest"]
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.splits: tuple[str, ...] = tuple(about["splits"])
        self.labels: npt.NDArray[np.int32] = self._column("label")
        self.split_of: npt.NDArray[np.int8] = self._column("split")
        self.sizes: npt.NDArray[np.int64] = self._column("size")
        self.key_hashes: npt.NDArray[np.uint64] = self._column("key_hash")
        self.tags: npt.NDArray[np.uint64] = self._column("tag")

    @classmethod
    def open(cls, path: Path) -> "Manifest":
        try:
            return cls(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
        except (OSError, pa.ArrowInvalid, KeyError, ValueError) as error:
            raise CacheError(
                f"{path} cannot be read: {error}", hint="run: stager prefetch, to scan again"
            ) from None

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def key(self, number: int) -> str:
        return decode_key(self._batch.column(0)[number].as_py())

    def infos(self, numbers: Sequence[int]) -> list[ObjectInfo]:
        """The objects of these samples: all at once, for one by one costs ten times as much."""
        taken = self._batch.take(pa.array(numbers, pa.int64()))
        keys = map(decode_key, taken.column(0).to_pylist())
        columns = taken.column(SCHEMA.get_field_index("size")), taken.column(2)
        sizes, versions = (column.to_pylist() for column in columns)
        return list(map(ObjectInfo, keys, sizes, versions))

    def column(self, name: str) -> Any:
        """A column as Arrow has it, for predicates."""
        return self._batch.column(SCHEMA.get_field_index(name))

    def find(self, key: str) -> int | None:
        """The number of a key, or None."""
        for number in np.flatnonzero(self.key_hashes == np.uint64(key_hash(key))):
            if self.key(int(number)) == key:
                return int(number)
        return None

    def numbers_in(self, other: "Manifest", samples: Numbers | None = None) -> Numbers:
        """The numbers of these samples (None: of all) in `other`, if the same version is there; else -1."""
        if other is self:
            return np.arange(len(self)) if samples is None else samples
        return join(self.tags if samples is None else self.tags[samples], other.tags)

    def keys_in(self, other: "Manifest") -> Numbers:
        """For each sample of ours the number that its key has in `other`, whatever the version; else -1."""
        return join(self.key_hashes, other.key_hashes)

    def _column(self, name: str) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self.column(name).to_numpy(zero_copy_only=True)
        return values


def join(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> Numbers:
    """For each of ours, which are all different, its place among the others; -1: it is not there.

    Two scans of one source are mostly alike: what they begin and end with needs no search. For the rest,
    both are sorted: a million look-ups all over a sorted array take seconds, in rising order a moment.
    """
    shortest = min(len(ours), len(others))
    head = _alike(ours[:shortest], others[:shortest])
    tail = _alike(ours[len(ours) - shortest + head :][::-1], others[len(others) - shortest + head :][::-1])
    found = np.full(len(ours), -1, dtype=np.int64)
    found[:head] = np.arange(head)
    found[len(ours) - tail :] = np.arange(len(others) - tail, len(others))
    ours, others = ours[head : len(ours) - tail], others[head : len(others) - tail]
    if len(ours) and len(others):
        order, other_order = np.argsort(ours), np.argsort(others)
        ours, others = ours[order], others[other_order]
        places = np.searchsorted(others, ours).clip(max=len(others) - 1)
        found[head + order] = np.where(others[places] == ours, head + other_order[places], -1)
    return found


def _alike(ours: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> int:
    """How many of the first are the same in both, which are equally long."""
    differ = ours != others
    return int(np.argmax(differ)) if differ.any() else len(differ)


def write_manifest(
    path: Path,
    layout: Layout,
    objects: Iterable[ObjectInfo],
    progress: Callable[[int], None] = lambda scanned: None,
) -> str:
    """Write the manifest of these objects, which come in key order; return its digest."""
    paths: dict[tuple[str, ...], int] = {}
    columns = {field.name: Column(field) for field in SCHEMA}
    chunk: list[Entry] = []
    seen = 0
    for entry in layout.entries(objects):
        chunk.append(entry)
        seen += 1
        if seen % PROGRESS_ENTRIES == 0:
            progress(seen)
        if len(chunk) == CHUNK_ENTRIES:
            _append(columns, chunk, paths)
            chunk.clear()
    _append(columns, chunk, paths)
    chunk.clear()
    progress(seen)
    table, classes, splits = _labelled(columns, paths, layout)
    digest = digest_of(canonical_json([classes, splits]).encode(), *_content(table))
    about = {"format": MANIFEST_FORMAT, "digest": digest, "classes": classes, "splits": splits}
    table = table.replace_schema_metadata({"stager": canonical_json(about)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    fsync_path(path)  # here, in a worker: the loop that adopts it does so too, and finds nothing to write
    return digest


def _append(columns: Columns, chunk: list[Entry], paths: dict[tuple[str, ...], int]) -> None:
    """Add entries to the columns. Their `label` is, for now, a number for the entry's path."""
    infos = [entry.info for entry in chunk]
    values: dict[str, Sequence[Any]] = {
        "key": [encode_key(info.key) for info in infos],
        "size": [info.size for info in infos],
        "version": [info.version.encode() for info in infos],
        "label": [paths.setdefault(entry.path, len(paths)) for entry in chunk],
        "split": [0] * len(chunk),
        "key_hash": [key_hash(info.key) for info in infos],
        "tag": [sample_tag(info.key, info.version) for info in infos],
    }
    for name, column in columns.items():
        if column.ends is None:
            column.data += np.asarray(values[name], SCHEMA.field(name).type.to_pandas_dtype()).tobytes()
        else:
            ends = np.cumsum([len(value) for value in values[name]], dtype=np.int64) + len(column.data)
            column.ends += ends.tobytes()
            column.data += b"".join(values[name])


def _labelled(
    columns: Columns, paths: dict[tuple[str, ...], int], layout: Layout
) -> tuple[pa.Table, list[str], list[str]]:
    """Turn path numbers into labels and splits, and sort by split, class and key (which ImageFolder does)."""
    said = layout.label(paths)
    classes = sorted({name for _, name in said.values()})
    splits = sorted({split for split, _ in said.values()})
    class_of = {name: number for number, name in enumerate(classes)}
    split_of = {name: number for number, name in enumerate(splits)}
    numbers = [
        (class_of[said[path][1]], split_of[said[path][0]]) if path in said else (-1, -1) for path in paths
    ]
    label_of_path = np.asarray([label for label, _ in numbers], dtype=np.int32)
    split_of_path = np.asarray([split for _, split in numbers], dtype=np.int8)
    at = columns["label"].whole().to_numpy()
    labels, split = label_of_path[at], split_of_path[at]
    order = np.lexsort((labels, split))  # stable, and the objects came in key order
    order = order[int((labels < 0).sum()) :]  # those of a path that the layout does not name come first
    is_sorted = len(order) == len(at) and not np.any(np.diff(order) < 0)  # one folder a class: by key, too
    whole = []
    for name in SCHEMA.names:  # one by one: a million samples are not held twice
        column = columns.pop(name).whole()
        column = pa.array({"label": labels, "split": split}[name]) if name in ("label", "split") else column
        whole.append(column if is_sorted else column.take(pa.array(order)))
    return pa.table(whole, schema=SCHEMA), classes, splits


def _content(table: pa.Table) -> Iterator[memoryview]:
    """The bytes that the digest covers: keys, sizes, versions, labels and splits; not Arrow's padding."""
    for name in ("key", "size", "version", "label", "split"):
        for chunk in table[name].chunks:
            if name in ("key", "version"):
                offsets = np.frombuffer(chunk.buffers()[1], dtype="<i8")[: len(chunk) + 1]
                yield offsets.data.cast("B")
                yield memoryview(chunk.buffers()[2] or b"")[: int(offsets[-1])]
            else:
                yield chunk.to_numpy().data.cast("B")


def _empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
