"""What the demo says and runs, step by step."""

import signal
import subprocess
import sys
from itertools import count
from typing import Final

STEPS: Final = count(1)


def tell(text: str) -> None:
    """Begin a step."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    say(f"\n{bold}{next(STEPS)}. {text}{plain}")


def say(text: str) -> None:
    print(text, flush=True)


def run(*command: str) -> None:
    """Show a command and run it on this terminal."""
    say(f"$ {' '.join(command)}")
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"demo: exit code {done.returncode}; the service's log is .demo/service.log")


def ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
