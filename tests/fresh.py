"""A source that changes all the time, and two trainings that read it: does everybody see one version?

    python tests/fresh.py [--seconds 600] [--seed 1] [--files 10000] [--watch]

In bursts, one file in a hundred is added, changed, renamed or removed, while a plain DataLoader and a
StagedLoader read epochs of the newest version, with prefetches, refreshes, evictions and kills of the service
among it. Every version's bytes are kept. With --watch nobody asks for a refresh: the service sees by itself.
At the end: counts, and exit code 1 if an epoch was of no one version, a byte was wrong, a sample was lacking,
or something was fetched that had not changed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from running import Place
from sets import manifest_at, origin_reads, wait_for
from stager.reader.service import Service
from versions_kept import CLASSES, CROP_A, KeptSource, key_of
from warm import tracebacks_in

PART = 0.01  # of all files, a burst
SEEN_S = 60.0  # within which a watched change is the newest version
COMMAND_S = 170.0
OVERLAP_MOST = 4  # bursts that one scan may meet
HERE = Path(__file__).parent
ABSENT, TWICE = -1, 2

State = npt.NDArray[np.int8]  # the class of each picture, or ABSENT


class Failed(Exception):
    """What must not be."""


class MovingSource(KeptSource):
    """A kept source whose files are renamed, too. A picture is one content of one object."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.names: dict[int, str] = {}  # of objects that were renamed
        self.pictures: dict[tuple[int, int], int] = {}  # (object, content) -> its column
        self.states: list[State] = []  # after each burst

    def path_of(self, number: int) -> Path:
        return self.root / self.names.get(number, key_of(number))

    def put(self, number: int, content: int | None = None) -> None:
        super().put(number, content)  # under its first name
        if number in self.names:
            (self.root / key_of(number)).rename(self.path_of(number))
        self.pictures.setdefault((number, self.contents[number]), len(self.pictures))

    def remove(self, number: int) -> None:
        self.path_of(number).unlink()
        del self.contents[number]
        self.names.pop(number, None)

    def rename(self, number: int, to: int, times: int) -> None:
        """Into another class, or within its own."""
        before = self.path_of(number)
        self.names[number] = f"c{to}/{number:05d}-{times}.png"
        before.rename(self.path_of(number))

    def note(self) -> None:
        """Remember how it is now."""
        state = np.full(len(self.pictures), ABSENT, np.int8)
        for picture in self.contents.items():
            state[self.pictures[picture]] = int(self.path_of(picture[0]).parent.name[1:])
        self.states.append(state)

    def keys(self) -> dict[str, tuple[int, int]]:
        """What lies under each key."""
        return {str(self.path_of(number).relative_to(self.root)): (number, content)
                for number, content in self.contents.items()}  # fmt: skip


def fits(states: list[State], seen: npt.NDArray[np.int64], labels: State, first: int) -> int | None:
    """How many bursts a scan met, if these pictures may be what it saw; None: they are of no version.

    `seen`: how often each picture came; `labels`: its class. A picture that stayed as it was while a scan was
    made comes once, or not at all; one that was renamed meanwhile may have been met under both its names.
    """
    columns = len(seen)
    padded = [np.pad(state, (0, columns - len(state)), constant_values=ABSENT) for state in states[first:]]
    table = np.stack(padded)
    matches = np.where(table == ABSENT, seen == 0, (seen == 1) & (table == labels))
    for width in range(OVERLAP_MOST + 1):
        for at in range(len(table) - width):
            window = slice(at, at + width + 1)
            is_fixed = np.all(table[window] == table[at], axis=0)
            there = np.where(table[window] == ABSENT, labels, table[window])
            most = np.where(np.any(there != labels, axis=0), TWICE, 1)  # of those that were renamed
            loose = (seen == 0) | (seen <= most) & np.any(table[window] == labels, axis=0)
            if np.all(np.where(is_fixed, matches[at], loose)):
                return width
    return None


