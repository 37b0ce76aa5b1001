"""The service takes a changed config while it runs: real processes, real signals."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest

from making import image_folder
from running import Place
from sets import table, wait_for
from stager.errors import UsageError
from stager.reader.service import Service


@pytest.fixture
def place(tmp_path: Path) -> Place:
    image_folder(tmp_path / "cats", 3, 4)
    return Place(tmp_path).configure(table("cats", tmp_path / "cats"))


def _reload(place: Place, process: "subprocess.Popen[str]") -> str:
    """Send SIGHUP, and wait until the log has one more line about it; return that line."""
    before = _told(place)
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(_told(place)) > len(before))
    return _told(place)[-1]


def _told(place: Place) -> list[str]:
    return [line for line in place.log().splitlines() if "reloaded" in line]


def test_a_data_set_and_a_capacity_come_without_a_restart(place: Place, tmp_path: Path) -> None:
    with place.service() as process:
        service = Service(place.socket)
        with pytest.raises(UsageError, match="no data set 'dogs'"):
            service.post("/jobs", {"dataset": "dogs"})
        image_folder(tmp_path / "dogs", 2, 4)
        both = table("cats", tmp_path / "cats") + table("dogs", tmp_path / "dogs")
        place.configure(both, capacity="3GB")
        assert "added=dogs changed=- removed=-" in _reload(place, process)
        assert place.run("prefetch", "dogs").returncode == 0
        assert service.get("/status")["service"]["pid"] == process.pid
        assert service.get("/status")["budget"]["capacity_bytes"] == 3 * 10**9


def test_a_config_with_an_error_is_refused_whole_and_the_one_before_stays(place: Place) -> None:
    with place.service() as process:
        good = place.config.read_text()
        place.config.write_text(good.replace("capacity", "capcity"))
        told = _reload(place, process)
        assert "config not reloaded" in told
        assert "unknown key cache.capcity" in told
        assert "did you mean 'capacity'" in told
        place.config.write_text(good)
        assert place.run("prefetch", "cats").returncode == 0
        assert Service(place.socket).get("/status")["budget"]["capacity_bytes"] == 2 * 10**9


def test_what_needs_a_restart_stays_and_is_told(place: Place, tmp_path: Path) -> None:
    with place.service() as process:
        text = place.config.read_text()
        place.config.write_text(text.replace(str(place.cache), str(tmp_path / "other")))
        assert "config reloaded" in _reload(place, process)
        assert f"cache.dir stays {place.cache} until a restart" in place.log()
        place.config.write_text(text)
        assert place.run("prefetch", "cats").returncode == 0
        assert not (tmp_path / "other").exists()


def test_systemd_hears_when_a_reload_begins_and_when_it_is_done(place: Place, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        heard: list[bytes] = []

        def hear(until: bytes) -> None:
            while not any(until in told for told in heard):
                heard.append(systemd.recv(4096))

        with Place(place.root, {"NOTIFY_SOCKET": str(tmp_path / "notify")}).service() as process:
            hear(b"READY=1")
            heard.clear()
            process.send_signal(signal.SIGHUP)
            hear(b"RELOADING=1\nMONOTONIC_USEC=")
            hear(b"READY=1")
            assert [told for told in heard if told[:1] == b"R"][1] == b"READY=1"
