"""What the arguments of a call are known by: values by value, files by content, data sets by version."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from stager.errors import UsageError
from stager.reader.code.key import key_of
from stager.reader.code.values import plain, tensor_of
from stager.reader.memo.key import ArgumentKey, CallKey
from stager.reader.memo.store import checksum_of_file
from stager.reader.values import canonical_json, digest_of
from stager_client.samples import StagedSamples

SHOWN_CHARS: Final = 60  # a longer value is told by its type
DEPTH_MAX: Final = 50
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)


def call_key(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallKey:
    """The key of a call. Raise UsageError if a part of it cannot be known again."""
    try:
        given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError) as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise UsageError(f"{name} cannot be called like this: {error}") from None
    return CallKey(key_of(function), {name: _argument(name, value) for name, value in given.items()})


def _argument(name: str, value: Any) -> ArgumentKey:
    try:
        return argument_key(value)
    except UsageError as error:
        raise UsageError(f"argument {name}: {error.message}", error.hint) from None


def argument_key(value: Any, depth: int = 0) -> ArgumentKey:
    """What one value is known by."""
    if depth > DEPTH_MAX:
        raise UsageError(f"it is deeper than {DEPTH_MAX} values in one another")
    if (text := plain(value)) is not None:
        shown = repr(value)
        shown = shown if len(shown) <= SHOWN_CHARS else _hashed(text)
        key = ArgumentKey(type(value).__name__, {"value": shown})
    elif isinstance(value, Path):
        key = _file(value)
    elif (samples := _samples_of(value)) is not None:
        key = _dataset(value, samples)
    elif (array := _array_of(value)) is not None:
        key = _array(value, *array)
    elif isinstance(value, pa.Table | pa.RecordBatch):
        key = _table(value)
    elif type(value) in _CONTAINERS:
        key = _container(value, depth)
    else:
        code = key_of(value)
        key = ArgumentKey(code.name, {}, code)
    return key


def _container(value: Any, depth: int) -> ArgumentKey:
    """A container that can be read at a glance is told as it is."""
    kind = type(value).__name__
    told = [_told(each, depth) for each in _items(value)]
    text = canonical_json([kind, sorted(told) if isinstance(value, set | frozenset) else told])
    shown = repr(value)
    is_short = len(shown) <= SHOWN_CHARS and all(plain(each) is not None for each in _items(value))
    if is_short and not isinstance(value, set | frozenset):
        return ArgumentKey(kind, {"value": shown})
    what = f"{kind} of {len(value)}"
    return ArgumentKey(f"the {what}", {"value": what, "content": digest_of(text.encode())})


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, content in value.items():
            yield key
            yield content
    else:
        yield from value


def _told(value: Any, depth: int) -> str:
    text = plain(value)
    return text if text is not None else canonical_json(argument_key(value, depth + 1).told())


def _hashed(text: str) -> str:
    return f"{text.partition(' ')[0]} {digest_of(text.encode('utf-8', 'surrogatepass'))}"


def _array_of(value: Any) -> tuple[str, tuple[int, ...], npt.NDArray[np.uint8]] | None:
    """Dtype, shape and bytes of an array, a number of NumPy's or a tensor; None for all else."""
    if type(value) not in (np.ndarray, np.memmap) and not isinstance(value, np.generic):
        return tensor_of(value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    return str(array.dtype), array.shape, flat.view(np.uint8) if array.nbytes else np.zeros(0, np.uint8)


def _array(value: Any, dtype: str, shape: tuple[int, ...], raw: npt.NDArray[np.uint8]) -> ArgumentKey:
    kind = type(value).__name__
    about = {"dtype": dtype, "shape": "x".join(map(str, shape)) or "one number"}
    if isinstance(value, np.generic) and len(repr(value)) <= SHOWN_CHARS:
        return ArgumentKey(f"the {kind}", {**about, "value": repr(value)})
    return ArgumentKey(f"the {kind}", {**about, "content": xxhash.xxh3_128_hexdigest(raw.data)})


def _table(table: "pa.Table | pa.RecordBatch") -> ArgumentKey:
    """By its columns and values, however it is chunked."""
    table = pa.table(table).combine_chunks()
    state = xxhash.xxh3_128()
    with pa.ipc.new_stream(pa.PythonFile(_Hashing(state), mode="w"), table.schema) as stream:
        stream.write_table(table)
    return ArgumentKey("the table", {"rows": str(table.num_rows), "content": state.hexdigest()})


class _Hashing:
    """A file that is only hashed."""

    closed = False

    def __init__(self, state: xxhash.xxh3_128) -> None:
        self._state, self._written = state, 0

    def write(self, data: bytes) -> int:
        self._state.update(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _file(path: Path) -> ArgumentKey:
    """A file by its content; a folder by names, sizes and times of its files."""
    try:
        if path.is_dir():
            files = sorted(each for each in path.rglob("*") if each.is_file())
            stats = [(str(each.relative_to(path)), each.stat()) for each in files]
            told = [(name, about.st_size, about.st_mtime_ns) for name, about in stats]
            content = digest_of(canonical_json(told).encode("utf-8", "surrogatepass"))
            return ArgumentKey(f"the folder {path}", {"path": str(path), "content": content})
        content = checksum_of_file(path) if path.exists() else "there is none"
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    return ArgumentKey(f"the file {path}", {"path": str(path), "content": content})


def _samples_of(value: Any) -> StagedSamples | None:
    """The samples of a staged data set, of any framework."""
    if isinstance(value, StagedSamples):
        return value
    samples = getattr(value, "samples", None)
    is_ours = type(value).__module__.startswith("stager_client.")
    return samples if is_ours and isinstance(samples, StagedSamples) else None


def _dataset(value: Any, samples: StagedSamples) -> ArgumentKey:
    """By what is read of which version, and by what is made of each sample."""
    subset = samples.subset.to_json()
    parts = {
        "name": samples.name,
        "subset": ", ".join(f"{name} {drawn}" for name, drawn in subset.items() if drawn) or "all",
        "version": samples.manifest_digest,
        "recipe": samples.version["recipe"],
        "samples": samples.digest,
    }
    made: Any = [getattr(value, name, None) for name in ("transform", "target_transform", "columns")]
    code = None if made == [None, None, None] else key_of(made)
    return ArgumentKey(f"the data set {samples.name}", parts, code)
