"""What it costs to watch a directory that tells of no changes, and how soon a change is seen.

    python tests/watch_cost.py [--files 1300000] [--folders 1000] [--seconds 60] [--every 30]

It makes empty files on the local disk and has them watched as if they were on such a mount. Then it looks at
the source as a watch does: at everything, and at one folder.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

from stager.watch.helper import rescan
from stager.watch.messages import Hinted, KnownFiles, Watching, WatchPlace
from stager.worker.messages import Relist
from test_scan_again import Scans
from test_watch_mounts import Heard

TICKS = os.sysconf("SC_CLK_TCK")
CHANGES = 4


def make(root: Path, files: int, folders: int) -> None:
    for folder in range(folders):
        path = root / f"class{folder:05d}"
        path.mkdir(parents=True)
        for number in range(files // folders):
            os.close(os.open(path / f"{number:06d}.jpg", os.O_CREAT | os.O_WRONLY))
    old = time.time() - 3600
    for path in (root, *root.iterdir()):
        os.utime(path, (old, old))


def cpu_s(pid: int) -> float:
    """Seconds of CPU of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    told = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(told["Private_Clean"]) / 1000 + int(told["Private_Dirty"]) / 1000


def scan_cost(scans: Scans, asked: Relist | None) -> tuple[float, float]:
    """Seconds and CPU seconds of one scan, in a process of its own as a worker's would be."""
    child = os.fork()
    if not child:
        scans.scan(asked, scans.known)
        os._exit(0)
    began = time.monotonic()
    _, status, used = os.wait4(child, 0)
    assert status == 0, "the scan failed"
    return time.monotonic() - began, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_300_000)
    parser.add_argument("--folders", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0)
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="stager-watch-"))
    try:
        measure(asked, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(asked: argparse.Namespace, directory: Path) -> None:
    root = directory / "source"
    make(root, asked.files, asked.folders)
    scans = Scans(root, directory)
    print(f"files {asked.files:,}, folders {asked.folders:,}", flush=True)
    print("look at everything: {:.1f} s, {:.1f} s of CPU".format(*scan_cost(scans, None)), flush=True)
    found, manifest = scans.take(None)
    lineage = "0" * 32
    (directory / "samples").write_bytes(found.segments[0].read_bytes())
    found.path.replace(directory / f"manifest-{manifest.digest}-{lineage[:16]}.arrow")
    place = WatchPlace({"url": str(root)}, asked.every, watches_most=0)
    said = Heard(place)
    try:
        known = KnownFiles(str(directory), lineage, ("samples",), manifest.digest)
        watch(asked, root, said, known)
    finally:
        said.watcher.end()
    one = root / "class00007"
    (one / "new.jpg").write_bytes(b"")
    told = scan_cost(scans, Relist(("class00007",), (), True, 0.0))
    print("look at one folder: {:.1f} s, {:.1f} s of CPU".format(*told), flush=True)
    print(f"stats a second, counted: {counted(root, asked.every, known):,.0f} of {rescan.STATS_PER_S:,}")


def watch(asked: argparse.Namespace, root: Path, said: Heard, known: KnownFiles) -> None:
    pid = said.watcher.pid
    began = time.monotonic()
    said.watcher.tell(known)
    told = said.next(lambda message: isinstance(message, Watching), 600)
    print(f"first round of folders: {time.monotonic() - began:.1f} s; {told}", flush=True)
    said.next(lambda message: isinstance(message, Hinted))
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(asked.seconds)
    used, took_s = cpu_s(pid) - before, time.monotonic() - began
    share = 100 * used / took_s
    told_cpu = f"{used:.2f} s of CPU in {took_s:.0f} s ({share:.1f} % of a core)"
    print(f"watcher: {told_cpu}, {rss_mb(pid):.0f} MB", flush=True)
    rng, delays = random.Random(1), []
    for number in range(CHANGES):
        time.sleep(rng.uniform(0, asked.every))
        folder = f"class{rng.randrange(asked.folders):05d}"
        began = time.monotonic()
        (root / folder / f"new{number}.jpg").write_bytes(b"")
        said.next(lambda message: isinstance(message, Hinted) and folder in message.hint.folders, 600)  # noqa: B023
        delays.append(time.monotonic() - began)
    print("a file that came was hinted at after", ", ".join(f"{delay:.1f} s" for delay in delays), flush=True)


def counted(root: Path, every_s: float, known: KnownFiles) -> float:
    """Calls of stat and scandir that a watcher makes, a second, counted over 20 s of its own loop."""
    calls = 0
    stat, scandir = os.stat, os.scandir

    def counted_stat(*args: object, **kwargs: object) -> os.stat_result:
        nonlocal calls
        calls += 1
        return stat(*args, **kwargs)  # type: ignore[arg-type]

    def counted_scandir(*args: object) -> object:
        nonlocal calls
        calls += 1
        return scandir(*args)  # type: ignore[call-overload]

    rescan.os.stat, rescan.os.scandir = counted_stat, counted_scandir  # type: ignore[assignment]
    try:
        looked, began = rescan.Rescan(str(root), every_s, time.monotonic()), time.monotonic()
        looked.know(known)
        while time.monotonic() - began < 20:
            looked.go_on(round(rescan.STATS_PER_S / 5), time.monotonic(), time.time())
            time.sleep(0.2)
        return calls / (time.monotonic() - began)
    finally:
        rescan.os.stat, rescan.os.scandir = stat, scandir


if __name__ == "__main__":
    main()
