"""Commands and services in processes that are forked from one which has imported all of them.

Each is a process of its own and a child of the tests': signals, exit codes, pipes and its end are as of any
other. So are its workers: they are forked by a process that it has left behind at its beginning, when it had
no threads, and are its children. What depends on how a process begins (its interpreter, its libraries, how
its locale is set) is begun by exec.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

MODULES = ("stager", "stagerd")  # that run this way
WORKER = "stager.worker.__main__"
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

Told = dict[str, Any]  # what a process is to become


class Gone(Exception):
    """Nobody is there that forks: a test may have killed all children of a service."""


class _Begun(subprocess.Popen[str]):
    """A process that is begun by `_fork`, or by exec if that is None."""

    _fork: "Callable[[Told, Sequence[int]], int] | None" = None

    def _execute_child(self, args: Any, executable: Any, *more: Any) -> None:  # type: ignore[override]
        env, pipes, is_session = more[4], more[8:14], more[19]
        child_has = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], *pipes[3::2]))]
        told = {"arguments": list(args[2:]), "env": dict(env or os.environ), "is_session": is_session}
        try:
            if self._fork is None:
                raise Gone
            self.pid = self._fork(told | {"cwd": str(Path.cwd()), "for": os.getpid()}, child_has)
        except Gone:
            super()._execute_child(args, executable, *more)  # type: ignore[misc]
            return
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class Forked(_Begun):
    """`python -m MODULE ARGUMENTS`, as subprocess.Popen would start it."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str], **streams: Any) -> None:
        if module in MODULES and _may_fork(env):
            self._fork = lambda told, streams: _ask(_prepared(os.getpid()), told, streams)
        # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
        begins = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        told = [sys.executable, "-m", module, *arguments]
        super().__init__(told, env=dict(env), text=True, preexec_fn=begins, **streams)


class _ForkedWorker(_Begun):
    """A worker, as the pool starts it: a child of this process all the same."""

    forks: ClassVar[socket.socket]  # to the process that forks them

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        assert arguments[2] == WORKER
        self._fork = lambda told, streams: _ask(self.forks, told, streams)
        super().__init__(arguments, **options)


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


def _ask(ours: socket.socket, told: Told, streams: Sequence[int]) -> int:
    """Have a process fork one that becomes our child, and return its number."""
    with _one_by_one:
        _adopt(True)  # whose parent ends becomes our child, for this moment
        try:
            socket.send_fds(ours, [json.dumps(told).encode()], list(streams))
            pid = ours.recv(64)
        except OSError:
            raise Gone from None
        finally:
            _adopt(False)
    if not pid:
        raise Gone
    return int(pid)


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

    for name in (*(f"stager.cli.{verb}" for verb in VERBS), "stagerd.daemon", "stagerd.logs", WORKER):
        import_module(name)
    sys.modules[WORKER].load_libraries()
    gc.collect()
    gc.freeze()
    _fork_when_asked(its)


def _fork_when_asked(its: socket.socket) -> None:
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


def _become(told: Told, streams: list[int], its: socket.socket) -> None:
    """The process that was asked for: a child of who asked, with the streams that it was given."""
    while os.getppid() != told["for"]:
        time.sleep(0.0005)
    if told["is_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Python's own are not to close these when they go.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=True)
    sys.argv = told["arguments"]
    with suppress(OSError):
        its.send(str(os.getpid()).encode())
    its.close()
    if sys.argv[0] != WORKER:
        _leave_behind()


def _leave_behind() -> None:
    """Fork the process that forks our workers, while we have no threads. It ends with us."""
    _ForkedWorker.forks, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        _ForkedWorker.forks.close()
        with Path(os.devnull).open("r+b") as nothing:  # whoever reads what we print need not wait for it
            for number in range(STREAMS):
                os.dup2(nothing.fileno(), number)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        _fork_when_asked(its)
        return  # one of our workers
    its.close()
    pool: Any = sys.modules["stager.dispatch.pool"]
    pool.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": _ForkedWorker})


def main() -> None:
    _serve(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == WORKER:
        sys.modules[WORKER].main()
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
