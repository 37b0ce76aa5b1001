"""A function and all that it reaches, walked: each function, class, constant and package is a part."""

import builtins
import copyreg
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from stager.errors import UsageError
from stager.reader.code.bytecode import Reached, reached, told
from stager.reader.code.packages import Origin, owner_of, top_of, version_of
from stager.reader.code.parts import say_part
from stager.reader.code.values import (
    ABSENT,
    Named,
    contents_of,
    defaults_of,
    held_by,
    json_of,
    place_of,
    plain,
    qualname_of,
    shown_module,
    tensor_of,
)
from stager.reader.values import digest_of

PARTS_MAX: Final = 10_000
_OUR_OWN: Final = {"stager", "stager_client"}  # what these wrap around a function decides nothing
_RANDOM: Final = ("random", "numpy.random", "torch")  # their states differ at each start
_CYTHON: Final = "_cython_"  # its functions are of a class in a module of no package
_GENERATORS: Final = {"Generator", "RandomState", "Random", "SystemRandom"}
_OF_CLASSES: Final = {  # what decides nothing, or what methods say already
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
    *("__firstlineno__", "__static_attributes__", "__dataclass_fields__", "__dataclass_params__"),
    "__slotnames__",  # Python writes it down when an object of the class is first pickled
    *("_abc_impl", "__parameters__", "__orig_bases__", "__annotate_func__", "__annotations_cache__"),
}
_BUILTINS: Final = (
    *(BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType),
    *(MethodWrapperType, ClassMethodDescriptorType),
)
_DESCRIPTORS: Final = (GetSetDescriptorType, MemberDescriptorType)  # of no more than a name


