"""The decorator: load what was kept, or compute it once and keep it; and tell why."""

import inspect
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast, overload

from stager.errors import CacheError, StagerError, UsageError, shown
from stager.reader.code.values import shown_module
from stager.reader.memo.key import CallKey, nearest_differences
from stager.reader.memo.record import MemoRecord
from stager.reader.memo.store import NAME_CHARS, MemoStore, checksum_of_file
from stager.reader.settings import Settings, load_settings
from stager_client.memo.arguments import call_key
from stager_client.memo.locks import lock_file, one_at_a_time
from stager_client.memo.results import How, Load, Save, lay_out, load
from stager_client.memo.room import find_room, tell_kept

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S: Final = 24 * 3600.0  # for another process that computes the same; one that dies is not waited for
FIRST: Final = "nothing was kept of it before"
_STACK: Final = 5  # from a warning to the line that called the function


@dataclass(slots=True)
class Counts:
    """What became of the calls in this process."""

    loaded: int = 0
    computed: int = 0
    unloadable: int = 0  # of the computed: kept, and could not be loaded
    unkept: int = 0  # of the computed: could not be kept


class LookedUp(NamedTuple):
    """What the cache has for a call."""

    is_there: bool
    value: Any = None
    problem: str = ""  # why what is there cannot be loaded


NOTHING: Final = LookedUp(False)


@overload
def memo(
    function: None = None,
    *,
    name: str | None = None,
    pickle: bool = False,
    save_file: Save | None = None,
    load_file: Load | None = None,
    wait_s: float = WAIT_S,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
@overload
def memo(
    function: Callable[P, T],
    *,
    name: str | None = None,
    pickle: bool = False,
    save_file: Save | None = None,
    load_file: Load | None = None,
    wait_s: float = WAIT_S,
) -> Callable[P, T]: ...
def memo(
    function: Callable[P, T] | None = None,
    *,
    name: str | None = None,
    pickle: bool = False,
    save_file: Save | None = None,
    load_file: Load | None = None,
    wait_s: float = WAIT_S,
) -> Any:
    """Keep the results of a function in the cache: `@memo`, `@memo(pickle=True)` or `memo(train)(fold)`.

    A call is loaded if the function's code, all that it reaches, its arguments, files (a `Path`) and staged
    data sets are as they were. Kept are arrays, bytes, texts, JSON values, Arrow tables, and dicts, lists and
    tuples of these; with `pickle`, all else. `save_file(result, path)` writes a file or a folder to a path
    that does not exist yet, and `load_file(path)` reads it. What cannot be kept, or loaded, is a warning and
    a count (`.counts`), and `stager why memo NAME` says why each result was computed.
    """
    if (save_file is None) != (load_file is None):
        raise UsageError("save_file and load_file go together", hint="give both, or neither")
    if function is None:
        options = {"name": name, "pickle": pickle, "save_file": save_file, "load_file": load_file}
        return lambda function: memo(function, wait_s=wait_s, **options)  # type: ignore[arg-type]
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError("a memo keeps what a function returns, and this one returns no value of its own")
    kept = _Kept(function, name or _name_of(function), How(pickle, save_file, load_file), wait_s)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, kept.call(args, kwargs))

    call.counts = kept.counts  # type: ignore[attr-defined]
    return call


