"""The `stager` command: one file a verb."""

import sys

from stager.cli.app import app, show_error
from stager.errors import StagerError


def main() -> None:
    """Run a verb; an error of ours is two lines and an exit code, never a trace."""
    from stager.cli import evict, ls, prefetch, serve, status, verify  # noqa: F401  (each adds its verb)

    try:
        app(prog_name="stager")
    except StagerError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)  # `stager ls | head`
