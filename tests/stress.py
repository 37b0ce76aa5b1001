"""A seeded stress of real processes: one service, a changing source, readers that compare every sample.

    python tests/stress.py [--seconds 1800] [--seed 1] [--root DIR]

Actions are drawn from the seed; readers are processes of their own (stress_reader.py). At the end: counts,
and exit code 1 if a sample was wrong, a start failed, somebody hung, or anything but a clear error was told.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rows_kept import BOX, RowsSource
from running import Place
from versions_kept import CLASSES, CROP_A, CROP_B, SIDE, SIDE_A, SIDE_B, KeptSource, cropped, image_of
from warm import tracebacks_in

SAMPLES, OTHERS = 300, 120
ROW_BYTES = SIDE_A * SIDE_A * 3 + 512
OF_ROWS_BYTES = SIDE * SIDE * 3 + BOX * BOX * 3 + 512  # of a row of the table
CAPACITY_BYTES = (SAMPLES + 60) * ROW_BYTES + 50 * OF_ROWS_BYTES  # about six sevenths of all data sets
COMMAND_S = 90.0  # one that takes longer hangs
SILENT_S = 100.0  # so long, a reader may wait for a sample and say so
HERE = Path(__file__).parent
SIDES = {CROP_A: SIDE_A, CROP_B: SIDE_B}
KINDS = ("fork", "spawn", "loader", "arrays")
ROWS_KINDS = ("fork", "loader", "arrays")  # who reads the table


class Failed(Exception):
    """What no stress may show."""


class History:
    """What each scan of a data set may have seen, for its readers."""

    def __init__(self, root: Path, source: KeptSource) -> None:
        self.root, self.source = root, source
        self.number = -1
        self.flips: list[dict[str, Any]] = []
        (root / "versions").mkdir(parents=True)

    def begin(self, recipe: str) -> None:
        """A scan may come from now on."""
        self.number += 1
        contents = {number: [content] for number, content in self.source.contents.items()}
        self.version: dict[str, Any] = {"contents": contents, "sides": [SIDES[recipe]]}
        self._write(f"versions/{self.number}.json", self.version)
        self._write("began", self.number)

    def widen(self) -> None:
        """The source has changed while a scan may be under way: it may see the one or the other."""
        for number, content in self.source.contents.items():
            known = self.version["contents"].setdefault(number, [])
            if content not in known:
                known.append(content)
        self._write(f"versions/{self.number}.json", self.version)

    def adopted(self) -> None:
        self._write("adopted", self.number)

    def flip(self, samples: list[tuple[int, int]]) -> None:
        self.flips += [{"sample": sample, "until": 0} for sample in samples]
        self._write_flips()

    def repaired(self) -> None:
        for flip in self.flips:
            flip["until"] = flip["until"] or time.time()
        self._write_flips()

    def _write_flips(self) -> None:
        self._write("flips", "\n".join(json.dumps(flip) for flip in self.flips))

    def _write(self, name: str, value: Any) -> None:
        write(self.root / name, value)


def write(path: Path, value: Any) -> None:
    """Whole or not at all: readers look at it while we write."""
    scratch = path.with_suffix(".part")
    scratch.write_text(value if isinstance(value, str) else json.dumps(value))
    scratch.rename(path)


class RowsHistory:
    """What each scan of the table may have seen: states of it, and contents of each object."""

    def __init__(self, root: Path, source: RowsSource) -> None:
        self.root, self.source = root, source
        self.number = -1
        (root / "versions").mkdir(parents=True)

    def begin(self) -> None:
        """A scan may come from now on."""
        self.number += 1
        self.version: dict[str, Any] = {"tables": [], "contents": {}}
        self.widen()
        write(self.root / "began", self.number)

    def widen(self) -> None:
        """The source has changed while a scan may be under way: it may see the one or the other."""
        self.version["tables"].append(self.source.state())
        for name, content in self.source.contents.items():
            known = self.version["contents"].setdefault(name, [])
            if content not in known:
                known.append(content)
        write(self.root / f"versions/{self.number}.json", self.version)

    def adopted(self) -> None:
        write(self.root / "adopted", self.number)


class Stress:
    """The one who acts. Each action is a method; `run` draws them."""

    def __init__(self, root: Path, seed: int, tensorflow: str = "") -> None:
        """`tensorflow`: a Python that has it, for one more reader."""
        self.root, self.seed, self.draw, self.tensorflow = root, seed, random.Random(seed), tensorflow
        self.place = Place(root)
        self.source, self.other = KeptSource(root / "source"), KeptSource(root / "others")
        self.other.next_content = 1 << 20  # no content is in both
        for number in range(SAMPLES):
            self.source.put(number)
        for number in range(OTHERS):
            self.other.put(number)
        self.rows = RowsSource(root / "table", self.draw)
        self.rows_history = RowsHistory(root / "rows", self.rows)
        self.recipe = CROP_A
        self.actions: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failures: list[str] = []
        self.starts = 0
        (root / "readers").mkdir()
        self.history = History(root / "data", self.source)
        self.configure()
        self.service = self.start_service()
        self.readers: dict[str, subprocess.Popen[bytes]] = {}

    # The service and its commands

    def configure(self) -> None:
        tables = self.source.table("data", self.recipe) + self.other.table("other") + self.rows.config()
        self.place.configure(tables, capacity=str(CAPACITY_BYTES), memory="2MB")

    def start_service(self) -> "subprocess.Popen[str]":
        self.starts += 1
        try:
            return self.place.start_service()
        except AssertionError as error:
            raise Failed(f"a start failed: {str(error)[-2000:]}") from None

    def command(self, *arguments: str) -> int:
        """Run a command to its end: done, done in part, or refused with a reason."""
        return self.end_of(self.begin(*arguments), arguments)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        return self.place.start(*arguments)

    def end_of(self, command: "subprocess.Popen[str]", arguments: tuple[str, ...]) -> int:
        try:
            _, told = command.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            command.kill()
            command.communicate()
            raise Failed(f"stager {' '.join(arguments)} hung for {COMMAND_S:.0f} s") from None
        clear = [line for line in told.splitlines() if line.startswith("stager: ")]
        if (
            "Traceback" in told
            or command.returncode not in (0, 1, 3)
            or (command.returncode == 1 and not clear)
        ):
            self.failures.append(f"stager {' '.join(arguments)}: exit {command.returncode}\n{told[-2000:]}")
        if clear:
            words = ["..." if any(map(str.isdigit, word)) else word for word in clear[0].split()]
            self.refused[f"{arguments[0]}: {' '.join(words)[8:100]}"] += 1
        return int(command.returncode)

    # Actions

    def add(self) -> None:
        new = [number for number in range(SAMPLES + 100) if number not in self.source.contents]
        for number in self.some(new, 8):
            self.source.put(number)

    def change(self) -> None:
        for number in self.some(list(self.source.contents), 12):
            self.source.put(number)

    def revert(self) -> None:
        for number in self.some(list(self.source.contents), 8):
            self.source.put(number, self.draw.choice(self.source.contents_of(number)))

    def remove(self) -> None:
        for number in self.some([known for known in self.source.contents if known >= CLASSES], 5):
            self.source.remove(number)

    def prefetch(self, *subset: str) -> None:
        self.history.begin(self.recipe)
        if self.command("prefetch", "data", *subset) in (0, 3):
            self.history.adopted()

    def prefetch_part(self) -> None:
        self.prefetch(*self.subset())

    def prefetch_in_disorder(self) -> None:
        """While it runs, the source changes, the service dies, or samples are evicted."""
        self.history.begin(self.recipe)
        arguments = ("prefetch", "data")
        command = self.begin(*arguments)
        for _ in range(self.draw.randrange(1, 4)):
            time.sleep(self.draw.uniform(0, 0.7))
            self.draw.choice((self.add, self.change, self.revert, self.remove, self.kill, self.evict))()
            self.history.widen()
        if self.end_of(command, arguments) in (0, 3):
            self.history.adopted()

    def change_rows(self) -> None:
        self.rows.change()

    def prefetch_rows(self, verb: str = "") -> None:
        self.rows_history.begin()
        if self.command(verb or self.draw.choice(("prefetch", "refresh")), "rows") in (0, 3):
            self.rows_history.adopted()

    def prefetch_rows_in_disorder(self) -> None:
        """Rows move, or the service dies, while it looks and stages."""
        self.rows_history.begin()
        arguments = ("prefetch", "rows")
        command = self.begin(*arguments)
        for _ in range(self.draw.randrange(1, 4)):
            time.sleep(self.draw.uniform(0, 0.5))
            self.draw.choice((self.change_rows, self.change_rows, self.kill, self.evict_rows))()
            self.rows_history.widen()
        if self.end_of(command, arguments) in (0, 3):
            self.rows_history.adopted()

    def evict_rows(self) -> None:
        self.command("evict", "rows", "--classes", self.draw.choice(("p0,", "p1,p2", "p0,p2")))

    def evict(self) -> None:
        self.command("evict", "data", *self.subset())

    def evict_all(self) -> None:
        self.command("evict", self.draw.choice(("data", "other")))

    def pin(self) -> None:
        self.command("pin", "data", *self.subset())

    def unpin(self) -> None:
        self.command("unpin", "data")

    def kill(self) -> None:
        self.service.kill()
        self.service.wait()
        time.sleep(self.draw.choice((0, 0, 0.3, 1.5)))
        self.service = self.start_service()

    def stop(self) -> None:
        """As systemd would."""
        self.service.terminate()
        try:
            code = self.service.wait(60)
        except subprocess.TimeoutExpired:
            raise Failed("the service did not stop within 60 s") from None
        if code:
            self.failures.append(f"the service ended with {code}: {self.place.log()[-2000:]}")
        self.service = self.start_service()

    def flip_and_repair(self) -> None:
        """Flip a bit in the pixels of some samples, wherever they lie in the cache; then repair."""
        side = SIDES[self.recipe]
        chosen = self.some(list(self.source.contents.items()), 4)
        self.history.flip(chosen)
        for path in self.place.cache.rglob("*"):
            if path.is_symlink() or path.is_dir():  # a link leads to memory, which verify does not look at
                continue
            with suppress(FileNotFoundError):  # it is gone by now
                self.flip_in(path, [cropped(image_of(*sample), side).tobytes() for sample in chosen])
        if self.command("verify", "--repair") == 0:
            self.history.repaired()

    def flip_in(self, path: Path, rows: list[bytes]) -> None:
        data = path.read_bytes()
        for row in rows:
            at = data.find(row)
            if at >= 0:
                where = self.draw.randrange(len(row) // 4)  # clear of what an image says of itself
                with path.open("r+b") as file:
                    file.seek(at + where)
                    file.write(bytes([row[where] ^ 1 << self.draw.randrange(8)]))

    def other_recipe(self) -> None:
        """Another recipe, and a start; the next such action goes back."""
        self.recipe = CROP_B if self.recipe == CROP_A else CROP_A
        self.configure()
        self.draw.choice((self.kill, self.stop))()
        self.prefetch()

    def some(self, of: list[Any], most: int) -> list[Any]:
        return self.draw.sample(of, min(len(of), self.draw.randrange(1, most + 1)))

    def subset(self) -> list[str]:
        part = self.some([f"c{number}" for number in range(CLASSES)], 3)
        return ["--classes", ",".join(sorted(part)) + ","]

    # The run

    def run(self, seconds: float) -> None:
        weights: dict[Callable[[], None], int] = {
            **dict.fromkeys((self.add, self.change, self.revert, self.change_rows), 3),
            **dict.fromkeys((self.prefetch_rows, self.prefetch_rows_in_disorder), 3),
            self.evict_rows: 1,
            **dict.fromkeys((self.remove, self.evict, self.prefetch_in_disorder), 3),
            **dict.fromkeys((self.prefetch, self.prefetch_part), 5),
            **dict.fromkeys((self.pin, self.evict_all, self.stop), 1),
            **dict.fromkeys((self.unpin, self.kill, self.flip_and_repair, self.other_recipe), 2),
        }
        history = History(self.root / "other", self.other)
        history.begin(CROP_A)
        history.adopted()
        self.prefetch("--classes", "c0,c1,")
        self.command("prefetch", "other", "--classes", "c0,")  # or there is nothing to evict
        self.prefetch_rows("prefetch")
        for number, kind in enumerate(KINDS):
            self.start_reader(kind, "data", number)
        self.start_reader("loader", "other", len(KINDS))
        for number, kind in enumerate(ROWS_KINDS, len(KINDS) + 2):
            self.start_reader(kind, "rows", number)
        if self.tensorflow:
            self.start_reader("tensorflow", "data", len(KINDS) + 1, self.tensorflow)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.failures:
            action = self.draw.choices(list(weights), list(weights.values()))[0]
            self.actions[action.__name__] += 1
            action()
            time.sleep(self.draw.uniform(0, 0.5))
            self.look_at_readers()
            if self.service.poll() is not None:
                log = self.place.log()[-3000:]
                raise Failed(f"the service ended by itself, with {self.service.returncode}: {log}")
            if self.wrong():
                break
        self.end()

    def start_reader(self, kind: str, name: str, number: int, python: str = sys.executable) -> None:
        command = [python, str(HERE / "stress_reader.py"), kind, name, str(self.root)]
        log = (self.root / f"reader-{kind}-{name}.log").open("wb")
        self.readers[f"{kind}-{name}"] = subprocess.Popen(
            [*command, str(self.seed * 100 + number)], env=self.place.env(), stderr=log
        )

    def look_at_readers(self, silent_s: float = SILENT_S) -> None:
        for name, process in self.readers.items():
            log = (self.root / f"reader-{name}.log").read_text(errors="replace")
            if process.poll() not in (None, 0):
                self.failures.append(f"reader {name} ended with {process.returncode}: {log[-3000:]}")
            path = self.root / "readers" / f"{name}.json"
            if path.exists() and time.time() - path.stat().st_mtime > silent_s and process.poll() is None:
                self.failures.append(f"reader {name} hangs: nothing for {silent_s:.0f} s")

    def end(self) -> None:
        """Readers end, and what the cache has is whole."""
        (self.root / "stop").touch()
        for name, process in self.readers.items():
            try:
                process.wait(SILENT_S)
            except subprocess.TimeoutExpired:
                self.failures.append(f"reader {name} hung at its end")
                process.kill()
                process.wait()
        self.look_at_readers()
        found = self.place.run("verify")
        if found.returncode:
            self.failures.append(f"verify: {found.stdout[-2000:]}{found.stderr[-1000:]}")
        self.service.terminate()
        if self.service.wait(60):
            self.failures.append(f"the service ended with {self.service.returncode}")
        self.failures += [f"the service's log: {trace}" for trace in tracebacks_in(self.place.log())]

    def told(self) -> list[dict[str, Any]]:
        return [
            {**json.loads(path.read_text()), "reader": path.stem}
            for path in sorted((self.root / "readers").glob("*.json"))
        ]

    def wrong(self) -> list[str]:
        return [f"{seen['reader']}: {wrong}" for seen in self.told() for wrong in seen["wrong"]]

    def counts(self) -> dict[str, Any]:
        errors: Counter[str] = Counter()
        for seen in self.told():
            errors.update(seen["errors"])
        return {
            "seed": self.seed,
            "samples": {seen["reader"]: seen["samples"] for seen in self.told()},
            "compared": sum(seen["samples"] for seen in self.told()),
            "epochs": sum(seen["epochs"] for seen in self.told()),
            "opens": sum(seen["opens"] for seen in self.told()),
            "flips_before_repair": sum(seen["flips"] for seen in self.told()),
            "actions": dict(self.actions),
            "starts": self.starts,
            "refused": dict(self.refused),
            "errors": dict(errors),
            "late": sum(count for kind, count in errors.items() if "WaitTimeout" in kind),
            "wrong": sum(seen["wrong_count"] for seen in self.told()),
            "failures": len(self.failures),
        }

    def kill_all(self) -> None:
        for process in (*self.readers.values(), self.service):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


def stress(root: Path, seconds: float, seed: int, tensorflow: str = "") -> tuple[dict[str, Any], list[str]]:
    """Run it; return the counts, and what must not be."""
    os.environ["STAGER_CONFIG"] = str(root / "stager.toml")
    one = Stress(root, seed, tensorflow)
    try:
        one.run(seconds)
    except Failed as error:
        one.failures.append(str(error))
    finally:
        one.kill_all()
    counts = one.counts()
    late = [f"{counts['late']} readers waited to their deadline"] if counts["late"] else []
    return counts, one.wrong() + one.failures + late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--root", type=Path)
    parser.add_argument("--tensorflow", default="", help="a Python that has TensorFlow, for one more reader")
    options = parser.parse_args()
    root = options.root or Path(tempfile.mkdtemp(prefix="stager-stress-"))
    print(f"seed {options.seed}, {options.seconds:.0f} s, in {root}", flush=True)
    counts, found = stress(root, options.seconds, options.seed, options.tensorflow)
    print(json.dumps(counts, indent=2))
    for what in found[:10]:
        print(f"FAILED (seed {options.seed}): {what}")
    if not found and options.root is None:
        shutil.rmtree(root)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
