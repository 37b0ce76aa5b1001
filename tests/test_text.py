"""Names come from others: whatever is in them, what is printed and logged has no control characters."""

import json
import logging
from importlib import import_module
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from making import jpeg
from running import Place
from sets import table
from stager.errors import StagerError, UsageError, shown
from stager.reader.values import decode_key
from stagerd import logs

cli, ls, prefetch, why = (import_module(f"stager.cli.{name}") for name in ("app", "ls", "prefetch", "why"))
# Clears the screen, writes to the clipboard, reverses what follows, hides, begins a new line, is no UTF-8.
EVIL = "a\x1b[2J\x1b]52;c;aGk=\x07\x9b31m\u202egnp\u2066\u200e\u061c\u200b\ufeff\u2028\u2029"
EVIL += "\r\x85\x7f\tb\udcff"
names = (
    st.text(st.sampled_from(EVIL), max_size=30)
    | st.binary(max_size=30).map(decode_key)
    | st.text(max_size=30)
)


def is_clean(text: str) -> bool:
    """Whole lines of what can be seen, and nothing else."""
    return all(line.isprintable() for line in text.split("\n"))


@given(names)
@example(EVIL)
def test_a_name_is_shown_on_one_line_without_control_characters(name: str) -> None:
    assert shown(name).isprintable()
    assert not name.isprintable() or shown(name) == name


def test_a_name_can_be_told_from_another() -> None:
    assert shown("caf\udce9\x1b\u202e\U000e0001") == "caf\\udce9\\x1b\\u202e\\U000e0001"
    assert shown("Übung/猫 [1].jpg") == "Übung/猫 [1].jpg"


@settings(max_examples=100, deadline=None)
@given(name=names)
@example(name=EVIL)
def test_whatever_the_name_what_the_cli_prints_is_clean(name: str) -> None:
    with cli.err.capture() as said, cli.out.capture() as told:
        cli.show_error(StagerError(f"{name}: it is gone", hint=f"look at {name}"))
        cli.say(f"{name} and more")
        cli.print_table(["key", name], [[name, "1"], ["b", name]])
        cli.print_table(["key"], [[ls._cell("key", name)]])
        last = {"at": 0.0, "reason": name, "wait_s": 1.0}
        why._tell({"dataset": name, "index": 1, "key": name, "label": name, "why": name, "last": last})
        job = {"dataset": name, "classes": [name] * 7, "saved_as": name, "staged": 1, "already": 0}
        rest = {"failed": 0, "wanted": 1, "bytes": 1, "seconds": 1.0, "format": name, "format_why": name}
        prefetch._tell_people({**job, **rest})
    errors = said.get().splitlines()
    assert len(errors) == 2
    assert is_clean(told.get())
    assert all(line.isprintable() for line in errors)


@given(name=names)
@example(name=EVIL)
def test_an_error_has_one_clean_line_wherever_it_is_shown(name: str) -> None:
    error = UsageError(f"no class {name}", hint=f"did you mean {name}?")
    assert str(error).isprintable()
    assert error.message.isprintable()
    assert error.hint.isprintable()


@given(name=names)
@example(name=EVIL)
def test_a_log_has_one_clean_line_an_event(name: str) -> None:
    error = ValueError(name)
    record = logging.LogRecord(
        "stager", logging.INFO, "f", 1, "staged key=%s", (name,), (type(error), error, None)
    )
    for formatter in (logs._Journal("%(message)s"), logs._Line("%(asctime)s %(message)s"), logs._Json()):
        assert formatter.format(record).isprintable()
    assert json.loads(logs._Json().format(record))["event"] == f"staged key={name}"


@given(name=names)
@example(name=EVIL)
def test_json_is_exact_and_clean(name: str) -> None:
    told = cli.to_json({"key": name})
    assert told.isprintable()
    assert json.loads(told) == {"key": name}


def test_hostile_names_reach_no_terminal_and_no_log(tmp_path: Path) -> None:
    for name, data in (("good.jpg", jpeg(1)), (f"{EVIL}.jpg", jpeg(2)), (f"bad{EVIL}.jpg", b"\xff\xd8\xff")):
        path = tmp_path / "source" / EVIL / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    place = Place(tmp_path).configure(table("odd", tmp_path / "source"))
    with place.service("--log-level", "debug"):
        printed = [
            place.run("prefetch"),
            place.run("ls"),
            place.run("ls", "--failed"),
            place.run("ls", "--classes"),
            *(place.run("why", "odd", str(number)) for number in range(3)),
            place.run("why", "odd", f"{EVIL}/{EVIL}.jpg"),
            place.run("why", "odd", f"no{EVIL}such"),
            place.run("evict", "odd", "--classes", f"no{EVIL}"),
            place.run("prefetch", "--where", f"key = {EVIL!r} and {EVIL}"),
            place.run("status"),
            place.run("verify"),
            place.run("stats"),
        ]
        (row,) = place.json("ls", "--failed")
        assert row["key"] == f"{EVIL}/bad{EVIL}.jpg"
    printed += [place.run("ls", "--failed"), place.run("verify"), place.run("prefetch", "--classes", EVIL)]
    for done in printed:
        assert is_clean(done.stdout), (done.args, done.stdout)
        assert is_clean(done.stderr), (done.args, done.stderr)
        assert "Traceback" not in done.stderr
    assert any("\\x1b[2J" in done.stdout for done in printed)
    assert is_clean(place.log())
