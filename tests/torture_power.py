"""The power goes: a file system on a loop device is shut down in mid-work, mounted again, and looked at.

What a job said was staged is resident and right; the service starts. Also in the first second of a cache.
"""

import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from running import Place
from stager.errors import NoService, StagerError
from stager.reader.service import Service
from versions_kept import CLASSES, KeptSource, what_is_wrong
from warm import command, forked, wait_until, warm_up

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
WITHOUT_LOG = 2  # nothing more reaches the disk, not even the journal
COUNT = 60
LIVES = 6  # losses of one file system, then a new one
FILE_SYSTEMS = {"ext4": 64 << 20, "xfs": 320 << 20}


def why_not(kind: str) -> str:
    """Why no such file system can be had here; '' if it can."""
    if os.geteuid() != 0:
        return "to mount a file system, one must be root"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"there is no mkfs.{kind}"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return ""


class Power:
    """One disk of a kind, made anew now and then, and a cache on it."""

    def __init__(self, root: Path, seed: int, kind: str) -> None:
        self.kind, self.draw = kind, random.Random(seed)
        self.root, self.image, self.disk = root, root / "disk.img", root / "disk"
        self.source = KeptSource(root / "source")
        for number in range(COUNT):
            self.source.put(number)
        self.place = Place(root).configure(self.source.table("data"))
        config = self.place.config.read_text()
        self.place.config.write_text(config.replace(str(self.place.cache), str(self.disk / "cache")))
        self.disk.mkdir()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.acked: set[str] = set()
        warm_up("stager_client.torch")

    def life(self) -> None:
        """A new file system, and losses on it, the first within a second of the cache's first start."""
        with self.image.open("wb") as file:
            file.truncate(FILE_SYSTEMS[self.kind])
        force = "-F" if self.kind == "ext4" else "-f"
        subprocess.run([f"mkfs.{self.kind}", "-q", force, self.image], check=True, capture_output=True)
        self.acked = set()
        self._mount()
        young = self.draw.random() < 0.5  # else it had time to reach the disk before its first loss
        try:
            for number in range(LIVES):
                problems = self._loss(young and number == 0, not young and number == 0)
                self.counts["losses"] += 1
                self.counts["losses in the first second"] += young and number == 0
                self.counts["bad losses"] += bool(problems)
                self.failures += [f"{self.kind}, loss {self.counts['losses']}: {what}" for what in problems]
                if problems:
                    break
        finally:
            self._unmount()

    def _loss(self, first: bool, settled: bool) -> list[str]:
        process = self._start()
        service = Service(self.place.socket)
        try:
            if first:
                time.sleep(self.draw.uniform(0, 1.5))
            else:
                wait_until(lambda: answers(service, process.pid) or process.poll() is not None, 60, "a start")
                if process.poll() is not None:
                    return [f"the service did not start: {(self.root / 'service.log').read_text()[-1500:]}"]
                if settled:
                    os.sync()
                self._stage_until(self.draw.choice((0.1, 0.5, 2.0)) * self.draw.random(), service)
            self._shut_down()
        finally:
            process.kill()
            process.wait()
        self._unmount()
        self._mount()
        return self._look()

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self.root / "service.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "stagerd"], env=self.place.env(), stderr=log)

    def _stage_until(self, seconds: float, service: Service) -> None:
        """Stage class by class, evict some, and note what was said to be there, up to a moment."""
        deadline = time.monotonic() + seconds
        classes = [f"c{number}" for number in range(CLASSES)]
        self.draw.shuffle(classes)
        for name in classes:
            if self.draw.random() < 0.4 and name in self.acked:
                self.acked.discard(name)  # from now on it may be gone
                service.post("/datasets/data/evict", {"classes": [name]})
            job = service.post("/jobs", {"dataset": "data", "subset": {"classes": [name]}})
            while job["state"] not in ("done", "failed", "cancelled"):
                if time.monotonic() > deadline:
                    return
                time.sleep(0.005)
                job = service.get(f"/jobs/{job['id']}")
            if job["state"] == "done":
                self.acked.add(name)
                self.counts["acknowledged"] += COUNT // CLASSES
            else:
                self.failures.append(f"{self.kind}: a job failed: {job['error']}")

    def _shut_down(self) -> None:
        assert os.path.ismount(self.disk)  # or we would shut down the disk below it
        descriptor = os.open(self.disk, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_LOG))
        finally:
            os.close(descriptor)

    def _look(self) -> list[str]:
        """The power is back: it opens, all that was acknowledged is there, and nothing is wrong."""
        ended = forked(command("ls", "--classes", "--json"))
        if ended.wrong or ended.code:
            return [f"it does not start: exit {ended.code}: {ended.wrong or ended.said[-700:]}"]
        rows = json.loads(ended.said.splitlines()[-1])
        full = {row["class"] for row in rows if row["resident"] == row["samples"]}
        problems = [f"acknowledged, and not there: {sorted(self.acked - full)}"] if self.acked - full else []
        if rows:
            read = forked(lambda: read_resident(self.source.version(), self.acked))
            problems += [read.wrong or read.said[-700:]] if read.wrong or read.code else []
        verified = forked(command("verify", "--json"))
        problems += [f"verify: {verified.wrong or verified.said[-700:]}"] if verified.code else []
        return problems

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", "-t", self.kind, self.image, self.disk], check=True)
        assert os.path.ismount(self.disk)

    def _unmount(self) -> None:
        """Whoever wrote to it may take a moment to end."""
        if is_mounted(self.disk):
            wait_until(lambda: unmounts(self.disk), 30, self.disk)


def answers(service: Service, pid: int) -> bool:
    try:
        return bool(service.get("/status", 5)["service"]["pid"] == pid)
    except (NoService, StagerError):
        return False


def is_mounted(disk: Path) -> bool:
    """By the kernel's list: os.path.ismount asks the file system, and one that was shut down says no."""
    return any(line.split()[1] == str(disk) for line in Path("/proc/self/mounts").read_text().splitlines())


def unmounts(disk: Path) -> bool:
    return subprocess.run(["umount", disk], capture_output=True, check=False).returncode == 0


def read_resident(version: dict[int, int], acked: set[str]) -> int:
    """In a process of its own, without a service: what is there is right."""
    from stager.errors import WaitTimeout
    from stager_client.torch import StagedDataset

    data = StagedDataset("data", timeout_s=0.005)
    wrong = []
    for position in range(len(data)):
        key = data.samples.key(position)
        try:
            image, label = data[position]
        except WaitTimeout:
            wrong += [f"{key} was acknowledged, and is not there"] if key.split("/")[0] in acked else []
            continue
        if what := what_is_wrong(image.permute(1, 2, 0).numpy(), label, version):
            wrong.append(f"{key}: {what}")
    print(wrong)
    return int(bool(wrong))


def run_power(root: Path, seed: int, seconds: float, kind: str) -> Power:
    """Lives until the time is up, and at least one."""
    power = Power(root, seed, kind)
    deadline = time.monotonic() + seconds
    while True:
        power.life()
        if time.monotonic() > deadline:
            return power
