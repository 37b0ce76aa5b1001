"""Where cache, socket and config are if nobody said so: on any machine, for any user, in any locale."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stager.cache.start.lock import lock_cache
from stager.errors import ConfigError, StagerError, UsageError
from stager.reader.places import default_cache_dir, default_socket
from stager.reader.service import Service
from stager.reader.settings import load_settings

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def told_as(user: int, call: Callable[[], object]) -> str:
    """The error and the hint that another user gets. It forks, since that user may not run our Python."""
    told, told_by = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            call()
        except StagerError as error:
            os.write(told_by, f"{error.message}; {error.hint}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(told_by)
    with os.fdopen(told) as lines:
        return lines.read()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a home directory and nothing else."""
    base = Path(tempfile.gettempdir())
    for directory in (tmp_path, *tmp_path.parents):
        if base in directory.parents:
            directory.chmod(0o755)  # pytest makes them for one user
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "STAGER_CONFIG", "STAGER_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_cache_is_where_the_user_keeps_caches(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_cache_dir() == home / ".cache/stager"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "nvme"))
    assert default_cache_dir() == home / "nvme/stager"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # the standard says: ignore it
    assert default_cache_dir() == home / ".cache/stager"


def test_the_socket_is_in_a_runtime_directory_of_ones_own_or_beside_what_is_staged(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    assert default_socket(home / "cache") == home / "stager/stager.sock"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # after `su`, the variable is still the other's
    assert default_socket(home / "cache") == home / "cache/stager.sock"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_socket(home / "cache") == Path("/run/stager/stager.sock")


def test_a_config_is_utf_8_whatever_the_locale(home: Path) -> None:
    (home / "dogs/dackel").mkdir(parents=True)
    text = '[datasets.dogs] # hübsche\nsource = "dogs"\n'
    (home / "stager.toml").write_bytes(text.encode("utf-8-sig"))  # as Windows' editor does
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "stager", "prefetch", "dogs"],
        env={**os.environ, **ascii_only}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "dogs: nothing is there" in done.stderr
    (home / "stager.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="can't decode") as raised:
        load_settings()
    assert raised.value.hint == "save it as UTF-8"


def test_a_user_without_a_home_is_asked_for_a_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    with pytest.raises(UsageError, match="no such home directory") as raised:
        load_settings()
    assert "XDG_CACHE_HOME" in raised.value.hint
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert load_settings().cache_dir == home / "stager"


@as_root
def test_a_home_that_cannot_be_written_to_is_told_with_a_way_out(home: Path) -> None:
    told = told_as(NOBODY, lambda: lock_cache(home / "nothing/.cache/stager", "a command"))
    assert told.startswith(f"{home}/nothing/.cache/stager cannot be used as a cache: Permission denied; ")
    assert "name a directory on a writable disk in $XDG_CACHE_HOME, or in [cache] dir" in told
    os.close(lock_cache(home / "cache", "a command"))
    (home / "cache").chmod(0o700)
    told = told_as(NOBODY, lambda: lock_cache(home / "cache", "a command"))
    assert "Permission denied; it is for root alone: set [cache] dir and [service] socket" in told


@as_root
def test_a_home_of_somebody_else_is_told_with_a_way_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = home / "others"  # as after `sudo -u`, which may leave HOME as it is
    (others / ".config/stager").mkdir(parents=True)
    (others / ".config/stager/stager.toml").touch()
    others.chmod(0o700)
    monkeypatch.setenv("HOME", str(others))
    told = told_as(NOBODY, lambda: lock_cache(load_settings().cache_dir, "a command"))
    assert told.startswith(f"{others}/.cache/stager cannot be used as a cache: Permission denied; ")
    assert "set [cache] dir and [service] socket to paths of your own" in told
    told = told_as(NOBODY, lambda: load_settings(others / ".config/stager/stager.toml"))
    assert "stager.toml: there is no such file" in told


@as_root
def test_a_service_of_roots_tells_how_others_join(home: Path) -> None:
    (home / "run").mkdir()
    (home / "stager.toml").write_text(f'[cache]\ndir = "{home}/cache"\n[service]\nsocket = "{home}/run/s"\n')
    with subprocess.Popen(
        [sys.executable, "-m", "stagerd"], cwd=home, stderr=subprocess.PIPE, text=True
    ) as service:
        try:
            assert service.stderr is not None
            told = [service.stderr.readline() for _ in range(2)]
            assert "only root can use this service hint='for other users: systemd/README.md'" in told[1]
            call = partial(Service(home / "run/s").get, "/status")
            told = told_as(NOBODY, call)
            assert told.startswith(f"you may not use the service at {home}/run/s; it is for root alone: ")
            os.chown(home / "run/s", 0, NOBODY)
            assert "; join its group: usermod -aG nogroup USER" in told_as(1234, call)
        finally:
            service.send_signal(signal.SIGTERM)


def test_a_socket_that_a_crash_left_beside_the_cache_is_no_stranger(tmp_path: Path) -> None:
    os.close(lock_cache(tmp_path / "cache", "a command"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "cache/stager.sock"))
    (tmp_path / "cache/CACHE").write_bytes(b"")
    os.close(lock_cache(tmp_path / "cache", "a command"))
