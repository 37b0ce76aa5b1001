"""Real processes for end-to-end tests: the service, and commands that talk to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import prepared
from stager.errors import NoService
from stager.reader.service import Service

START_S = 60.0


@dataclass(slots=True)
class Place:
    """A config, its cache and its socket, in a directory of its own."""

    root: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.root / "stager.toml"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def socket(self) -> Path:
        return self.root / "stager.sock"

    def configure(
        self, datasets: str, capacity: str = "2GB", reserve: str = "1MB", memory: str = "256MB"
    ) -> "Place":
        """Write stager.toml with these tables of data sets."""
        cache = {"dir": self.cache, "capacity": capacity, "reserve": reserve, "memory": memory}
        lines = "".join(f'{key} = "{value}"\n' for key, value in cache.items())
        self.config.write_text(f'[cache]\n{lines}[service]\nsocket = "{self.socket}"\n{datasets}')
        return self

    def env(self) -> dict[str, str]:
        own = {"STAGER_CONFIG": str(self.config), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        return {**os.environ, **self.environ, **own}

    def run(self, *arguments: str, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run `stager` with these arguments."""
        return prepared.run("stager", arguments, self.env(), timeout_s)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `stager` as from a terminal, and do not wait for it."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return prepared.Forked("stager", arguments, self.env(), **pipes)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run `stager` with --json, expect an exit code, and return what it printed."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def python(
        self, code: str, *arguments: str, timeout_s: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Run a Python program in this place."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", code, *arguments],
            env=self.env(), capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def start_service(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start stagerd and return once it answers."""
        with (self.root / "service.log").open("a") as log:
            process = prepared.Forked("stagerd", arguments, self.env(), stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                if Service(self.socket).get("/status", 5)["service"]["pid"] == process.pid:
                    return process
            except NoService:
                if process.poll() is not None:
                    break
            time.sleep(0.05)
        process.kill()
        raise AssertionError(f"the service did not start:\n{self.log()}")

    @contextmanager
    def service(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """The service for the time of a test; at the end it stops as systemd would stop it."""
        process = self.start_service(*arguments)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)

    def log(self) -> str:
        return (self.root / "service.log").read_text()

    def leftovers(self) -> list[Path]:
        """Scratch files: there should be none."""
        return list((self.cache / "scratch").iterdir())
