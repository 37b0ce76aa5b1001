"""The child processes of a worker: started when there is something to make, ended when they misbehave."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from stager import errors
from stager.errors import SampleError, SourceError, StagerError, shown
from stager.functions.frames import Data, FrameTooLarge, frame_of, named, read_frame
from stager.functions.function import Function
from stager.interfaces import Made
from stager.reader.code.key import CodeKey, changes

LOOK_EVERY_S: Final = 0.5  # whether a silent child is still there
IMPORT_S: Final = 300.0
REFUSED_S: Final = 5.0  # a function that cannot be had is asked for again
KILL_S: Final = 5.0
ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)  # there is a child a core


class _Ended(Exception):
    """A child has gone. `code`: as Popen has it."""

    def __init__(self, code: int) -> None:
        self.code = code


class Child:
    """One process, which has imported one function."""

    def __init__(self, function: Function) -> None:
        """Start it, and see that its code is the one that is asked for. Raise StagerError."""
        self.told = function.told
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "stager.functions.child",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**ONE_THREAD, **os.environ},
                start_new_session=True,  # so that what it starts ends with it
            )
        try:
            told, _ = self._ask(frame_of(_about(function)), time.monotonic() + IMPORT_S)
            if "error" in told:
                raise errors.from_json(told["error"])
            self.code = CodeKey.from_json(told["code"])
            if function.code and self.code.digest != function.key.digest:
                what = "; ".join(changes(function.key, self.code))
                raise SourceError(
                    f"{function.prepare}: {what}, since it was scanned", hint="prefetch it again"
                )
        except _Ended as ended:
            raise _refusal(function, f"ended its process ({_say_code(ended.code)}) when imported") from None
        except TimeoutError:
            self.end()
            raise _refusal(function, f"was not imported within {IMPORT_S:.0f} s") from None
        except BaseException:
            self.end()
            raise

    def make(self, data: Sequence[Data], inputs: tuple[Any, ...], deadline_s: float) -> Made:
        """One sample. Raise SampleError, TimeoutError or _Ended."""
        frame = frame_of({"inputs": inputs}, data)
        try:
            told, arrays = self._ask(frame, time.monotonic() + deadline_s)
        except FrameTooLarge as error:
            self.end()
            raise SampleError("too_large", f"what it returned: {error}") from None
        if "failed" in told:
            raise SampleError("function", shown(told["failed"]))
        return Made(named(told, arrays), told["seconds"])

    def end(self) -> int:
        """Kill it and what it has started; return how it ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(KILL_S)
        return -signal.SIGKILL

    def _ask(self, frame: list[memoryview], until: float) -> tuple[dict[str, Any], list[Data]]:
        try:
            for piece in frame:
                self._channel.settimeout(max(until - time.monotonic(), 0.001))
                self._channel.sendall(piece)
            answer = read_frame(lambda into: self._some(into, until))
        except (BrokenPipeError, ConnectionError):
            answer = None
        if answer is None:
            raise _Ended(self._how_it_ended())
        return answer

    def _some(self, into: memoryview, until: float) -> int:
        """Some bytes of it. It is looked after: what it has forked may hold its channel open."""
        while (left_s := until - time.monotonic()) > 0:
            self._channel.settimeout(min(LOOK_EVERY_S, left_s))
            with suppress(TimeoutError):
                return self._channel.recv_into(into)
            if self._process.poll() is not None:
                return 0
        raise TimeoutError

    def _how_it_ended(self) -> int:
        """It has closed its channel: it is about to end, or has closed what is not its own."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(LOOK_EVERY_S)
            self.end()
            return code
        return self.end()


class Children:
    """At most so many at a time. Idle ones are used again, and end by themselves after a while."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.making = 0  # samples, each of which has a deadline
        self._changed = threading.Condition()
        self._idle: list[Child] = []
        self._refused: dict[str, tuple[float, StagerError]] = {}

    def make(self, function: Function, data: Sequence[Data], inputs: tuple[Any, ...]) -> Made:
        """One sample by this function. Raise SampleError; SourceError, if the function cannot be had."""
        with self._changed:
            self._changed.wait_for(lambda: self.making < self.most)
            self.making += 1
        try:
            try:
                return self._make(function, data, inputs)
            except _Ended as ended:
                if ended.code > 0:
                    raise _ended(ended.code) from None
            try:  # it was idle for long, or somebody else ended it, such as a kernel without memory
                return self._make(function, data, inputs)
            except _Ended as ended:
                raise _ended(ended.code) from None
        finally:
            with self._changed:
                self.making -= 1
                self._changed.notify()

    def _make(self, function: Function, data: Sequence[Data], inputs: tuple[Any, ...]) -> Made:
        child = self._take(function)
        try:
            made = child.make(data, inputs, function.deadline_s)
        except TimeoutError:
            child.end()
            raise SampleError(
                "function", f"it was not made within {function.deadline_s:g} s (deadline_s)"
            ) from None
        except SampleError:
            self._give_back(child)
            raise
        self._give_back(child)
        return made

    def _take(self, function: Function) -> Child:
        with self._changed:
            ours = [child for child in self._idle if child.told == function.told]
            if ours:
                self._idle.remove(ours[-1])
                return ours[-1]
            until, error = self._refused.get(function.told, (0.0, None))
            if error is not None and time.monotonic() < until:
                raise error
            spare = self._idle[: max(len(self._idle) + self.making - self.most, 0)]
            del self._idle[: len(spare)]
        for child in spare:
            child.end()
        try:
            return Child(function)
        except StagerError as error:
            known = error if isinstance(error, SourceError) else SourceError(error.message, hint=error.hint)
            self._refused[function.told] = time.monotonic() + REFUSED_S, known
            raise known from None

    def _give_back(self, child: Child) -> None:
        with self._changed:
            self._idle.append(child)


CHILDREN: Final = Children(len(os.sched_getaffinity(0)))  # of this process


def code_of(function: Function) -> CodeKey:
    """The key of a function as it is now, found out in a process of its own. Raise UsageError."""
    child = Child(function)
    child.end()
    return child.code


def _about(function: Function) -> dict[str, Any]:
    names = ("prepare", "folder", "args", "memory_bytes")
    return {name: getattr(function, name) for name in names}


def _refusal(function: Function, what: str) -> errors.UsageError:
    return errors.UsageError(f"{function.prepare} {what}", hint="does it work when you import it yourself?")


def _ended(code: int) -> SampleError:
    return SampleError("function", f"it ended its process ({_say_code(code)})")


def _say_code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
