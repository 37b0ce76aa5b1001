"""Runs of other programs, each in a process group of its own, so that none outlives its run."""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

STOP_S: Final = 5.0
_running: set[int] = set()  # the process groups that are ours to end
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Done:
    """How a run ended: its output, and what went wrong, if anything did."""

    stdout: str
    problem: str = ""

    def answer(self) -> dict[str, Any]:
        """The last line of the output that is a JSON object."""
        for line in reversed(self.stdout.splitlines()):
            if line.startswith("{"):
                with suppress(ValueError):
                    return dict(json.loads(line))
        return {"problem": self.problem or "it printed no result"}


def run_group(
    command: Sequence[str], deadline_s: float, env: Mapping[str, str], cwd: Path, until_answer: bool = False
) -> Done:
    """Run a command to its end, or to its answer, or to the deadline. What it started ends with it.

    `until_answer` gives it STOP_S after its first line of JSON: some libraries hang in their own shutdown.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = start_group(command, env, cwd, errors)
        late = threading.Event()

        def give_up() -> None:
            late.set()
            end_group(process.pid)

        timer = threading.Timer(deadline_s, give_up)
        timer.daemon = True
        timer.start()
        lines: list[str] = []
        answered = False
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                answered = until_answer and line.startswith("{")
                if answered:
                    break
            process.wait(STOP_S if answered else None)
        except subprocess.TimeoutExpired:
            pass
        finally:
            timer.cancel()
            end_group(process.pid)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        errors.seek(0)
        said = errors.read()
    stdout = "".join(lines)
    if answered or process.returncode == 0:
        return Done(stdout)
    if late.is_set():
        return Done(stdout, f"not done after {deadline_s:.0f} s: {_last_words(said)}")
    return Done(stdout, f"exit code {process.returncode}: {_last_words(said or stdout)}")


def start_group(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, errors: Any
) -> "subprocess.Popen[str]":
    """Start a command as the leader of a group that `end_all` knows."""
    process = subprocess.Popen(
        command, env=env, cwd=cwd, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=errors, start_new_session=True,
    )  # fmt: skip
    with _lock:
        _running.add(process.pid)
    return process


def end_group(pid: int) -> None:
    """Kill a group we started, if anything of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with _lock:
        _running.discard(pid)


def end_all() -> None:
    """Kill every group that is still there."""
    for pid in list(_running):
        end_group(pid)


def _last_words(said: str) -> str:
    """The end of what a program said, on one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = " / ".join(lines[-3:])[-400:].replace(str(Path.cwd()), ".").replace(tempfile.gettempdir(), "TMP")
    return words.replace("|", "/") or "it said nothing"
