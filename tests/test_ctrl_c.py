"""Ctrl-C, at any moment: no trace, the promised exit code, and what is told is what is there."""

import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from making import image_folder
from running import Place
from sets import staged, table, wait_for
from stager.jobs.job import ENDED
from stager.reader.service import Service

COUNT = 1200
BEGIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from stager.__main__ import main
print("begun", flush=True)
main()
"""
MAKES_A_CLASS = """
import os, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)
class Pressed:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)
def main():
    class Made:
        attribute = Pressed()
sys.modules["stager.cli"] = types.ModuleType("stager.cli")
sys.modules["stager.cli"].main = main
from stager.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    image_folder(root, 4, COUNT // 4)
    return root


@pytest.mark.parametrize("owner", ["alone", "service"])
@pytest.mark.parametrize("after_s", [0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 2.0])
def test_ctrl_c_at_any_moment_leaves_no_trace_and_tells_what_is_there(
    after_s: float, owner: str, source: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path).configure(table("pets", source, "resize = 64\ncrop = 48"))
    with ExitStack() as stack:
        if owner == "service":
            stack.enter_context(place.service())
        command = subprocess.Popen(
            [sys.executable, "-c", BEGIN, "prefetch"],
            env=place.env(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert command.stdout is not None
        assert command.stdout.readline() == "begun\n"
        time.sleep(after_s)
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=60)
        assert "Traceback" not in told
        assert "KeyboardInterrupt" not in told
        if command.returncode == 0:  # it was quicker
            assert len(staged(place, "pets")) == COUNT
            return
        assert command.returncode == 3, told
        count = re.search(r"stopped: ([\d,]+) samples were staged and stay", told)
        if count is None:
            assert "stager: stopped" in told
        if owner == "service":
            jobs = Service(place.socket).get("/status")["jobs"]
            assert all(job["state"] in ENDED for job in jobs)  # nothing goes on behind our back
        assert len(staged(place, "pets")) == (int(count[1].replace(",", "")) if count else 0)


def test_after_a_ctrl_c_the_service_stages_nothing_more_of_it(source: Path, tmp_path: Path) -> None:
    place = Place(tmp_path).configure(table("pets", source, "resize = 64\ncrop = 48"))
    with place.service():
        service = Service(place.socket)
        command = place.start("prefetch")
        wait_for(lambda: service.get("/status")["jobs"] and service.get("/status")["jobs"][0]["staged"])
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=60)
        assert command.returncode in (0, 3), told
        here = service.get("/status")["datasets"][0]["resident"]
        reads = service.get("/stats")["datasets"]["pets"]["origin_reads"]
        time.sleep(1.0)
        assert service.get("/status")["datasets"][0]["resident"] == here
        assert service.get("/stats")["datasets"]["pets"]["origin_reads"] == reads
        again = place.json("prefetch")
        assert (again["already"], again["already"] + again["staged"]) == (here, COUNT)


def test_a_ctrl_c_while_a_class_is_being_made_leaves_no_trace_either() -> None:
    """Python 3.11 makes another error of it there, and imports make many classes."""
    done = subprocess.run([sys.executable, "-c", MAKES_A_CLASS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "stager: stopped\n")


@pytest.mark.parametrize("verb", ["ls", "status", "verify"])
def test_other_verbs_leave_no_trace_either(verb: str, tmp_path: Path) -> None:
    place = Place(tmp_path).configure(table("pets", tmp_path))
    for after_s in (0.02, 0.1, 0.3):
        command = subprocess.Popen(
            [sys.executable, "-c", BEGIN, verb],
            env=place.env(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert command.stdout is not None
        assert command.stdout.readline() == "begun\n"
        time.sleep(after_s)
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=60)
        assert "Traceback" not in told
        assert command.returncode in (0, 3, 4), told
