"""What all verbs share: the app, its options, and how things are shown."""

import json
import re
import sys
from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]  # no __all__

from stager import __version__
from stager.config import Config, load_config
from stager.errors import StagerError, UsageError, nearest, shown

completion_init()  # what shells ask; `stager completion` prints what makes them ask
app = typer.Typer(
    add_completion=False,
    help="Keep a GPU fed: stage hot data from S3 and network mounts on SSD, decoded once, shared by all.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PIPE_COLUMNS = 10_000  # where nobody looks, a line is a line, however long
_PLAIN: dict[str, Any] = {"markup": False, "emoji": False}  # keys may have [brackets] and :colons:
out = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, **_PLAIN)
err = Console(width=None if sys.stderr.isatty() else PIPE_COLUMNS, stderr=True, **_PLAIN)
TEXT_COLUMNS = 8  # that a text needs at least, to be folded and still be read
BETWEEN = 2  # columns of a table
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
AllDatasetsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATASET", help="Only this data set; all, if left out.", autocompletion=complete_dataset
    ),
]


def check_staged(name: str | None, staged: Collection[str], config: Config) -> None:
    """Raise UsageError if nothing of a data set that was named is there."""
    if name is None or name in staged:
        return
    hint = f"stage it: stager prefetch {name}" if name in config.datasets else nearest(name, staged)
    raise UsageError(f"nothing of {name!r} is staged here", hint or "stage it: stager prefetch")


def say(text: str) -> None:
    """Print a line, whatever names are in it."""
    _print_line(out, text)


def say_time(at: float | None) -> str:
    """A moment for people; a dash, if there was none."""
    return "-" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def warn(text: str) -> None:
    """The same, on stderr."""
    _print_line(err, text)


def _print_line(console: Console, text: str) -> None:
    """A terminal gets it folded between words. A long word, such as a path, stays whole, to be copied."""
    told = shown(text)
    if console.is_terminal and cell_len(told) > console.width:
        indent = " " * (len(told) - len(told.lstrip()) + 2)
        told = fill(
            told, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    console.print(told, highlight=False, soft_wrap=True)


def to_json(value: Any) -> str:
    return json.dumps(value).replace("\x7f", "\\u007f")  # all else is escaped already


def print_json(value: Any) -> None:
    sys.stdout.write(to_json(value) + "\n")


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Texts to the left, numbers to the right. Where that is too wide, a row becomes lines."""
    are_numbers, widest, least = [], [], []
    for number, name in enumerate(columns):
        cells = [shown(row[number]) for row in rows]
        numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
        are_numbers.append(bool(rows) and len(numbers) == len(rows))
        widest.append(max(map(cell_len, (shown(name), *cells))))
        folded = max(map(cell_len, ("." * TEXT_COLUMNS, *numbers)))  # a number in two parts is another one
        least.append(widest[-1] if are_numbers[-1] else min(widest[-1], folded))
    room = out.width - BETWEEN * (len(columns) - 1)
    if sum(least) > room:
        _print_lines(columns, rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, is_number, width in zip(columns, are_numbers, _widths(least, widest, room), strict=True):
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(shown(name), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(shown, row))
    out.print(table)


def _widths(least: Sequence[int], widest: Sequence[int], room: int) -> list[int]:
    """Of a table's columns: what is left over the least goes to those that want more, small wishes first.

    rich would take from columns that may not be folded, and cut off what is beyond the edge.
    """
    widths, spare = list(least), room - sum(least)
    order = sorted(range(len(least)), key=lambda at: widest[at] - least[at])
    for rank, at in enumerate(order):
        more = min(widest[at] - least[at], spare // (len(order) - rank))
        widths[at] += more
        spare -= more
    return widths


def _print_lines(columns: list[str], rows: list[list[str]]) -> None:
    width = max(map(len, columns))
    for row in rows:
        for name, cell in zip(columns, row, strict=True):
            say(f"{name:<{width}}  {cell}")
        say("")


def show_error(error: StagerError) -> None:
    warn(f"stager: {error.message}")
    if error.hint:
        warn(f"  try: {error.hint}")


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


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print what makes a shell complete verbs, options and names of data sets.

    stager completion bash >> ~/.bashrc

    stager completion zsh >> ~/.zshrc

    stager completion fish > ~/.config/fish/completions/stager.fish
    """
    shell_complete(typer.main.get_command(app), {}, "stager", "_STAGER_COMPLETE", f"source_{shell}")
