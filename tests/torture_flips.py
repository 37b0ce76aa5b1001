"""Every file of a cache, flipped, blanked, cut or emptied at random; then all read, start and verify.

Right bytes, a told miss or a clear error: never a traceback, a signal, a failed start, or a wrong byte.
"""

import json
import random
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torture_made
from running import Place
from stager.errors import StagerError, WaitTimeout
from stager.reader.service import Service
from versions_kept import CROP_A, CROP_B, KeptSource, key_of, said_by, what_is_wrong
from warm import command, forked, tracebacks_in, warm_up

COUNT = 40
BAD = ("c0/90000.png", "c1/90001.png")  # no images: they fail
FULL_EVERY = 40  # rounds, a real service is started
STAGE_EVERY = 10  # rounds, what is missing is staged by a command
VERBS = (
    *(("ls",), ("ls", "--failed"), ("ls", "--classes"), ("why", "data", "c1/00001.png")),
    *(("why", "memo", "torture_made.scores"), ("heat", "data"), ("status",)),
)
CODES = {"why": (0, 1, 2), "status": (0, 4)}  # of verbs that may say no: 4, no service
FLIPS_A_ROUND = (1, 1, 2, 4, 8)  # mostly one at a time, so that a failure has one cause
DAMAGES = ("flip", "flip", "flip", "flip", "flip", "zero", "cut", "empty")


class Flips:
    """A cache that has something of everything, and rounds on copies of it."""

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.place = Place(root)
        self.source = KeptSource(root / "source")
        self.golden = root / "golden"
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._build()
        warm_up("stager_client.torch")

    def _build(self) -> None:
        """Two recipes, both formats, failed samples, evicted ones, pins, and a job that is not done."""
        for number in range(COUNT):
            self.source.put(number)
        for key in BAD:
            (self.source.root / key).write_text("no image")
        place = self._configure(CROP_A)
        run(place, "prefetch", "data", "--classes", "c0,c1,", "--format", "arrow")
        self._configure(CROP_B)
        run(place, "prefetch", "data", "--classes", "c0,c3,", "--format", "lmdb")
        self._configure(CROP_A)
        run(place, "prefetch", "data", "--classes", "c2,c3,", "--format", "lmdb")
        run(place, "prefetch", "data")
        run(place, "pin", "data", "--classes", "c1,")
        run(place, "evict", "data", "--classes", "c4,")
        torture_made.build(place)
        process = place.start_service()
        Service(place.socket).post("/jobs", {"dataset": "data"})
        process.send_signal(signal.SIGKILL)  # so its log is not folded in, and its job may not be done
        process.wait()
        shutil.copytree(place.cache, self.golden, symlinks=True)

    def _configure(self, recipe: str) -> Place:
        return self.place.configure(self.source.table("data", recipe) + torture_made.TABLE)

    def round(self, number: int) -> None:
        """Damage one file of a copy, or several, and look at it from all sides."""
        shutil.rmtree(self.place.cache)
        shutil.copytree(self.golden, self.place.cache, symlinks=True)
        flips = self.draw.choice(FLIPS_A_ROUND)
        what = " and ".join(self._damage() for _ in range(flips))
        self.counts["flips"] += flips
        problems = self._look(number)
        if problems:
            self.failures.append(f"round {number}, {what}: " + "; ".join(problems[:3]))
        self.counts["rounds"] += 1
        self.counts["bad rounds"] += bool(problems)

    def _damage(self) -> str:
        files = sorted(
            path for path in self.place.cache.rglob("*") if path.is_file() and not path.is_symlink()
        )
        kinds = sorted({kind_of(path) for path in files})
        kind = self.draw.choice(kinds)
        path = self.draw.choice([path for path in files if kind_of(path) == kind])
        how = self.draw.choice(DAMAGES)
        size = path.stat().st_size
        self.counts[f"{how} in {kind}"] += 1
        at = self.draw.randrange(size) if size else 0
        with path.open("r+b") as file:
            if how == "empty" or not size:
                file.truncate(0)
            elif how == "cut":
                file.truncate(at)
            else:
                count = 1 if how == "flip" else min(512, size - at)
                file.seek(at)
                data = file.read(count)
                file.seek(at)
                bit = self.draw.randrange(8)
                file.write(bytes([data[0] ^ 1 << bit]) if how == "flip" else bytes(count))
        return f"{how} of {path.relative_to(self.place.cache)} at {at} of {size}"

    def _look(self, number: int) -> list[str]:
        problems = self._read("before anyone started", staged=False)
        if number % FULL_EVERY == FULL_EVERY - 1:
            return problems + self._with_a_service()
        verb, *arguments = self.draw.choice(VERBS)
        problems += self._command(verb, *arguments, "--json", codes=CODES.get(verb, (0,)))
        problems += self._command("verify", "--json", codes=(0, 1))
        problems += self._read("after verify", staged=False)
        if number % STAGE_EVERY == STAGE_EVERY - 1:
            problems += self._command("verify", "--repair", "--json", codes=(0, 1, 3))
            problems += self._command("prefetch", "data", "--json", codes=(0, 3))
            problems += self._command("prefetch", "motion", "--json", codes=(0,))
            problems += self._command("verify", "--json", codes=(0,))
            problems += self._read("after prefetch", staged=True)
            self.counts["staged again"] += 1
        return problems

    def _with_a_service(self) -> list[str]:
        self.counts["services"] += 1
        try:
            process = self.place.start_service()
        except AssertionError as error:
            return [f"the service did not start: {str(error)[-1500:]}"]
        try:
            problems = self._read("with a service", staged=True, timeout_s=40)
            problems += self._command("prefetch", "data", "--json", codes=(0, 3))
            problems += self._command("verify", "--repair", "--json", codes=(0, 1))
            problems += self._command("verify", "--json", codes=(0,))
            problems += self._read("after a repair", staged=True, timeout_s=40)
        finally:
            process.terminate()
            code = process.wait(60)
        log = self.place.log()
        (self.place.root / "service.log").unlink()
        problems += [f"the service ended with {code}"] if code else []
        return problems + tracebacks_in(log)

    def _command(self, *arguments: str, codes: tuple[int, ...]) -> list[str]:
        ended = forked(command(*arguments))
        self.counts["commands"] += 1
        said = f"stager {' '.join(arguments)}"
        if ended.wrong:
            return [f"{said}: {ended.wrong}"]
        return [] if ended.code in codes else [f"{said}: exit {ended.code}: {ended.said[-700:]}"]

    def _read(self, when: str, staged: bool, timeout_s: float = 0.005) -> list[str]:
        """All samples by a client. `staged`: a service or a prefetch was there, so all must be had."""
        ended = forked(lambda: read_all(self.source.version(), staged, timeout_s), 120)
        if ended.wrong:
            return [f"read {when}: {ended.wrong}"]
        told = json.loads(ended.said.splitlines()[-1])
        self.counts.update({name: count for name, count in told.items() if name != "wrong"})
        self.counts["compared"] += told["right"]
        return [f"read {when}: {wrong}" for wrong in told["wrong"]]


