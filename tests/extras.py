"""Every extra of pyproject.toml is resolved from nothing, by pip, from its index: `make extras`."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def known_extras() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return frozenset(project["optional-dependencies"])


def resolves(extra: str) -> bool:
    """Whether pip would install it where nothing is installed. It tells why not."""
    options = [
        "--dry-run",
        "--ignore-installed",
        "-qq",
        "--disable-pip-version-check",
        "-c",
        "constraints.txt",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, f".[{extra}]"], cwd=ROOT, check=False
    )
    print(f"stager[{extra}]: {'resolved' if done.returncode == 0 else 'failed'}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    failed = [extra for extra in sorted(known_extras()) if not resolves(extra)]
    sys.exit(bool(failed))
