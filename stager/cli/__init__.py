"""The `stager` command: one file a verb."""

import io
import logging
import sys
from importlib import import_module

import typer

from stager.cli.app import app, show_error
from stager.errors import StagerError, UsageError, shown

TYPER_STOPPED = 130  # what typer makes of a Ctrl-C that no verb has taken
# What typer raises for a command line that makes no sense. It is click's, or that of its own copy of click.
_WrongUsage: type[Exception] = typer.BadParameter.__bases__[0]

VERBS = (
    "check",
    "serve",
    "prefetch",
    "status",
    "ls",
    "why",
    "history.heat",
    "refresh",
    "upkeep.evict",
    "upkeep.rm",
    "upkeep.verify",
    "history.simulate",
)  # in the order --help lists them


def main() -> None:
    """Run a verb; what goes wrong is two lines and an exit code, never a trace."""
    for verb in VERBS:
        import_module(f"stager.cli.{verb}")  # adds its verb to the app
    _be_quiet()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names need not be UTF-8
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="stager", standalone_mode=False)
        if code == TYPER_STOPPED:
            raise KeyboardInterrupt
        sys.exit(code)
    except StagerError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except _WrongUsage as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "stager")
        said = getattr(error, "format_message", error.__str__)()
        show_error(UsageError(" ".join(said.split()), hint=f"{where} --help"))
        sys.exit(UsageError.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None  # it was one
    except BrokenPipeError:
        sys.exit(1)  # `stager ls | head`


class _Note(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _be_quiet() -> None:
    """A verb says in its own words what happened, once; of what is logged, only workers' notes are shown."""
    logging.getLogger("stager").addHandler(logging.NullHandler())
    notes = logging.StreamHandler()
    notes.setFormatter(_Note("note: %(message)s"))
    logging.getLogger("stager.dispatch.pool").addHandler(notes)
