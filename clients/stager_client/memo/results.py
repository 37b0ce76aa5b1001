"""Results as files and back: arrays, bytes, texts, JSON values, tables, and containers of these."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from stager.errors import CacheError, UsageError
from stager_client.memo.pickled import check_own, pickled, unpickled

Save = Callable[[Any, Path], Any]
Load = Callable[[Path], Any]
Write = Callable[[Path], object]

TEXT_CHARS: Final = 4096  # a longer text is a file
OVERHEAD_BYTES: Final = 1024  # of a file beside what it holds
_KEPT: Final = (
    "arrays, bytes, texts, JSON values, Arrow tables, and dicts, lists and tuples of these are kept"
)


@dataclass(frozen=True, slots=True)
class How:
    """What the caller allows and brings beside what is kept anyway."""

    pickle: bool = False
    save_file: Save | None = None
    load_file: Load | None = None


@dataclass(slots=True)
class ResultFiles:
    """A result, ready to be written: what it is made of, and its files with their writers."""

    tree: Any = None
    files: dict[str, Write] = field(default_factory=dict)
    size_bytes: int = 0

    def add(self, suffix: str, size_bytes: int, write: Write) -> str:
        name = f"{len(self.files)}{suffix}"
        self.files[name] = write
        self.size_bytes += size_bytes + OVERHEAD_BYTES
        return name

    def write(self, folder: Path) -> None:
        for name, write in self.files.items():
            write(folder / name)
            if not (folder / name).exists():
                raise UsageError("save_file has written nothing", hint="it must write to the path it gets")


def lay_out(value: Any, how: How) -> ResultFiles:
    """Raise UsageError if the value cannot be kept."""
    layout = ResultFiles()
    if (save := how.save_file) is not None:
        layout.tree = {"saved": layout.add("", 0, lambda path: save(value, path))}
    else:
        layout.tree = _node(value, layout, how.pickle, "the result")
    return layout


def _node(value: Any, layout: ResultFiles, may_pickle: bool, where: str) -> Any:
    kind = type(value)
    if _is_json(value):
        return {"json": value}
    if kind is dict:
        if not all(type(key) in (str, int, float, bool, type(None)) for key in value):
            raise UsageError(f"{where} has keys that are no texts or numbers", hint=_KEPT)
        node = [[key, _node(value[key], layout, may_pickle, f"{where}[{key!r}]")] for key in value]
        return {"dict": node}
    if kind in (list, tuple):
        within = [_node(each, layout, may_pickle, f"{where}[{at}]") for at, each in enumerate(value)]
        return {kind.__name__: within}
    return _leaf(value, layout, may_pickle, where)


def _leaf(value: Any, layout: ResultFiles, may_pickle: bool, where: str) -> Any:
    kind = type(value)
    if (kind is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
        name = layout.add(".npy", value.nbytes, lambda path: np.save(path, value, allow_pickle=False))
        return {"npy" if kind is np.ndarray else "scalar": name}
    if kind in (bytes, bytearray):
        return {kind.__name__: layout.add(".bin", len(value), lambda path: path.write_bytes(value))}
    if kind is str:
        raw = value.encode("utf-8", "surrogatepass")
        return {"text": layout.add(".txt", len(raw), lambda path: path.write_bytes(raw))}
    if kind is pa.Table:
        return {"arrow": layout.add(".arrow", value.nbytes, lambda path: _write_table(value, path))}
    if not may_pickle:
        hint = f"{_KEPT}; say pickle=True for all else, or give save_file= and load_file="
        raise UsageError(f"{where} is a {kind.__module__}.{kind.__qualname__}", hint=hint)
    raw = pickled(value)
    return {"pickle": layout.add(".pickle", len(raw), lambda path: path.write_bytes(raw))}


def _is_json(value: Any) -> bool:
    """Whether JSON gives back the very same: no tuples, no keys but texts, no long texts."""
    kind = type(value)
    if kind is str:
        return len(value) <= TEXT_CHARS
    if kind is list:
        return all(_is_json(each) for each in value)
    if kind is dict:
        return all(type(key) is str and _is_json(content) for key, content in value.items())
    return kind in (int, float, bool, type(None))


def _write_table(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def load(tree: Any, folder: Path, how: How) -> Any:
    """The value of which a layout was written. Raise CacheError if the caller does not allow it."""
    ((kind, content),) = tree.items()
    if kind == "json":
        return content
    if kind == "dict":
        return {key: load(node, folder, how) for key, node in content}
    if kind in ("list", "tuple"):
        within = [load(node, folder, how) for node in content]
        return within if kind == "list" else tuple(within)
    path = folder / content
    if kind == "pickle" and not how.pickle:
        raise CacheError("it is a pickle, and pickle=True was not said")
    if kind == "saved":
        if how.load_file is None:
            raise CacheError("it was written by save_file, and there is no load_file")
        check_own(path)
        return how.load_file(path)
    return _LOADERS[kind](path)


def _read_table(path: Path) -> pa.Table:
    with pa.OSFile(str(path), "rb") as file:
        return pa.ipc.open_file(file).read_all()


_LOADERS: Final[dict[str, Callable[[Path], Any]]] = {
    "npy": lambda path: np.load(path, allow_pickle=False),
    "scalar": lambda path: np.load(path, allow_pickle=False)[()],
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "text": lambda path: path.read_bytes().decode("utf-8", "surrogatepass"),
    "arrow": _read_table,
    "pickle": unpickled,
}
