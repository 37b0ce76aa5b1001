"""Commands and services in processes that are forked from one which has imported all of them.

Each is a process of its own and a child of the tests': signals, exit codes, pipes and its end are as of any
other. What depends on how a process begins (its interpreter, its libraries, how its locale is set) is begun
by exec.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = ("stager", "stagerd")  # that run this way
# What decides how a process begins: the interpreter, the linker, libraries and our C look at these once.
DECIDING = (
    "PYTHON",
    "LD_PRELOAD",
    "LC_",
    "LANG",
    "TZ",
    "MALLOC_",
    "GLIBC_",
    "OMP_",
    "OPENBLAS_",
    "STAGER_NATIVE",
)
PR_SET_CHILD_SUBREAPER = 36
REQUEST_BYTES = 1 << 18
STREAMS = 3
BEGINS_S = 100.0


class Forked(subprocess.Popen[str]):
    """`python -m MODULE ARGUMENTS`, as subprocess.Popen would start it."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str], **streams: Any) -> None:
        self.fork = fork if module in MODULES and _may_fork(env) else None
        # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
        begins = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        told = [sys.executable, "-m", module, *arguments]
        super().__init__(told, env=dict(env), text=True, preexec_fn=begins, **streams)

    def _execute_child(self, args: Any, executable: Any, *more: Any) -> None:  # type: ignore[override]
        if self.fork is None:
            super()._execute_child(args, executable, *more)  # type: ignore[misc]
            return
        env, pipes = more[4], more[8:14]
        child_has = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], *pipes[3::2]))]
        try:
            self.pid = self.fork(args[2:], env, child_has)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(
    module: str, arguments: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """As subprocess.run would, with all that it printed."""
    with Forked(module, arguments, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess([module, *arguments], process.returncode, out, err)


def fork(arguments: Sequence[str], env: Mapping[str, str], streams: Sequence[int]) -> int:
    """Have the prepared process fork one that becomes ours, and return its number."""
    told = {"arguments": list(arguments), "env": dict(env), "cwd": str(Path.cwd()), "for": os.getpid()}
    with _one_by_one:
        ours = _prepared(os.getpid())
        _adopt(True)  # whose parent ends becomes our child, for this moment
        try:
            socket.send_fds(ours, [json.dumps(told).encode()], list(streams))
            return int(ours.recv(64))
        finally:
            _adopt(False)


def _may_fork(env: Mapping[str, str]) -> bool:
    """Whether a process with this environment begins as the prepared one did."""
    began = {"PYTHONUNBUFFERED": "1", **_BEGAN}
    others = {name for name in {*env, *began} if env.get(name) != began.get(name)}
    return not any(name.startswith(DECIDING) for name in others)


_BEGAN = dict(os.environ)
_one_by_one = threading.Lock()


@cache
def _prepared(_of: int) -> socket.socket:
    """To the prepared process of this one, which ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(BEGINS_S)
    with its:
        told = [sys.executable, str(Path(__file__)), str(its.fileno())]
        process = subprocess.Popen(told, pass_fds=[its.fileno()], env=_BEGAN)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _adopt(is_on: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)


def _serve(its: socket.socket) -> None:
    """In the prepared process: import all, and fork when asked; a fork returns, and runs what it was told."""
    import_module("stager.cli")
    from stager.cli import VERBS

    for name in (*(f"stager.cli.{verb}" for verb in VERBS), "stagerd.daemon", "stagerd.logs"):
        import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        told, streams, _, _ = socket.recv_fds(its, REQUEST_BYTES, STREAMS)
        if not told:
            os._exit(0)
        if not (between := os.fork()):
            if os.fork():
                os._exit(0)
            _become(json.loads(told), streams, its)
            return
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


def _become(told: dict[str, Any], streams: list[int], its: socket.socket) -> None:
    """The process that was asked for: of the tests, with their streams."""
    while os.getppid() != told["for"]:
        time.sleep(0.0005)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0), open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=True)
    sys.argv = told["arguments"]
    with suppress(OSError):
        its.send(str(os.getpid()).encode())
    its.close()


def main() -> None:
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
