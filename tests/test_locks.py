"""Who owns a cache: a service waits for a command, and nobody holds it up by a lock on what he may read."""

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from making import image_folder
from running import Place
from sets import complaint, ended, table, wait_for
from stager.reader.service import Service

NOBODY = 65534
PRIVATE = ("lock", "catalog.db", "catalog.db-wal", "catalog.db-shm")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    image_folder(tmp_path / "source", 2, 3)
    modes = {path: path.stat().st_mode for path in tmp_path.parents}
    for path, mode in modes.items():
        path.chmod(mode | 0o011)
    tmp_path.chmod(0o755)
    yield Place(tmp_path).configure(table("pets", tmp_path / "source"))
    for path, mode in modes.items():
        path.chmod(mode)


@contextmanager
def locks_of_a_member(directory: Path) -> Iterator[list[str]]:
    """A process of another user, in our group, that holds all locks it can have; yields what it opened."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            os.setgroups([])
            os.setgid(os.getgid())
            os.setuid(NOBODY)
            os.write(send, "\n".join(_lock_all(directory)).encode() + b"\0")
            signal.pause()
        finally:
            os._exit(1)
    os.close(send)
    try:
        told = b""
        while not told.endswith(b"\0"):
            part = os.read(receive, 65536)
            assert part, "the other process failed"
            told += part
        yield told[:-1].decode().split()
    finally:
        os.close(receive)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _lock_all(directory: Path) -> Iterator[str]:
    found = [Path(root, name) for root, *names in os.walk(directory) for name in [*names[0], *names[1]]]
    for path in sorted(found):
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            for lock in (fcntl.lockf, fcntl.flock):
                try:
                    lock(file, kind | fcntl.LOCK_NB)
                except OSError:
                    continue
        yield str(path.relative_to(directory))


def stage(place: Place) -> None:
    service = Service(place.socket)
    assert ended(service, service.post("/jobs", {"dataset": "pets"})["id"])["state"] == "done"


@pytest.mark.skipif(os.getuid() != 0, reason="to become another user, one must be root")
def test_a_member_of_the_group_who_holds_every_lock_he_can_have_stops_nothing(place: Place) -> None:
    with place.service():
        stage(place)
    with locks_of_a_member(place.cache) as opened:
        assert any(name.startswith("datasets/") for name in opened)  # he may read what is staged
        assert set(opened).isdisjoint(PRIVATE)
        assert place.run("verify").returncode == 0  # without a service
        with place.service() as process:
            stage(place)
            with locks_of_a_member(place.cache):
                Service(place.socket).post("/datasets/pets/evict", {})
                stage(place)
                process.kill()
                process.wait()
                with place.service():
                    stage(place)


def test_what_is_locked_is_private_also_in_a_cache_that_was_made_before(place: Place) -> None:
    with place.service():
        stage(place)
    for name in PRIVATE:
        (place.cache / name).touch()
        (place.cache / name).chmod(0o664)
    with place.service() as process:
        stage(place)
        there = {name for name in PRIVATE if (place.cache / name).exists()}
        assert there == {"lock", "catalog.db", "catalog.db-wal"}  # no shared memory that others could lock
        modes = {name: stat.S_IMODE((place.cache / name).stat().st_mode) for name in there}
        assert set(modes.values()) == {0o600}, modes
        process.kill()
        process.wait()
        with place.service():
            assert Service(place.socket).get("/status")["datasets"][0]["resident"] == 6


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[str]:
    """The endpoint of an S3 server that takes requests and never answers: a prefetch of it takes long."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_service_waits_for_a_command_and_says_for_whom(
    place: Place, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = table("pets", place.root / "source")
    tables += table("far", "s3://bucket/x", endpoint_url=silent, anonymous=True)
    place.configure(tables)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(60)
        monkeypatch.chdir(place.root)  # a socket's path holds 108 bytes
        systemd.bind("notify")
        command = place.start("prefetch", "far")
        wait_for((place.cache / "catalog.db-wal").exists)
        place.environ = {"NOTIFY_SOCKET": str(place.root / "notify")}
        with (place.root / "service.log").open("a") as log:
            process = subprocess.Popen([sys.executable, "-m", "stagerd"], env=place.env(), stderr=log)
        waits = f"waiting for process {command.pid} (stager prefetch far) to end"
        try:
            told = [systemd.recv(4096).decode() for _ in range(3)]
            assert all(f"STATUS={waits}" in message for message in told)
            assert all(message.startswith("EXTEND_TIMEOUT_USEC=") for message in told)
            assert place.log().count(waits) == 1
            assert process.poll() is None
            done = place.run("evict", "pets")  # another command is told who it is, as ever
            assert f"in use by process {command.pid} (stager prefetch far)" in complaint(done, 1)
            command.send_signal(signal.SIGINT)
            command.communicate(timeout=60)
            while "READY=1" not in told[-1]:
                told.append(systemd.recv(4096).decode())
            stage(place)
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_service_that_waits_is_stopped_at_once(place: Place, silent: str, stop: signal.Signals) -> None:
    place.configure(table("far", "s3://bucket/x", endpoint_url=silent, anonymous=True))
    command = place.start("prefetch")
    wait_for((place.cache / "catalog.db-wal").exists)
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from stagerd.__main__ import main; main()"
    with (place.root / "service.log").open("a") as log:
        process = subprocess.Popen([sys.executable, "-c", code], env=place.env(), stderr=log)
    wait_for(lambda: "waiting for process" in place.log())
    process.send_signal(stop)
    assert process.wait(30) in (0, -signal.SIGTERM)
    assert "Traceback" not in place.log()
    command.kill()
    command.communicate()


def test_a_second_service_is_refused_at_once(place: Place) -> None:
    with place.service() as first:
        place.config.write_text(place.config.read_text().replace("stager.sock", "other.sock"))
        done = place.run("serve")
        assert f"in use by process {first.pid} (service)" in complaint(done, 1)


@pytest.mark.parametrize("head_start_s", [0.0, 0.3, 0.6, 1.0])
def test_serve_and_prefetch_pasted_together_both_do_their_work(place: Place, head_start_s: float) -> None:
    with (place.root / "service.log").open("a") as log:
        process = subprocess.Popen([sys.executable, "-m", "stagerd"], env=place.env(), stderr=log)
    try:
        time.sleep(head_start_s)
        done = place.run("prefetch")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: "service ready" in place.log())
        assert process.poll() is None
        assert Service(place.socket).get("/status")["datasets"][0]["resident"] == 6
    finally:
        process.terminate()
        assert process.wait(30) == 0
