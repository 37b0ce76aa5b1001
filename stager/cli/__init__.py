"""The `stager` command: one file a verb."""

import sys
from importlib import import_module

from stager.cli.app import app, show_error
from stager.errors import StagerError

VERBS = ("serve", "prefetch", "status", "ls", "evict", "verify")  # in the order --help lists them


def main() -> None:
    """Run a verb; an error of ours is two lines and an exit code, never a trace."""
    for verb in VERBS:
        import_module(f"stager.cli.{verb}")  # adds its verb to the app
    try:
        app(prog_name="stager")
    except StagerError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)  # `stager ls | head`