class Walk:
    """Collects the parts. What has no key is refused."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {"Python": f"version {sys.version_info[0]}.{sys.version_info[1]}"}
        self.lines: dict[str, int] = {}
        self._names: dict[int, str] = {}  # of functions and classes, by id
        self._kept: list[object] = []  # so that no id is given twice
        self._within: list[int] = []  # ids of the values we are in
        self._where = "the function"
        self._ways: tuple[tuple[Any, Callable[[Any], str]], ...] = (
            (Named, lambda value: value.name),
            (FunctionType, self._function),
            (type, self._class),
            (ModuleType, self._module),
            (_BUILTINS, self._builtin),
            (_DESCRIPTORS, lambda value: f"descriptor {value.__name__}"),
            (Enum, lambda value: f"{self.value(type(value))} {value.name}"),
            (object, self._object),
        )

    def value(self, value: Any) -> str:
        """A text that two values share only if they are alike."""
        text = plain(value)
        if text is not None:
            return text
        if id(value) in self._names:
            return self._names[id(value)]
        if id(value) in self._within:
            return f"within {len(self._within) - self._within.index(id(value))}"
        self._kept.append(value)
        self._within.append(id(value))
        try:
            return next(way(value) for kinds, way in self._ways if isinstance(value, kinds))
        finally:
            self._within.pop()

    def _object(self, value: Any) -> str:
        held = held_by(value)
        if held is not None:
            return f"{type(value).__name__} {self._all(held)}"
        if _is_others(type(value)) and isinstance(getattr(value, "__wrapped__", None), FunctionType):
            return f"{self._kind(type(value))} around {self.value(value.__wrapped__)}"
        return self._reduced(value)

    def _all(self, values: Any) -> str:
        if isinstance(values, Mapping):
            return "{" + ",".join(f"{self.value(key)}:{self.value(values[key])}" for key in values) + "}"
        if isinstance(values, set | frozenset):
            return "{" + ",".join(sorted(self.value(each) for each in sorted(values, key=place_of))) + "}"
        return "[" + ",".join(self.value(each) for each in values) + "]"

    def _function(self, function: FunctionType) -> str:
        module = str(function.__globals__.get("__name__", "__main__"))  # what wraps it may have taken its own
        name = f"{shown_module(module)}.{qualname_of(function)}"
        if owner_of(top_of(module)) is not Origin.OWN or top_of(module) in _OUR_OWN:
            inner = getattr(function, "__wrapped__", None)
            within = inner if top_of(module) in _OUR_OWN else [contents_of(function), function.__defaults__]
            return f"{self._package(module)} {name} {self.value(within)}"
        name = self._name(function, name)
        self.parts[name] = ""  # it may reach itself
        code, names = function.__code__, function.__globals__
        self.lines[name] = code.co_firstlineno
        package = str(names.get("__package__") or "")
        refers = [[*taken[:2], self._reached(taken, names, module)] for taken in reached(code, package)]
        for argument, default in defaults_of(function).items():
            self.lines[f"{name}({argument})"] = code.co_firstlineno
            refers.append([argument, [], self._part(f"{name}({argument})", "default", default)])
        for variable, content in contents_of(function).items():
            self.lines[f"{name}[{variable}]"] = code.co_firstlineno
            refers.append([variable, [], self._part(f"{name}[{variable}]", "closure", content)])
        for attribute, content in sorted(vars(function).items()):
            if attribute != "__wrapped__":
                self._part(f"{name}.{attribute}", "constant", content)
        self.parts[name] = f"code {digest_of(json_of([told(code), refers]))}"
        return name

    def _reached(self, taken: Reached, names: Mapping[str, Any], module: str) -> str:
        """What a function takes from outside, as a part of its own if it is not another's."""
        name, attributes = taken.name, list(taken.attributes)
        if taken.imported is not None:
            module, attributes, value = self._imported(taken, attributes)
        elif name.startswith("__") and name.endswith("__"):
            return name
        elif name in names:
            value = names[name]
        else:  # the builtins are Python's; others are not there yet
            return "builtin" if hasattr(builtins, name) else ABSENT.name
        while isinstance(value, ModuleType) and attributes:
            if owner_of(top_of(value.__name__)) is not Origin.OWN:
                return self._module(value)
            module, name = value.__name__, attributes.pop(0)
            value = getattr(value, name, ABSENT)
        return self._part(f"{shown_module(module)}.{name}", "constant", value)

    def _imported(self, taken: Reached, attributes: list[str]) -> tuple[str, list[str], Any]:
        assert taken.imported is not None
        module, names, binds_top = taken.imported
        if owner_of(top_of(module)) is not Origin.OWN:
            return module, [], Named(self._package(module))
        try:
            value: Any = import_module(module)
            if names and not hasattr(value, names[0]):
                import_module(f"{module}.{names[0]}")
        except ImportError:
            return module, [], ABSENT
        return module, [*names, *attributes], sys.modules[top_of(module)] if binds_top else value

    def _part(self, name: str, kind: str, value: Any) -> str:
        """A value under a name of its own; no part, if it is one already."""
        if isinstance(value, Named):
            return value.name
        before, self._where = self._where, say_part(name, kind)
        text = self.value(value)
        self._where = before
        if isinstance(value, FunctionType | type | BuiltinFunctionType | ModuleType):
            return text
        known = self.parts.get(name)
        if known is not None and not known.startswith(f"{kind} "):
            name = f"{name}'s value"
        self.parts[name] = f"{kind} {digest_of(json_of(text))}"
        return f"= {name}"

    def _class(self, kind: type) -> str:
        module = str(kind.__module__)
        name = f"{shown_module(module)}.{kind.__qualname__.replace('<locals>.', '')}"
        if owner_of(top_of(module)) is not Origin.OWN:
            return self._kind(kind)
        name = self._name(kind, name)
        self.parts[name] = ""
        held = [self.value(type(kind)), *(self.value(base) for base in kind.__bases__)]
        if issubclass(kind, Enum):
            held += [f"{member.name} {self.value(member.value)}" for member in kind]
        for attribute, content in sorted(vars(kind).items()):
            enums_own = issubclass(kind, Enum) and attribute.startswith("_") and not callable(content)
            if attribute not in _OF_CLASSES and not enums_own and not isinstance(content, Enum):
                held.append(f"{attribute} {self._part(f'{name}.{attribute}', 'constant', content)}")
        self.parts[name] = f"code {digest_of(json_of(held))}"
        return name

    def _kind(self, kind: type) -> str:
        """The class of a value. Those of packages have their version."""
        if owner_of(top_of(str(kind.__module__))) is Origin.OWN:
            return self.value(kind)
        return f"{self._package(str(kind.__module__))} {kind.__qualname__}"

    def _module(self, module: ModuleType) -> str:
        if owner_of(top_of(module.__name__)) is not Origin.OWN:
            return self._package(module.__name__)
        raise UsageError(
            f"{self._where} is the whole module {module.__name__}: nobody can tell what is used of it",
            hint=f"name what is used, as in {module.__name__}.NAME, or import only that",
        )

    def _builtin(self, function: Any) -> str:
        holder = getattr(function, "__self__", None)
        if holder is not None and not isinstance(holder, ModuleType):
            return f"{function.__name__} of {self.value(holder)}"
        kind = getattr(function, "__objclass__", None)
        module = str(getattr(function, "__module__", None) or getattr(kind, "__module__", None) or "builtins")
        return f"{self._package(module)} {function.__qualname__}"

    def _package(self, module: str) -> str:
        """What a module's functions are known by: Python's or its package's version."""
        top = top_of(module)
        if top not in _OUR_OWN and owner_of(top) is not Origin.PYTHON:
            self.parts[top] = f"version {version_of(top)}"
        return module

    def _reduced(self, value: Any) -> str:
        """What a value would be made anew from. Nothing is pickled."""
        kind = type(value)
        if kind.__name__ in _GENERATORS and kind.__module__.startswith(_RANDOM):
            raise self._refused(value, "make it inside of the function, from a seed")
        if (tensor := tensor_of(value)) is not None:
            dtype, shape, raw = tensor
            return f"{self._kind(kind)} {dtype} {shape} {digest_of(raw.data)}"
        reduce = copyreg.dispatch_table.get(kind)
        try:
            made = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:
            raise self._refused(value, "make it inside of the function, or give it as an argument") from None
        if isinstance(made, str) and kind.__module__.startswith(_CYTHON):
            return f"{self._package(str(value.__module__))} {made}"
        if isinstance(made, str):
            return f"{self._kind(kind)} {made}"
        self._kept.append(made)
        made_of = [list(each) if isinstance(each, Iterator) else each for each in made]
        self._kept.append(made_of)
        return f"{self._kind(kind)} {self._all(made_of)}"

    def _refused(self, value: Any, hint: str) -> UsageError:
        kind = type(value)
        return UsageError(
            f"{self._where} is a {kind.__module__}.{kind.__qualname__}: nobody can tell when it changes",
            hint=hint,
        )

    def _name(self, value: Any, name: str) -> str:
        """The name of its part. The second of a name gets a number."""
        free, number = name, 1
        while free in self.parts:
            free, number = f"{name}#{number + 1}", number + 1
        if len(self.parts) >= PARTS_MAX:
            raise UsageError(f"{name}: more than {PARTS_MAX:,} functions and values are reached")
        self._names[id(value)] = free
        self._kept.append(value)
        return free


def _is_others(kind: type) -> bool:
    return owner_of(top_of(str(kind.__module__))) is not Origin.OWN
