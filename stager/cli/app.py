"""What all verbs share: the app, its options, and how things are shown."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from stager import __version__
from stager.config import load_config
from stager.errors import StagerError, shown

app = typer.Typer(
    help="Keep a GPU fed: stage hot data from S3 and network mounts on SSD, decoded once, shared by all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PIPE_COLUMNS = 10_000  # where nobody looks, a line is a line, however long
_PLAIN: dict[str, Any] = {"markup": False, "emoji": False}  # keys may have [brackets] and :colons:
out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, **_PLAIN)
err = Console(width=None if sys.stderr.isatty() else PIPE_COLUMNS, stderr=True, **_PLAIN)
_NUMBER = re.compile(r"-|[\d,.]+(%|/s| \w+)?")  # 1,500 or 99.5% or 12 MB; not 0e5f, which is a name


def complete_dataset(incomplete: str) -> list[str]:
    """Names of data sets for the shell's completion."""
    try:
        return [name for name in load_config().datasets if name.startswith(incomplete)]
    except StagerError:
        return []


ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="stager.toml to use, instead of the usual places.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
DatasetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATASET",
        help="A data set of stager.toml; may be left out if there is only one.",
        autocompletion=complete_dataset,
    ),
]


def say(text: str) -> None:
    """Print a line, whatever names are in it."""
    out.print(shown(text), highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """The same, on stderr."""
    err.print(shown(text), highlight=False, soft_wrap=True)


def to_json(value: Any) -> str:
    return json.dumps(value).replace("\x7f", "\\u007f")  # all else is escaped already


def print_json(value: Any) -> None:
    sys.stdout.write(to_json(value) + "\n")


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Texts to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        is_number = bool(rows) and all(_NUMBER.fullmatch(row[number]) for row in rows)
        table.add_column(shown(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(shown, row))
    out.print(table)


def show_error(error: StagerError) -> None:
    _to_stderr(shown(f"stager: {error.message}"))
    if error.hint:
        _to_stderr(shown(f"  try: {error.hint}"))


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _version(asked: bool) -> None:
    if asked:
        print(f"stager {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
