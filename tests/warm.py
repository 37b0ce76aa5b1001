"""Steps in processes that are forked from this one, which has imported all: milliseconds instead of a second.

Each is a process of its own: a signal ends only it, a hang is killed, what it prints is kept.
"""

import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

TRACE_LINES = 7  # the last ones say where and what


@dataclass(frozen=True, slots=True)
class Ended:
    """How a step ended: its exit code (negative: by a signal), and all it printed."""

    code: int
    said: str
    hung: bool = False

    @property
    def wrong(self) -> str:
        """What no step may show, whatever lies on the disk."""
        if self.hung:
            return f"hung: {self.said[-1500:]}"
        if self.code < 0:
            return f"ended by signal {signal.Signals(-self.code).name}: {self.said[-1500:]}"
        if "Traceback" in self.said:
            return (
                f"a traceback: {' | '.join(line.strip() for line in self.said.splitlines()[-TRACE_LINES:])}"
            )
        return ""


def warm_up(*modules: str) -> None:
    for name in (
        "stager.cli",
        *(f"stager.cli.{verb}" for verb in ("prefetch", "ls", "why", "upkeep.verify")),
        *modules,
    ):
        import_module(name)


def forked(step: Callable[[], int], timeout_s: float = 60.0) -> Ended:
    """Run a step in a fork; what it returns is its exit code."""
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _run(step, output.fileno())
        status, hung = _wait(pid, timeout_s)
        output.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), output.read().decode(errors="replace"), hung)


def command(*arguments: str) -> Callable[[], int]:
    """A `stager` command as a step."""

    def step() -> int:
        from stager.cli import main

        sys.argv = ["stager", *arguments]
        try:
            main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        return 0

    return step


def _run(step: Callable[[], int], output: int) -> None:
    code = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        code = step()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, timeout_s: float) -> tuple[int, bool]:
    descriptor = os.pidfd_open(pid)
    try:
        end = select.poll()  # select() knows no descriptors above 1023
        end.register(descriptor, select.POLLIN)
        hung = not end.poll(timeout_s * 1000)
        if hung:
            os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1], hung
    finally:
        os.close(descriptor)


def tracebacks_in(log: str) -> list[str]:
    """The tracebacks in a service's log, but for those of workers whose service was killed."""
    found = re.findall(r"Traceback.*?(?=^\d{4}-|\Z)", log, re.DOTALL | re.MULTILINE)
    return [trace[:3000] for trace in found if not trace.rstrip().endswith("Broken pipe")]


def wait_until(done: Callable[[], bool], timeout_s: float, what: Path | str) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: waited {timeout_s:.0f} s in vain")
        time.sleep(0.02)