class _Kept:
    """A function whose results are kept."""

    def __init__(self, function: Callable[..., Any], name: str, how: How, wait_s: float) -> None:
        self._function, self._name, self._how, self._wait_s = function, name, how, wait_s
        self.counts = Counts()

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        settings = load_settings()
        store, key = MemoStore(settings.cache_dir), call_key(self._function, args, kwargs)
        found = self._look(store, key.digest)
        if found.is_there:
            return self._loaded(found)
        try:
            store.prepare(self._name)
            file = lock_file(store.lock_path, store.mode() & 0o660)
        except (StagerError, OSError) as error:
            self.counts.computed += 1
            self._tell_unkept(error)
            return self._function(*args, **kwargs)
        with one_at_a_time(file, key.digest, self._name, self._wait_s):
            found = self._look(store, key.digest)  # somebody may have computed it while we waited
            if found.is_there:
                return self._loaded(found)
            why = self._why(store, key, found)
            began = time.monotonic()
            value = self._function(*args, **kwargs)
            self.counts.computed += 1
            try:
                self._keep(settings, store, key, value, time.monotonic() - began, why)
            except Exception as error:  # of save_file, or of a pickle: hours of work are not lost
                self._tell_unkept(error)
            return value

    def _loaded(self, found: LookedUp) -> Any:
        self.counts.loaded += 1
        return found.value

    def _look(self, store: MemoStore, key: str) -> LookedUp:
        """What is kept for a key, compared with its checksums."""
        try:
            record = store.find(self._name, key)
            if record is None:
                return NOTHING
            folder = store.folder(self._name, key)
            check_files(folder, record)
            value = load(record.tree, folder, self._how)
        except Exception as error:  # of load_file, or of a class that is not there any more
            return LookedUp(False, problem=_said(error))
        store.used(self._name, key)
        return LookedUp(True, value)

    def _why(self, store: MemoStore, key: CallKey, found: LookedUp) -> tuple[str, ...]:
        """Why a call is computed: what cannot be loaded, was evicted, or differs from the nearest result."""
        if found.problem:
            self.counts.unloadable += 1
            why = f"a result was kept, and could not be loaded: {found.problem}"
            warnings.warn(f"{self._name}: {why}; it is computed anew", RuntimeWarning, stacklevel=_STACK - 1)
            return (why,)
        gone = store.find_gone(self._name, key.digest)
        if gone is not None:
            return (f"it was evicted at {_clock(gone.gone_at)}: {gone.gone_why}",)
        others = (record.key for record in store.records(self._name))
        return tuple(nearest_differences(others, key)) or (FIRST,)

    def _keep(
        self,
        settings: Settings,
        store: MemoStore,
        key: CallKey,
        value: Any,
        took_s: float,
        why: tuple[str, ...],
    ) -> None:
        layout = lay_out(value, self._how)
        find_room(settings, store, self._name, key.digest, layout.size_bytes)
        try:
            with store.writing(self._name, key.digest) as scratch:
                layout.write(scratch)
                files = store.seal(scratch)
                record = MemoRecord(self._name, key, layout.tree, files, time.time(), round(took_s, 3), why)
                if record.size_bytes > layout.size_bytes:  # what save_file writes nobody knows before
                    find_room(settings, store, self._name, key.digest, record.size_bytes)
                store.publish(scratch, record)
        finally:
            tell_kept(settings, self._name, key.digest)

    def _tell_unkept(self, error: Exception) -> None:
        self.counts.unkept += 1
        hint = f" ({error.hint})" if isinstance(error, StagerError) and error.hint else ""
        told = f"{self._name}: the result could not be kept: {_said(error)}{hint}"
        warnings.warn(told, RuntimeWarning, stacklevel=_STACK - 1)


def check_files(folder: Path, record: MemoRecord) -> None:
    """Raise CacheError if a file of a result is not what was written."""
    for name, (size_bytes, checksum) in record.files.items():
        path = folder / name
        if not path.is_file():
            raise CacheError(f"{name} is not there any more")
        if path.stat().st_size != size_bytes or checksum_of_file(path) != checksum:
            raise CacheError(f"{name} is not what was written")


def _name_of(function: Callable[..., Any]) -> str:
    """Its module and its own name, as far as a folder can be called so."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = shown_module(str(getattr(function, "__module__", None) or "unknown"))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{module}.{name.replace('<locals>.', '')}").lstrip(".")[
        :NAME_CHARS
    ]


def _said(error: Exception) -> str:
    return error.message if isinstance(error, StagerError) else shown(f"{type(error).__name__}: {error}")


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
