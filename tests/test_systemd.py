"""The files in systemd/: what systemd's own tools say of them, and that they agree with stager."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stager import config
from stager.config import load_config

ROOT = Path(__file__).parent.parent
SYSTEMD = ROOT / "systemd"
EXPOSURE_MAX = 15  # tenths, as systemd-analyze counts: plain units have 96
UNITS = ["stager.service", "stager-user.service"]


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


def need(tool: str) -> str:
    """The tool's path. On CI its absence is a failure, since a skip would hide that nothing was checked."""
    path = shutil.which(tool)
    if path is None:
        message = f"{tool} is not here (Debian: apt-get install systemd)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


def settings(unit: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SYSTEMD / unit)
    return parser["Service"]


def verify(unit: str, text: str, tmp_path: Path) -> str:
    """All that `systemd-analyze verify` prints. It exits 0 for a key it does not know."""
    path = tmp_path / unit
    # The program is not installed here, and verify wants one that is.
    path.write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text))
    manager = ("--user",) if "user" in unit else ("--system",)
    result = run(
        need("systemd-analyze"), "verify", "--man=no", *manager, str(path), XDG_RUNTIME_DIR=str(tmp_path)
    )
    return result.stdout + result.stderr


def test_exposure_is_low() -> None:
    unit = SYSTEMD / "stager.service"
    result = run(
        need("systemd-analyze"),
        *("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)),
        SYSTEMD_COLORS="0",
    )
    wrong = "\n".join(line for line in result.stdout.splitlines() if line.startswith(("✗", "→")))
    assert result.returncode == 0, wrong + result.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_verify_is_silent(unit: str, tmp_path: Path) -> None:
    assert verify(unit, (SYSTEMD / unit).read_text(), tmp_path) == ""


@pytest.mark.parametrize("unit", UNITS)
def test_verify_would_speak_up(unit: str, tmp_path: Path) -> None:
    text = (SYSTEMD / unit).read_text().replace("WatchdogSec=", "WatchdogSecs=")
    assert "WatchdogSecs" in verify(unit, text, tmp_path)


def test_the_unit_and_the_example_config_name_the_same_places() -> None:
    unit = settings("stager.service")
    example = load_config(SYSTEMD / "stager.toml")
    assert unit["ExecStart"].endswith("--config /etc/stager/stager.toml")
    assert example.cache_dir == Path("/var/cache", unit["CacheDirectory"])
    assert example.socket.parent == Path("/run", unit["RuntimeDirectory"])


def test_the_user_unit_needs_no_config() -> None:
    unit = settings("stager-user.service")
    assert "--config" not in unit["ExecStart"]  # stager's own defaults are these directories
    assert (unit["CacheDirectory"], unit["RuntimeDirectory"]) == ("stager", "stager")


def test_what_peers_and_resizers_need_stays_open() -> None:
    unit = settings("stager.service")
    assert unit["PrivateUsers"] == "no"  # SO_PEERCRED
    assert unit["ProcSubset"] == "all"  # torch reads /proc/cpuinfo to find AVX2
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(unit["RestrictAddressFamilies"].split())


def test_each_key_of_the_example_config_is_accepted(tmp_path: Path) -> None:
    text = (SYSTEMD / "stager.toml").read_text()
    everything = re.sub(r"(?m)^# (?=\w+ = |\[)", "", text)
    path = tmp_path / "stager.toml"
    for written, names in ((text, ["imagenet"]), (everything, ["imagenet", "scan", "motion"])):
        path.write_text(written)
        assert list(load_config(path).datasets) == names


def test_each_key_there_is_stands_in_the_example_config() -> None:
    text = (SYSTEMD / "stager.toml").read_text()
    shown = set(re.findall(r"(?m)^(?:# )?(\w+) = ", text)) | {"recipe"}  # a table of its own
    assert {*config._CACHE, *config._SERVICE, *config._DATASET} <= shown


# Nearly what MemoryDenyWriteExecute=yes does, without systemd: see prctl(2), PR_SET_MDWE.
UNDER_MDWE = """
import ctypes, io, mmap, sys, tempfile
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0:
    sys.exit(77)
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    sys.exit("memory is writable and executable")
except PermissionError:
    pass
import boto3, botocore, fastapi, lmdb, numpy, pyarrow.compute, pycurl, uvicorn
from PIL import Image
from stager.recipes import check_recipe, open_recipe
for kind in ("JPEG", "PNG"):
    data = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").save(data, kind)
    for encode in ("raw", "jpeg"):
        recipe = open_recipe(check_recipe({"kind": "image", "resize": 64, "crop": 32, "encode": encode}))
        recipe.prepare([memoryview(data.getvalue())], ())
from stager.watch.helper.inotify import InotifyWatch
InotifyWatch(tempfile.mkdtemp()).stop()
import soundfile
sound = tempfile.NamedTemporaryFile(suffix=".flac")  # not into memory: soundfile does that by callbacks
soundfile.write(sound.name, numpy.zeros(800), 8000)
recipe = open_recipe(check_recipe({"kind": "audio", "rate": 16000}))
recipe.prepare([memoryview(sound.read())], ())
import torch
image = torch.zeros((1, 3, 64, 48), dtype=torch.uint8)
torch.nn.functional.interpolate(image, size=(32, 24), mode="bilinear", antialias=True)
"""


def test_recipes_run_without_writable_and_executable_memory() -> None:
    result = run(sys.executable, "-c", UNDER_MDWE)
    if result.returncode == 77:
        pytest.skip("this kernel has no PR_SET_MDWE (Linux 6.3)")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it gives files to another user")
def test_install_systemd_installs_twice_and_keeps_the_config(tmp_path: Path) -> None:
    need("systemd-sysusers")
    root = tmp_path / "a root"
    root.mkdir()
    example, keys = root / "etc/stager/stager.toml", root / "etc/stager/credentials.env"

    def install() -> None:
        result = run("make", "-C", str(ROOT), "install-systemd", f"DESTDIR={root}")
        assert result.returncode == 0, result.stderr

    install()
    assert example.read_text() == (SYSTEMD / "stager.toml").read_text()
    example.write_text("# mine\n")
    keys.touch(0o644)
    install()
    assert example.read_text() == "# mine\n"
    assert keys.stat().st_mode & 0o777 == 0o600
    assert (root / "etc/systemd/system/stager.service").stat().st_mode & 0o777 == 0o644
    user = next(line for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("stager:"))
    cache = (root / "var/cache/stager").stat()
    assert (cache.st_uid, cache.st_mode & 0o777) == (int(user.split(":")[2]), 0o750)
