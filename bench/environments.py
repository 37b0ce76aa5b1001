"""The environments of the peers: each has its own in .bench/envs, made once and used again.

torch is 870 MB, so those that need it share one copy: a .pth file in a peer's environment names the packages
of the environment `torch`. What a peer installs itself comes first on its path.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.process import run_group

ROOT: Final = Path(__file__).resolve().parent.parent
BENCH: Final = ROOT / ".bench"
ENVS: Final = BENCH / "envs"
INSTALL_S: Final = 1200.0
PILLOW: Final = ("pillow",)


@dataclass(frozen=True, slots=True)
class Peer:
    """What a peer is made of."""

    name: str
    title: str
    packages: tuple[str, ...]
    debian: tuple[str, ...] = ()
    needs_torch: bool = True
    build_packages: tuple[str, ...] = ()  # for a package whose own build asks for what is already there

    @property
    def module(self) -> str:
        """What runs it."""
        return f"bench.peers.{self.name}"


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer("ffcv", "FFCV", ("ffcv", "numba", "opencv-python-headless", *PILLOW),
             debian=("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++", "python3-dev"),
             build_packages=("setuptools<80", "wheel", "pkgconfig")),
        Peer("streaming", "MosaicML Streaming", ("mosaicml-streaming", *PILLOW)),
        Peer("litdata", "LitData", ("litdata", "obstore", *PILLOW)),
        Peer("webdataset", "WebDataset", ("webdataset", *PILLOW)),
        Peer("datasets", "HF datasets", ("datasets", *PILLOW)),
        Peer("tensorstore", "TensorStore", ("tensorstore", "zarr", "obstore")),
        Peer("s3torchconnector", "s3torchconnector", ("s3torchconnector", *PILLOW)),
        # stager's own client runs in this one too, so it has what a reader needs.
        Peer("tensorflow", "tf.data", ("tensorflow-cpu", "pyarrow", "lmdb", "xxhash", *PILLOW),
             needs_torch=False),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is ready, or why it is not."""

    peer: Peer
    problem: str = ""
    version: str = ""

    @property
    def python(self) -> Path:
        return ENVS / self.peer.name / "bin" / "python"


def existing(peer: Peer) -> Environment | None:
    """The peer's environment if it was made before, by the same recipe."""
    stamp = ENVS / peer.name / "made"
    if not stamp.exists() or stamp.read_text().partition("\n")[0] != _recipe(peer):
        return None
    return Environment(peer, version=stamp.read_text().partition("\n")[2].strip())


def make(peer: Peer) -> Environment:
    """Make the peer's environment, or use the one that is there. A failure is told, never raised."""
    ready = existing(peer)
    if ready is not None:
        return ready
    print(f"bench: {peer.name}: installing, once", file=sys.stderr, flush=True)
    try:
        version = _install(peer)
    except InstallFailed as error:
        return Environment(peer, problem=str(error))
    (ENVS / peer.name / "made").write_text(f"{_recipe(peer)}\n{version}\n")
    return Environment(peer, version=version)


class InstallFailed(Exception):
    """An installation ended with an error; the text is its last words."""


def _recipe(peer: Peer) -> str:
    return repr((sys.version_info[:2], str(ENVS), peer.packages, _torch_pin()))


def _torch_pin() -> str:
    """torch as constraints.txt has it: a looser pin takes gigabytes of CUDA. The rest is up to the peer."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _install(peer: Peer) -> str:
    packages = _fresh(peer.name)
    if peer.needs_torch:
        torch = _shared_torch()
        (packages / "shared-torch.pth").write_text(f"{torch}\n")
    if peer.debian:
        _debian(peer.debian)
    if peer.build_packages:
        _pip(peer.name, *peer.build_packages)
    isolation = ("--no-build-isolation",) if peer.build_packages else ()
    _pip(peer.name, *isolation, *peer.packages)
    question = [
        str(ENVS / peer.name / "bin/python"),
        "-m",
        peer.module,
        '{"verb": "version"}',
    ]
    return str(json.loads(_call(question, 120).strip().splitlines()[-1])["version"])


def _shared_torch() -> Path:
    """Where torch is for all of them."""
    packages = _packages("torch")
    stamp = ENVS / "torch" / "made"
    pin = _torch_pin()
    if not stamp.exists() or stamp.read_text() != pin:
        packages = _fresh("torch")
        _pip("torch", "torch", "numpy")
        stamp.write_text(pin)
    return packages


def _fresh(name: str) -> Path:
    shutil.rmtree(ENVS / name, ignore_errors=True)
    ENVS.mkdir(parents=True, exist_ok=True)
    _call([sys.executable, "-m", "venv", str(ENVS / name)], 120)
    return _packages(name)


def _packages(name: str) -> Path:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return ENVS / name / "lib" / python / "site-packages"


def _pip(name: str, *arguments: str) -> None:
    pins = ENVS / "torch-pin.txt"
    pins.write_text(_torch_pin() + "\n")
    quiet = ["-q", "--disable-pip-version-check", "--no-input", "-c", str(pins)]
    _call([str(ENVS / name / "bin/python"), "-m", "pip", "install", *quiet, *arguments], INSTALL_S)


def _debian(packages: Sequence[str]) -> None:
    """Install what Debian has, where we may; what is missing then shows in the build."""
    if os.getuid() != 0 or not shutil.which("apt-get"):
        return
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Status}\n", *packages], capture_output=True, text=True, check=False
    )
    if status.returncode == 0 and status.stdout.count("ok installed") == len(packages):
        return
    install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        _call(install, INSTALL_S, environ)
    except InstallFailed:
        _call(["apt-get", "update", "-qq"], INSTALL_S, environ)
        _call(install, INSTALL_S, environ)


def _call(command: list[str], deadline_s: float, environ: dict[str, str] | None = None) -> str:
    done = run_group(command, deadline_s, env=environ or dict(os.environ), cwd=ROOT)
    if done.problem:
        raise InstallFailed(f"{Path(command[0]).name} {' '.join(command[1:4])}: {done.problem}")
    return done.stdout
