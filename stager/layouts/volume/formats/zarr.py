"""Zarr arrays, version 2 and 3: what their metadata say, and their chunks as arrays. zarr decodes them."""

import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.errors import NotReady, StagerError, UsageError
from stager.layouts.volume.formats.array import Array, check_dtype
from stager.layouts.volume.formats.levels import choose_level, told_levels
from stager.reader.samples.computed.chunked import Objects
from stager.reader.samples.computed.grid import Sides
from stager.reader.values import canonical_json, digest_of

METADATA: Final = {3: "zarr.json", 2: ".zarray"}
SLOTS: Final = 1024  # chunks that are decoded at once get places of their own
Read = Callable[[str], memoryview | None]  # the bytes of an object; None: there is none


def find_zarr(read: Read, path: str, level: int | str) -> Array | None:
    """The array at a path, or that level of the multiscales there; None: there is none. Raise UsageError."""
    found = _metadata_at(read, path)
    if found is None and (inside := _level_of(read, path, level)) is not None:
        path = _joined(path, inside)
        found = _metadata_at(read, path)
    if found is None:
        return None
    name, told, document = found
    try:
        return _array(path, name, told, document)
    except StagerError:
        raise
    except Exception as error:  # whatever zarr makes of strange metadata
        raise UsageError(f"{_joined(path, name)} is no Zarr array that zarr can open: {error}") from None


def _metadata_at(read: Read, path: str) -> tuple[str, bytes, dict[str, Any]] | None:
    """The metadata of the array at a path: their name, their bytes, and what they say."""
    for name in METADATA.values():
        data = read(_joined(path, name))
        document = _parsed(data, _joined(path, name))
        if data is not None and document.get("node_type", "array") == "array":
            return name, bytes(data), document
    return None


def _level_of(read: Read, path: str, level: int | str) -> str | None:
    """Where a level of an OME-NGFF image is, below it."""
    found = _multiscale(read, path)
    return choose_level(path, *found, level) if found else None


def levels_of(read: Read, path: str) -> list[str]:
    """What a person is told of the levels of an OME-NGFF image; nothing, if there is none."""
    found = _multiscale(read, path)
    return told_levels(found[1]) if found else []


def _multiscale(read: Read, path: str) -> tuple[str, Mapping[str, Any]] | None:
    """Where an OME-NGFF image says its levels, and what it says."""
    for name in ("zarr.json", ".zattrs"):
        document = _parsed(read(_joined(path, name)), _joined(path, name))
        about = document.get("attributes", document)
        about = about.get("ome", about) if isinstance(about, Mapping) else {}
        if not isinstance(about, Mapping) or "multiscales" not in about:
            continue
        several = about["multiscales"]
        if not isinstance(several, list) or not several or not isinstance(several[0], Mapping):
            raise UsageError(f"the multiscales of {_joined(path, name)} name no levels")
        return _joined(path, name), several[0]
    return None


def _array(path: str, name: str, told: bytes, document: dict[str, Any]) -> Array:
    zarr_format = 3 if name == METADATA[3] else 2
    array = _open(name, document)
    dtype = check_dtype(_joined(path, name), array.dtype)
    separator, prefix = ".", ""
    if zarr_format == 3:
        encoding = document["chunk_key_encoding"]
        is_default = encoding["name"] == "default"
        separator = encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
        prefix = f"c{separator}" if is_default else ""
    else:
        separator = document.get("dimension_separator", ".")
    chunk = tuple(int(side) for side in array.chunks)
    inner = _inner_codecs(document) if zarr_format == 3 else None
    shard: Sides = ()
    if inner is not None:
        shard = tuple(int(s) // c for s, c in zip(array.shards, chunk, strict=True))
    elif array.shards is not None:  # with codecs around it: only as a whole can it be read
        chunk = tuple(int(side) for side in array.shards)
    lies = Objects(
        _joined(path, name),
        digest_of(told),
        _joined(path, prefix),
        separator,
        shard,
        inner is None or inner["index_location"] == "end",
        inner is not None and len(inner["index_codecs"]) > 1,
    )
    opens = canonical_json({"name": name, "document": _of_chunks(document, chunk, inner)})
    return Array(tuple(int(side) for side in array.shape), dtype, chunk, lies, opens)


def _inner_codecs(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a shard says of its chunks, if each can be read by itself."""
    codecs = document["codecs"]
    if len(codecs) != 1 or codecs[0]["name"] != "sharding_indexed":
        return None
    about = {"index_location": "end", **codecs[0]["configuration"]}
    index = [(codec["name"], codec.get("configuration", {}).get("endian")) for codec in about["index_codecs"]]
    return about if index in ([("bytes", "little")], [("bytes", "little"), ("crc32c", None)]) else None


def _of_chunks(document: Mapping[str, Any], chunk: Sides, inner: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata of an array that is a row of such chunks: enough to decode one."""
    row = {**document, "shape": [chunk[0] * SLOTS, *chunk[1:]]}
    row.pop("attributes", None)
    row.pop("dimension_names", None)
    if "zarr_format" in row and row["zarr_format"] == 2:
        return row
    grid = {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}
    keys = {"name": "default", "configuration": {"separator": "/"}}
    codecs = inner["codecs"] if inner else document["codecs"]
    return {**row, "chunk_grid": grid, "chunk_key_encoding": keys, "codecs": codecs}


class ZarrDecoder:
    """An array of zarr's in memory: a chunk is put there, and read as any array is."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._store: dict[str, Any] = {}
        self._array = _open(told["name"], told["document"], self._store)
        shards = getattr(self._array, "shards", None)
        self.chunk: Sides = tuple(shards or self._array.chunks)
        self.dtype = self._array.dtype.newbyteorder("<")
        self.fill = self._array.fill_value if self._array.fill_value is not None else 0
        self._numbers = count()
        separator = told["document"].get("dimension_separator", ".")
        self._key = separator.join if told["name"] == METADATA[2] else lambda names: "c/" + "/".join(names)

    def decode(self, at: Sides, data: memoryview) -> npt.NDArray[Any]:
        if not len(data):
            return np.full(self.chunk, self.fill, self.dtype)
        from zarr.core.buffer.cpu import Buffer

        slot = next(self._numbers) % SLOTS  # any thread may: each gets another one
        key = self._key([str(slot), *["0"] * (len(self.chunk) - 1)])
        self._store[key] = Buffer.from_bytes(bytes(data))
        try:
            decoded = self._array[slot * self.chunk[0] : (slot + 1) * self.chunk[0]]
        finally:
            del self._store[key]
        return np.asarray(decoded).astype(self.dtype, copy=False)


def _open(name: str, document: Mapping[str, Any], store: dict[str, Any] | None = None) -> Any:
    """zarr's array of these metadata. What the store gets later, it has."""
    try:
        import zarr
        from zarr.core.buffer.cpu import Buffer
    except ImportError as error:
        raise NotReady(
            f"the layout volume needs {error.name}: not installed", hint="pip install 'stager[volume]'"
        ) from None
    store = {} if store is None else store
    store[name] = Buffer.from_bytes(json.dumps(document).encode())
    return zarr.open_array(
        zarr.storage.MemoryStore(store), mode="r", zarr_format=3 if name == METADATA[3] else 2
    )


def _parsed(data: memoryview | None, key: str) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{key} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{key} has no metadata of Zarr")
    return document


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
