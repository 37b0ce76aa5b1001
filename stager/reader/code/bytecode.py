"""What a code object does, and what it reaches. Lines, paths and docstrings do not count."""

import dis
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from types import CodeType
from typing import Any, Final, NamedTuple

_FLAGS: Final = 4 | 8 | 32 | 128 | 256 | 512  # *args, **kwargs; a generator or coroutine of any kind
_ATTRIBUTE_OPS: Final = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"}
_GLOBAL_OPS: Final = {"LOAD_GLOBAL", "LOAD_NAME"}
_LOCALS: Final = {*dis.haslocal, *dis.hasfree}
_NO_LOADS: Final = {"LOAD_CLOSURE"}  # it only hands a cell to a function that is made


class Imported(NamedTuple):
    """What a name inside of a function was bound to by an import there."""

    module: str  # which is imported
    attributes: tuple[str, ...] = ()  # and what was taken of it
    binds_top: bool = False  # `import a.b` binds a


class Reached(NamedTuple):
    """A name that a function takes from outside, and the attributes that it takes of it at once."""

    name: str
    attributes: tuple[str, ...]
    imported: Imported | None = None  # None: it is a global


def told(code: CodeType) -> list[Any]:
    """All that decides what it does, of JSON's values."""
    arguments = code.co_argcount + code.co_kwonlyargcount
    return [
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS],
        list(code.co_varnames[:arguments]),
        code.co_exceptiontable.hex(),
        [[step.opname, _argument(step)] for step in _steps(code)],
    ]


def reached(code: CodeType, package: str) -> list[Reached]:
    """All that it and the functions inside of it take from outside, each once. `package`: where it is."""
    return list(dict.fromkeys(_reached(code, package, {})))


def _reached(code: CodeType, package: str, outer: Mapping[str, Imported]) -> Iterator[Reached]:
    steps = _steps(code)
    imported = {**outer, **_imports(steps, package)}
    for place, step in enumerate(steps):
        if step.opname in _GLOBAL_OPS:
            yield Reached(str(step.argval), _attributes(steps, place))
        elif step.opname.startswith("LOAD_") and step.opname not in _NO_LOADS and step.opcode in _LOCALS:
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            for name in names:
                if name in imported:
                    yield Reached(name, _attributes(steps, place), imported[name])
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _reached(const, package, imported)


def _steps(code: CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]


def _attributes(steps: list[dis.Instruction], place: int) -> tuple[str, ...]:
    """The names that are taken, one of the other, of what the step at this place loads."""
    names = []
    for step in steps[place + 1 :]:
        if step.opname not in _ATTRIBUTE_OPS:
            break
        names.append(str(step.argval))
    return tuple(names)


def _imports(steps: list[dis.Instruction], package: str) -> dict[str, Imported]:
    """The names that imports inside of a function bind."""
    bound = {}
    for place, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level = steps[place - 2].argval
        module = resolve_name("." * level + step.argval, package) if level else step.argval
        names = steps[place - 1].argval  # of `from module import names`
        taken: tuple[str, ...] = ()
        for later in steps[place + 1 :]:
            if later.opname == "IMPORT_FROM":
                taken = (str(later.argval),)
            elif later.opname.startswith("STORE_"):
                whole = names is None and bool(taken)  # `import a.b as c` takes b of a
                name = later.argval[0] if isinstance(later.argval, tuple) else later.argval
                bound[str(name)] = Imported(module, () if whole else taken, names is None and not taken)
                if names is None or taken == (names[-1],):
                    break
            elif later.opname not in ("SWAP", "POP_TOP"):
                break
    return bound


def _argument(step: dis.Instruction) -> Any:
    if step.opcode in dis.hasconst:
        return _constant(step.argval)
    if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs or isinstance(step.argval, str):
        return step.argval
    if isinstance(step.argval, tuple) and all(isinstance(name, str) for name in step.argval):
        return list(step.argval)
    return step.arg


def _constant(value: Any) -> list[Any]:
    """A constant of a code object, so that no two have the same JSON."""
    kind = type(value).__name__
    if isinstance(value, CodeType):
        return [kind, told(value)]
    if isinstance(value, tuple):
        return [kind, [_constant(each) for each in value]]
    if isinstance(value, frozenset):
        return [kind, sorted((_constant(each) for each in value), key=repr)]
    if isinstance(value, bytes):
        return [kind, value.hex()]
    return [kind, repr(value)]  # numbers, texts, None, ...: repr says all there is of these
