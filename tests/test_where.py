"""What --where costs: every expression has a bound, and nobody's expression holds up the service."""

import json
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from making import image_folder, manifest_of
from running import Place
from sets import ended, table, wait_for
from stager.errors import NoService, UsageError
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.predicate import COMPARISONS_MAX, LENGTH_MAX, LIKES_MAX, TOKENS_MAX, parse, select
from stager.reader.service import Service
from test_api import ask, is_our_error, opened

# The service, but working out a subset ends it: as an expression did that held the loop beyond its watchdog.
DEADLY = """
import os, signal
import stager.jobs.groundwork
stager.jobs.groundwork.draw = lambda manifest, subset: os.kill(os.getpid(), signal.SIGKILL)
from stagerd.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return manifest_of(tmp_path_factory.mktemp("manifest") / "m", [f"c{n % 7}/{n}.jpg" for n in range(70)])


TOO_MUCH = {
    "long": f"key = '{'x' * LENGTH_MAX}'",
    "blank": " " * (LENGTH_MAX + 1),
    "tokens": f"label in ({', '.join('1' for _ in range(TOKENS_MAX))})",
    "comparisons": " or ".join(f"size = {n}" for n in range(COMPARISONS_MAX + 1)),
    "likes": " or ".join("key like '%a%b'" for _ in range(LIKES_MAX + 1)),
    "pattern": f"key like '{'%a' * 2000}'",
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_where_has_a_bound_and_a_short_message(name: str, manifest: Manifest) -> None:
    for act in (parse, lambda text: select(manifest, text)):
        with pytest.raises(UsageError, match="--where") as caught:
            act(TOO_MUCH[name])
        assert len(caught.value.message) < 500
        assert caught.value.hint


def test_what_is_just_within_the_bounds_is_selected(manifest: Manifest) -> None:
    values = ", ".join(str(n) for n in range((TOKENS_MAX - 4) // 2))
    assert select(manifest, f"label in ({values})").all()
    assert select(manifest, " or ".join(f"label = {n}" for n in range(COMPARISONS_MAX))).all()
    assert not select(manifest, " and ".join("key like '%a%b'" for _ in range(LIKES_MAX))).any()


class Counted(str):
    """A text that counts the characters that were copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> str:
        part = super().__getitem__(key)
        self.copied += len(part)
        return part


def test_an_expression_is_read_once_from_left_to_right(manifest: Manifest) -> None:
    """A copy of the rest at each word held the service for a minute."""
    expression = Counted(f"label in ({', '.join('1' for _ in range(2000))})")
    parse(expression)
    assert expression.copied <= len(expression)


def test_a_name_of_digits_is_compared_as_it_is_written(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["007/a.jpg", "7/a.jpg", "10KB/a.jpg"])
    assert [int(select(manifest, f"class = {name}").sum()) for name in ("007", "7", "10KB", "10000")] == [
        1,
        1,
        1,
        0,
    ]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), max_size=20), st.sampled_from(["=", "like", "in", "<"]))
def test_any_text_is_compared_or_refused(manifest: Manifest, text: str, sign: str) -> None:
    quoted = json.dumps(text.replace('"', ""), ensure_ascii=False)
    with suppress(UsageError):
        select(manifest, f"key {sign} ({quoted})" if sign == "in" else f"key {sign} {quoted}")


def test_a_key_that_is_no_utf8_is_found_and_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    manifest = manifest_of(tmp_path / "m", ["a/\udcff.jpg", "a/b.jpg"])
    assert select(manifest, "key = 'a/\udcff.jpg'").sum() == 1
    assert select(manifest, "key in ('a/\udcff.jpg', 'a/b.jpg')").sum() == 2
    for wrong in ("key = '\ud800'", "key like '\ud800'", "key like '%\udcff'", "class in ('\ud800')"):
        with pytest.raises(UsageError, match="--where"):
            select(manifest, wrong)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    image_folder(tmp_path / "source", 2, 3)
    return Place(tmp_path).configure(table("pets", tmp_path / "source"))


@pytest.mark.parametrize("name", ["long", "tokens", "likes"])
def test_the_service_refuses_such_an_expression_before_its_loop_hears_of_it(name: str, place: Place) -> None:
    with place.service():
        service = Service(place.socket)
        ended(service, service.post("/jobs", {"dataset": "pets"})["id"])
        subset = {"where": TOO_MUCH[name]}
        order = {
            "recipe": "", "lineage": "", "session": "s", "manifest": "", "subset": subset,
            "shuffle": True, "seed": 1, "epoch": 0, "rank": 0, "world_size": 1, "drop_last": False,
            "length": 6, "start": 0,
        }  # fmt: skip
        bodies: list[tuple[str, Any]] = [
            ("/v1/jobs", {"dataset": "pets", "subset": subset}),
            ("/v1/datasets/pets/evict", subset),
            ("/v1/datasets/pets/pin", {"subset": subset}),
            ("/v1/datasets/pets/sessions", opened(service, order)),
        ]
        for path, body in bodies:
            status, answer = ask(place.socket, "POST", path, json.dumps(body).encode())
            assert status == 400, (path, status, answer)
            assert is_our_error(answer)
            assert "--where" in answer["message"]
        assert len(service.get("/status")["jobs"]) == 1


def test_a_job_that_ended_the_service_twice_is_given_up_and_the_service_starts(place: Place) -> None:
    def start() -> "subprocess.Popen[bytes]":
        with (place.root / "service.log").open("a") as log:
            return subprocess.Popen([sys.executable, "-c", DEADLY], env=place.env(), stderr=log)

    service = Service(place.socket)

    def is_up(process: "subprocess.Popen[bytes]") -> bool:
        assert process.poll() is None, place.log()
        try:
            return bool(service.get("/status", 5)["service"]["pid"] == process.pid)
        except NoService:
            return False

    first = start()
    wait_for(lambda: is_up(first))
    number = service.post("/jobs", {"dataset": "pets"})["id"]
    assert first.wait(60) == -9
    assert start().wait(60) == -9  # it takes the job up again, once
    third = start()
    try:
        wait_for(lambda: is_up(third))
        job = service.get(f"/jobs/{number}")
        assert job["state"] == "failed"
        assert re.search("crashed the service", job["error"]["message"])
        assert job["error"]["hint"]
    finally:
        third.terminate()
        third.wait(30)
    with place.service():  # and it is not taken up later, either
        assert service.get(f"/jobs/{number}")["state"] == "failed"
        again = service.post("/jobs", {"dataset": "pets"})["id"]
        assert ended(service, again)["staged"] == 6


def test_kills_before_and_after_it_is_worked_out_do_not_count_against_a_job(place: Place) -> None:
    """The source takes the request for its listing and never answers: the job stays in its scan."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place.configure(table("hung", "s3://bucket/x", endpoint_url=endpoint, anonymous=True))
        process = place.start_service()
        service = Service(place.socket)
        number = service.post("/jobs", {"dataset": "hung"})["id"]
        for _ in range(4):
            process.kill()
            process.wait()
            process = place.start_service()
            assert service.get(f"/jobs/{number}")["state"] == "scanning"
        process.terminate()
        process.wait(30)
