"""What every verb has: help with examples, data sets by name, tables that fit, completion in a shell."""

import importlib
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from making import image_folder, jpeg
from running import Place
from sets import table
from stager.cli import VERBS

cli = importlib.import_module("stager.cli.app")
for verb in VERBS:
    importlib.import_module(f"stager.cli.{verb}")
COMMANDS: dict[str, Any] = vars(typer.main.get_command(cli.app))["commands"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_has_examples_that_can_be_pasted(verb: str) -> None:
    lines = (COMMANDS[verb].help or "").splitlines()
    examples = [line.strip() for line in lines if line.strip().startswith("stager ")]
    assert examples
    for example in examples:
        _, named, *arguments = shlex.split(example.partition(">")[0])
        assert named == verb
        COMMANDS[verb].make_context(verb, arguments)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("verbs"))
    image_folder(place.root / "source", 2, 3)
    (place.root / "source/class000/broken.jpg").write_bytes(jpeg(1)[:200])
    names = ("cats", "dogs", "never")
    place.configure("".join(table(name, place.root / "source") for name in names))
    for name in names[:2]:
        place.json("prefetch", name, code=3)
    return place


@pytest.mark.parametrize("look", [("ls", "--failed"), ("verify",)])
def test_a_data_set_that_is_not_there_is_an_error_with_a_way_out(place: Place, look: tuple[str, ...]) -> None:
    done = place.run(*look, "cat")
    assert done.returncode == 2
    assert done.stderr == "stager: nothing of 'cat' is staged here\n  try: did you mean 'cats'?\n"


def test_a_data_set_of_the_config_that_is_not_staged_says_how_it_is(place: Place) -> None:
    assert "try: stage it: stager prefetch never" in place.run("ls", "never").stderr


def test_stats_and_verify_take_one_data_set(place: Place) -> None:
    assert list(place.json("stats", "dogs")["datasets"]) == ["dogs"]
    (path,) = (place.cache / "datasets/cats/shards").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    strange = path.with_name("ffff.arrow")
    try:
        with place.service():
            strange.write_bytes(b"")
            assert place.json("verify", "dogs") | {"bytes": 0} == {
                "shards": 1, "samples": 6, "bytes": 0, "bad": [], "problems": [], "repaired": []
            }  # fmt: skip
            told = place.json("verify", "cats", code=1)
            assert [row["dataset"] for row in told["bad"]] == ["cats"]
            assert told["problems"] == [f"{strange}: not recorded"]
    finally:
        path.write_bytes(whole)
        strange.unlink(missing_ok=True)


CELLS = st.text(st.sampled_from("ab中é \x1b"), min_size=1, max_size=30) | st.integers(0, 10**9).map(
    "{:,}".format
)


@given(st.integers(20, 120), st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4))
def test_a_table_fits_the_terminal_and_loses_no_number(width: int, rows: list[list[str]]) -> None:
    console = Console(width=width, markup=False, emoji=False, force_terminal=False)
    with pytest.MonkeyPatch.context() as patch, console.capture() as told:
        patch.setattr(cli, "out", console)
        cli.print_table(["data set", "samples", "size", "reason"], rows)
    lines = told.get().splitlines()
    for row in rows:
        for cell in row:
            if cell.replace(",", "").isdigit():
                assert any(cell in line for line in lines)
    if "samples" in lines[0]:  # a table, and not lines
        assert all(cell_len(line) <= width for line in lines)


def test_at_40_columns_a_row_is_lines_of_name_and_value(place: Place) -> None:
    terminal, its_other_end = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "stager", "ls", "cats"],
        env={**place.env(), "COLUMNS": "40", "TERM": "xterm"}, stdout=its_other_end, timeout=60, check=True,
    )  # fmt: skip
    os.close(its_other_end)
    with os.fdopen(terminal, newline="") as screen:
        assert [screen.readline().rstrip() for _ in range(3)] == [
            "data set  cats",
            "samples   7",
            "resident  6",
        ]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=9), st.integers(0, 300)
)
def test_columns_of_a_table_take_the_room_there_is_and_no_more(
    columns: list[tuple[int, int]], spare: int
) -> None:
    least, widest = [few for few, _ in columns], [few + more for few, more in columns]
    room = sum(least) + spare
    widths = cli._widths(least, widest, room)
    assert all(few <= width <= most for few, width, most in zip(least, widths, widest, strict=True))
    assert sum(widths) == min(room, sum(widest)) or sum(widest) > room >= sum(widths) > room - len(columns)


def test_at_80_columns_no_number_is_cut_off() -> None:
    console = Console(width=80, markup=False, emoji=False, force_terminal=False)
    heads = ["data set", "requests", "hits", "misses", "hit rate", "waited", "origin reads", "origin bytes"]
    with pytest.MonkeyPatch.context() as patch, console.capture() as told:
        patch.setattr(cli, "out", console)
        cli.print_table(heads, [["photos-9264ed", "0", "0", "0", "-", "0.0 s", "60", "7.6 MB"]])
    head, row, *_ = told.get().splitlines()
    assert (head[-12:], row[-6:]) == ("origin bytes", "7.6 MB")


@given(st.integers(20, 120), st.lists(st.text("ab/", min_size=1, max_size=60), min_size=1, max_size=8))
def test_on_a_terminal_a_line_is_folded_between_words_and_a_path_stays_whole(
    width: int, words: list[str]
) -> None:
    console = Console(width=width, markup=False, emoji=False, force_terminal=True, color_system=None)
    with pytest.MonkeyPatch.context() as patch, console.capture() as told:
        patch.setattr(cli, "out", console)
        cli.say(" ".join(words))
    lines = told.get().splitlines()
    assert [word for line in lines for word in line.split()] == words
    assert all(len(line.rstrip()) <= width or " " not in line.strip() for line in lines)


def test_the_bar_says_how_far_how_fast_how_much_and_how_long() -> None:
    say_progress = importlib.import_module("stager.cli.prefetch")._say_progress
    job = {"wanted": 1200, "rate": 127.3, "bytes": 4_800_000, "eta_s": 8.4}
    assert say_progress(job, 145) == "145/1,200, 127/s, 4.8 MB, 8.4 s left"
    assert say_progress(job | {"rate": 0.0, "bytes": 0, "eta_s": None}, 0) == "0/1,200, 0/s"


def test_bash_completes_verbs_options_and_data_sets(place: Place, tmp_path: Path) -> None:
    (tmp_path / "stager").symlink_to(Path(sys.executable).with_name("stager"))
    words = ("stager pre", "stager ls --fai", "stager stats do")
    ask = "COMP_WORDS=({}); COMP_CWORD={}; _stager_completion stager; echo ${{COMPREPLY[*]}}"
    lines = "\n".join(ask.format(line, line.count(" ")) for line in words)
    done = subprocess.run(
        ["bash", "-c", f'eval "$(stager completion bash)"\n{lines}'],
        env={**place.env(), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["prefetch", "--failed", "dogs"]