class Fresh:
    """The one who acts."""

    def __init__(self, root: Path, seed: int, files: int, watch: bool) -> None:
        self.root, self.seed, self.files, self.watch = root, seed, files, watch
        self.draw = random.Random(seed)
        self.source = MovingSource(root / "source")
        for number in range(files):
            self.source.put(number)
        self.source.note()
        self.times = 0
        (root / "epochs").mkdir()
        head = "watch = true\n" if watch else ""
        table = f'[datasets.data]\nsource = "{root / "source"}"\n{head}[datasets.data.recipe]\n{CROP_A}\n'
        self.place = Place(root).configure(table, capacity="4GB")
        self.service = self.place.start_service()
        self.readers: dict[str, subprocess.Popen[bytes]] = {}
        self.actions: Counter[str] = Counter()
        self.failures: list[str] = []
        self.fetched: list[tuple[int, int]] = []  # what had changed, and what was fetched
        self.seen_s: list[float] = []
        self.versions: dict[str, list[tuple[int, int, str]]] = {}  # by digest: object, content, class

    # What is done

    def burst(self, renames: bool = True) -> None:
        """One file in a hundred, in four ways."""
        kinds = ["add", "change", "remove"] + ["rename"] * renames
        for _ in range(max(int(PART * self.files), 4)):
            self.times += 1
            number, kind = self.draw.choice(list(self.source.contents)), self.draw.choice(kinds)
            if kind == "add":
                self.source.put(self.files + self.times)
            elif kind == "change":
                self.source.put(number)
            elif kind == "rename":
                # Into another class: of one that stays in its own nobody knows whether a scan met it twice.
                own = int(self.source.path_of(number).parent.name[1:])
                self.source.rename(number, (own + self.draw.randrange(1, CLASSES)) % CLASSES, self.times)
            elif number >= CLASSES:  # no class is ever empty
                self.source.remove(number)
        self.source.note()

    def command(self, *arguments: str) -> None:
        done = self.place.run(*arguments, timeout_s=COMMAND_S)
        clear = any(line.startswith("stager: ") for line in done.stderr.splitlines())
        if (
            "Traceback" in done.stderr
            or done.returncode not in (0, 1, 3)
            or (done.returncode == 1 and not clear)
        ):
            self.failures.append(f"stager {' '.join(arguments)}: {done.returncode}\n{done.stderr[-2000:]}")

    def exactly(self) -> None:
        """A burst with nothing else: what it changed is fetched once, and nothing besides."""
        self.settle()
        before, fetched = self.source.keys(), origin_reads(self.place)
        self.burst()
        changed = sum(before.get(key) != picture for key, picture in self.source.keys().items())
        if self.watch:
            self.wait_until_seen()
        else:
            self.command("refresh", "data")
        self.settle()
        self.fetched.append((changed, origin_reads(self.place) - fetched))

    def wait_until_seen(self) -> None:
        began, wanted = time.monotonic(), len(self.source.contents)
        wait_for(lambda: self.newest_is_now(wanted), SEEN_S)
        self.seen_s.append(time.monotonic() - began)

    def newest_is_now(self, wanted: int) -> bool:
        rows = [row for row in self.place.json("ls", "--versions") if row["is_newest"]]
        return bool(rows) and rows[0]["samples"] == wanted and self.has_newest()

    def has_newest(self) -> bool:
        told = self.place.json("refresh", "data", "--dry-run")
        return not any(told["diff"][what] for what in ("added", "changed", "removed") if what in told["diff"])

    def settle(self) -> None:
        """All of the newest version is resident."""
        self.command("prefetch", "data")
        row = Service(self.place.socket).get("/status")["datasets"][0]
        if not row["samples"] == row["resident"] == len(self.source.contents):
            self.failures.append(f"after a prefetch of {len(self.source.contents)} files: {row}")

    def meanwhile(self) -> None:
        """Bursts, and perhaps a kill, while the service looks and stages."""
        verb = self.draw.choice(("prefetch", "refresh"))
        command = self.place.start(verb, "data")
        for _ in range(self.draw.randrange(1, 3)):
            time.sleep(self.draw.uniform(0, 1))
            self.burst(renames=False)
        if self.draw.random() < 0.4:
            self.kill()
        try:
            _, told = command.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            command.kill()
            raise Failed(f"stager {verb} hung for {COMMAND_S:.0f} s") from None
        if "Traceback" in told:
            self.failures.append(told[-2000:])

    def evict(self) -> None:
        """Nothing has changed meanwhile: all of it can be had again."""
        self.settle()
        part = self.draw.sample(range(CLASSES), 2)
        self.command("evict", "data", "--classes", ",".join(f"c{number}" for number in sorted(part)))
        self.settle()

    def kill(self) -> None:
        self.actions["kill"] += 1
        self.service.send_signal(signal.SIGKILL)
        self.service.wait()
        time.sleep(self.draw.choice((0, 0.5, 1.5)))
        self.service = self.place.start_service()

    def note_version(self) -> None:
        """What the newest version has, by its manifest: each content of an object has a time of its own."""
        manifest = manifest_at(self.place, "data")
        if manifest.digest not in self.versions:
            of_time = {mtime_ns: picture for picture, mtime_ns in self.source._mtimes_ns.items()}
            self.versions[manifest.digest] = sorted(
                (*of_time[int(info.version.split("-")[0])], info.key.split("/")[0])
                for info in manifest.records.infos(manifest.numbers[:])
            )

    def wait(self) -> None:
        time.sleep(self.draw.uniform(0.5, 2))

    # The run

    def run(self, seconds: float) -> None:
        self.settle()
        self.note_version()
        for number, kind in enumerate(("plain", "loader")):
            log = (self.root / f"reader-{kind}.log").open("wb")
            command = [sys.executable, str(HERE / "fresh_reader.py"), kind, str(self.root)]
            self.readers[kind] = subprocess.Popen(
                [*command, str(self.seed * 10 + number)], env=self.place.env(), stderr=log
            )
        weights = {self.exactly: 4, self.meanwhile: 4, self.evict: 1, self.kill: 1, self.wait: 2}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.failures:
            action = self.draw.choices(list(weights), list(weights.values()))[0]
            if action != self.kill:
                self.actions[action.__name__] += 1
            action()
            self.note_version()
            for kind, process in self.readers.items():
                if process.poll() is not None:
                    raise Failed(f"the reader {kind} ended: {self.log_of(kind)}")
        wait_for(lambda: len(list((self.root / "epochs").glob("plain*"))) > 0, 120)
        self.end()

    def log_of(self, kind: str) -> str:
        return (self.root / f"reader-{kind}.log").read_text(errors="replace")[-3000:]

    def end(self) -> None:
        (self.root / "stop").touch()
        for kind, process in self.readers.items():
            if process.wait(100):
                self.failures.append(
                    f"the reader {kind} ended with {process.returncode}: {self.log_of(kind)}"
                )
        self.command("verify")
        self.service.terminate()
        if self.service.wait(60):
            self.failures.append(f"the service ended with {self.service.returncode}")
        self.failures += [f"the service's log: {trace}" for trace in tracebacks_in(self.place.log())]

    def kill_all(self) -> None:
        for process in (*self.readers.values(), self.service):
            if process.poll() is None:
                process.kill()
                process.wait()

    # What came of it

    def judge(self) -> dict[str, Any]:
        """Compare each epoch with the versions that there were."""
        epochs = [json.loads(path.read_text()) for path in sorted((self.root / "epochs").glob("*.json"))]
        by_version: dict[str, Any] = {}
        widths: Counter[int] = Counter()
        by_manifest = 0
        for epoch in epochs:
            who = f"an epoch of {epoch['kind']} of version {epoch['version'][:12]}"
            self.failures += [f"{who}: {wrong}" for wrong in epoch["wrong"]]
            self.failures += self.holes(who, epoch)
            came = sorted(
                (number, content, epoch["classes"][label]) for number, content, label in epoch["came"]
            )
            known = self.versions.get(epoch["version"])
            by_manifest += known is not None
            if known is not None and came != known:
                lacks, more = len(set(known) - set(came)), len(set(came) - set(known))
                self.failures.append(f"{who} lacks {lacks} samples of its version, and has {more} others")
            if by_version.setdefault(epoch["version"], came) != came:
                self.failures.append(f"{who} had other samples than the one before it")
            width = self.width_of(epoch)
            if width is None:
                self.failures.append(f"{who} is of no one version")
            else:
                widths[width] += 1
        wrong = [one for one in self.fetched if one[0] != one[1]]
        self.failures += [f"{changed} had changed, {fetched} were fetched" for changed, fetched in wrong]
        errors = {path.stem: json.loads(path.read_text()) for path in self.root.glob("errors-*.json")}
        return {
            "seed": self.seed, "files": self.files, "watch": self.watch, "actions": dict(self.actions),
            "bursts": len(self.source.states) - 1, "pictures": len(self.source.pictures),
            "epochs": dict(Counter(epoch["kind"] for epoch in epochs)), "versions_read": len(by_version),
            "epochs_compared_with_a_manifest": by_manifest,
            "compared": sum(len(epoch["came"]) for epoch in epochs),
            "bursts_met_by_a_scan": {str(width): count for width, count in sorted(widths.items())},
            "changed_and_fetched": self.fetched,
            "seen_s": {"median": round(median(self.seen_s), 2), "most": round(max(self.seen_s), 2)}
            if self.seen_s else None,
            "errors": errors, "failures": len(self.failures),
        }  # fmt: skip

    def holes(self, who: str, epoch: dict[str, Any]) -> list[str]:
        came, length = len(epoch["came"]) + len(epoch["wrong"]), epoch["length"]
        return [] if came == length else [f"{who} had {came} samples of {length}"]

    def width_of(self, epoch: dict[str, Any]) -> int | None:
        seen = np.zeros(len(self.source.pictures), np.int64)
        labels = np.full(len(self.source.pictures), ABSENT, np.int8)
        for number, content, label in epoch["came"]:
            column = self.source.pictures[number, content]
            seen[column] += 1
            labels[column] = int(epoch["classes"][label][1:])
        return fits(self.source.states, seen, labels, 0)


def fresh(
    root: Path, seconds: float, seed: int, files: int, watch: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Run it; return the counts, and what must not be."""
    os.environ["STAGER_CONFIG"] = str(root / "stager.toml")
    one = Fresh(root, seed, files, watch)
    try:
        one.run(seconds)
    except (Failed, AssertionError, subprocess.TimeoutExpired) as error:
        one.failures.append(f"{type(error).__name__}: {error}")
    finally:
        one.kill_all()
    counts = one.judge()
    return counts, one.failures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--watch", action="store_true", help="the service watches; nobody asks for a refresh")
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    root = options.root or Path(tempfile.mkdtemp(prefix="stager-fresh-"))
    print(f"seed {options.seed}, {options.seconds:.0f} s, in {root}", flush=True)
    counts, found = fresh(root, options.seconds, options.seed, options.files, options.watch)
    print(json.dumps(counts, indent=2))
    for what in found[:10]:
        print(f"FAILED (seed {options.seed}): {what}")
    if not found and options.root is None:
        shutil.rmtree(root)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