def kind_of(path: Path) -> str:
    """The kind of a file of a cache, whatever kinds there are: its name without what is different in each."""
    if path.parent.name in ("shards", "subsets"):
        return f"{path.parent.name}/*{path.suffix}"
    return re.sub("[0-9a-f]{6,}", "*", path.name)


def read_all(version: dict[int, int], staged: bool, timeout_s: float) -> int:
    """In a process of its own: open both ways, read one by one, and print what was seen."""
    from stager_client.torch import StagedDataset

    told: Counter[str] = Counter({"right": 0, "missed": 0, "refused": 0, "not opened": 0})
    wrong: list[str] = []
    try:
        data = StagedDataset("data", timeout_s=timeout_s)
        if len(data) != COUNT + len(BAD):
            wrong.append(f"{len(data)} samples, there are {COUNT + len(BAD)}")
        for position in range(len(data)):
            key = data.samples.key(position)
            outcome, what = read_one(data, position, key, version)
            told[outcome] += 1
            if what and (outcome == "right" or (staged and key not in BAD)):
                wrong.append(f"{key}: {what}")
        left = len(StagedDataset("data", timeout_s=timeout_s, skip_failed=True))
        most = COUNT if staged else COUNT + len(BAD)  # failures may be forgotten, one by one, until a start
        if not COUNT <= left <= most:
            wrong.append(f"skip_failed leaves {left} samples of {COUNT}")
    except StagerError as error:
        told["not opened"] += 1
        if staged:
            wrong.append(f"it cannot be opened: {error}")
    wrong += torture_made.what_is_wrong(staged, timeout_s, told)
    print(json.dumps({**told, "wrong": wrong[:5]}))
    return 0


def read_one(data: Any, position: int, key: str, version: dict[int, int]) -> tuple[str, str]:
    """What came of reading one sample, and what is wrong with it, or was told of it."""
    try:
        image, label = data[position]
    except WaitTimeout as error:
        return "missed", str(error)
    except StagerError as error:
        return "refused", str(error)
    pixels = image.permute(1, 2, 0).numpy()
    what = what_is_wrong(pixels, label, version)
    if not what and (said := said_by(pixels)) and key_of(said[0]) != key:
        what = f"it has the image of {key_of(said[0])}"
    return "right", what


def run(place: Place, *arguments: str) -> None:
    done = place.run(*arguments)
    assert done.returncode in (0, 3), done.stderr


def run_flips(root: Path, seed: int, seconds: float, least: int = 0) -> Flips:
    """Rounds until the time is up, and at least so many."""
    flips = Flips(root, seed)
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline or number < least:
        flips.round(number)
        number += 1
    return flips
