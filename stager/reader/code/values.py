"""What the values are made of that a function reaches."""

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import (
    CodeType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    MethodType,
    NoneType,
    NotImplementedType,
)
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stager.reader.code.bytecode import told
from stager.reader.values import canonical_json, digest_of


class Named:
    """What is known by a name, and is not looked into."""

    def __init__(self, name: str) -> None:
        self.name = name


ABSENT: Final = Named("absent")  # not there, or not yet


def json_of(value: Any) -> bytes:
    return canonical_json(value).encode()


_PLAIN: Final[Mapping[type, Callable[[Any], str]]] = {
    **dict.fromkeys((NoneType, EllipsisType, NotImplementedType), repr),
    **dict.fromkeys((bool, float, complex, str), lambda value: f"{type(value).__name__} {value!r}"),
    int: hex,
    **dict.fromkeys((bytes, bytearray), lambda value: f"{type(value).__name__} {digest_of(value)}"),
    CodeType: lambda code: digest_of(json_of(told(code))),
}
_CONTAINERS: Final = (tuple, list, set, frozenset, dict, MappingProxyType)
_WRAPPERS: Final[tuple[tuple[Any, Callable[[Any], list[Any]]], ...]] = (
    (functools.partial, lambda made: [made.func, made.args, made.keywords]),
    (MethodType, lambda method: [method.__func__, method.__self__]),
    ((staticmethod, classmethod), lambda method: [method.__func__]),
    (property, lambda made: [made.fget, made.fset, made.fdel]),
    (functools.cached_property, lambda made: [made.func]),
)


def plain(value: Any) -> str | None:
    """The text of a number, a text or bytes; None for other values."""
    say = _PLAIN.get(type(value))
    return None if say is None else say(value)


def tensor_of(value: Any) -> tuple[str, tuple[int, ...], npt.NDArray[np.uint8]] | None:
    """Dtype, shape and bytes of a torch tensor; None for other values. Its pickles differ at each start."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    flat = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1).contiguous()
    raw = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    return str(value.dtype), tuple(value.shape), raw


def held_by(value: Any) -> Any:
    """What a container or a wrapper of Python's holds; None for other values."""
    if type(value) in _CONTAINERS:
        return value
    return next((held(value) for kinds, held in _WRAPPERS if isinstance(value, kinds)), None)


def qualname_of(function: FunctionType) -> str:
    """Its own name: what wraps another by functools.wraps has taken that one's."""
    code, name = function.__code__, function.__qualname__
    return (name if name.rpartition(".")[2] == code.co_name else code.co_qualname).replace("<locals>.", "")


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function's arguments, by name."""
    positional = function.__defaults__ or ()
    count = function.__code__.co_argcount
    names = function.__code__.co_varnames[count - len(positional) : count]
    return {**dict(zip(names, positional, strict=True)), **(function.__kwdefaults__ or {})}


def contents_of(function: FunctionType) -> dict[str, Any]:
    """What its closure holds; not what is not there yet."""
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:
            contents[name] = ABSENT
    return contents


def place_of(value: Any) -> tuple[str, int]:
    """So that the functions of a set are walked in one order."""
    code = getattr(value, "__code__", None)
    return str(getattr(value, "__qualname__", "")), getattr(code, "co_firstlineno", 0)


def shown_module(module: str) -> str:
    """A script is known by its file, so that another start of it, or an import, finds the same key."""
    main = sys.modules.get("__main__")
    if module != "__main__" or main is None:
        return module
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return str(spec.name) if spec is not None else Path(path).stem if path else module
