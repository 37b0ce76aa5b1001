"""A child process: imports a person's function once, and calls it for one sample after the other.

It may do what it likes: print, raise, exit, hang, or take all memory that it may have. Only this process has
to do with it. What it prints goes to the log.
"""

import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from stager import errors
from stager.errors import StagerError, UsageError
from stager.functions.frames import Data, frame_of, read_frame
from stager.parent import die_with
from stager.reader.code.key import key_of
from stager.reader.code.packages import Origin, owner_of, top_of

IDLE_S: Final = 300.0  # without a sample to make: then it ends


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    os.dup2(2, 1)
    die_with(int(sys.argv[2]))
    channel.settimeout(IDLE_S)

    def say(header: Mapping[str, Any], *data: Data) -> None:
        for piece in frame_of(header, data):
            channel.sendall(piece)

    began = read_frame(channel.recv_into)
    if began is None:
        return
    about, _ = began
    _limit_memory(about["memory_bytes"])
    try:
        function = _load(about["prepare"], about["folder"])
        say({"code": key_of(function).to_json()})
    except StagerError as error:
        say({"error": errors.to_json(error)})
        return
    while True:
        try:
            asked = read_frame(channel.recv_into)
        except TimeoutError:
            return
        if asked is None:
            return
        header, data = asked
        parts = [bytes(part) if isinstance(part, memoryview) else part for part in data]
        _answer(say, function, [*parts, *header["inputs"]], about["args"])


def _load(name: str, folder: str) -> Callable[..., Any]:
    """The function of `package.module:function`. Raise UsageError, whatever its module does."""
    if folder:
        sys.path.insert(0, folder)
    module, _, path = name.partition(":")
    try:
        function = import_module(module)
        for attribute in path.split("."):
            function = getattr(function, attribute)
    except BaseException as error:  # also sys.exit
        places = ", ".join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        raise UsageError(
            f"{name} cannot be imported: {said(error)}",
            hint=f"its module is looked for in: {places or 'the packages of the service'}",
        ) from None
    if not callable(function):
        raise UsageError(f"{name} is no function", hint="name one, as in package.module:function")
    return function


def _answer(
    say: Callable[..., None], function: Callable[..., Any], values: list[Any], args: dict[str, Any]
) -> None:
    """Make one sample and send it, or say what went wrong."""
    began = time.perf_counter()
    try:
        made = function(*values, **args)
        took_s = time.perf_counter() - began
        named = dict(made) if isinstance(made, Mapping) else {"": made}
        arrays = {str(name): np.asarray(value) for name, value in named.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "biufc":
                raise TypeError(f"{name or 'what it returned'} is no array of numbers: {array.dtype}")
    except BaseException as error:  # also sys.exit: this sample fails, and no other
        say({"failed": said(error)})
        return
    say({"names": list(arrays), "seconds": took_s}, *arrays.values())


def said(error: BaseException) -> str:
    """The last line of a traceback, and the last place of it in the person's own code."""
    line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    steps = traceback.walk_tb(error.__traceback__)
    own = [(frame.f_code.co_filename, at) for frame, at in steps if _is_own(frame.f_globals)]
    return f"{line} ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else line


def _is_own(names: Mapping[str, Any]) -> bool:
    top = top_of(str(names.get("__name__", "")))
    return top not in ("stager", "__main__", "") and owner_of(top) is Origin.OWN


def _limit_memory(size_bytes: int) -> None:
    """What it may have of its own: more is a MemoryError there, and no trouble of the machine's."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    least = size_bytes if most == resource.RLIM_INFINITY else min(size_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (least, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
