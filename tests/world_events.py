"""What can happen in a simulated world: a method each, drawn by its weight."""

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import world_promises as promises
from stager.cache.verify import problem_of
from stager.dispatch.pool import WorkerMessage
from stager.errors import StagerError
from stager.jobs.job import Request
from stager.owner.loop import STOP_S
from stager.reader.amount import Amount
from stager.reader.index import HEADER_BYTES, is_damaged
from stager.reader.record import datasets_dir
from stager.watch.hint import EVERYTHING, Hint
from stager.watch.messages import Beat, Gone, Hinted, Watching
from world_parts import Killed, SimulatedTable
from world_readers import SimulatedReader

CAPACITIES: Final = (200_000, 300_000, 450_000, 700_000, 3_000_000)
READERS_MOST: Final = 5
SETS: Final = {"a": 24, "b": 8, "t": 6}  # data sets, and how many objects each has
YEAR_S: Final = 365 * 86_400.0


class Events:
    """All of them. The rest of the world is in world.py."""

    # Events: jobs

    def prefetch(self) -> None:
        stop_after = self.rng.choice(("", "", "", "", "scan", "plan"))
        kind = self.rng.choice(("auto", "auto", "auto", "lmdb"))
        request = Request(self.spec(self.name()), self.subset(), kind, stop_after)
        self.ask(lambda: self.owner.prefetch(request))

    def cancel(self) -> None:
        jobs = [job.id for job in self.loop.jobs.by_id.values()]
        if jobs:
            self.ask(lambda: self.owner.cancel(self.rng.choice(jobs)))

    # Events: workers and the disk

    def work(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            if self.rng.random() < 0.5 and self.beside.go():
                continue
            if busy := self.pool.busy():
                self.pool.do(self.rng.choice(busy), self.rng, self.fails)
        if self.rng.random() < 0.8:
            self._say_all()

    def say(self) -> None:
        self._say_all()

    def _say_all(self) -> None:
        for answer in self.pool.unsaid:
            self.loop.events.put(answer)
        self.pool.unsaid.clear()

    def worker_dies(self) -> None:
        workers = [worker for worker in self.pool.workers if worker.tasks]
        if workers:
            worker = self.rng.choice(workers)
            if self.rng.random() < 0.5:  # what it did last was not told
                self.pool.unsaid = [answer for answer in self.pool.unsaid if answer.worker is not worker]
            self._say_all()
            self.loop.events.put(WorkerMessage(worker, None))

    def worker_hangs(self) -> None:
        if busy := self.pool.busy():
            self.rng.choice(busy).hangs = True

    def source_hangs(self) -> None:
        """Or it hangs on: workers notice."""
        self.pool.hung.add(self.name())
        self.pool.tell_hung()

    def source_answers(self) -> None:
        self.pool.answer()

    def disk_syncs(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            self.disk.sync()

    def disk_fails(self) -> None:
        self.disk.sync(is_broken=True)

    # Events: the source

    def source_changes(self) -> None:
        source = self.sources[self.name()]
        for _ in range(self.rng.randint(1, 6)):
            keys = sorted(source.versions)
            act = self.rng.choice(("change", "change", "add", "remove", "revert"))
            key = self.rng.choice(keys) if keys else ""
            if isinstance(source, SimulatedTable) and keys and self.rng.random() < 0.5:
                self._table_changes(source, key)
            elif act == "add" or not keys:
                source.add(f"c{self.rng.randrange(3)}/{self.rng.randrange(40):02d}.jpg")
            elif act == "change":
                source.change(key)
            elif act == "remove":
                del source.versions[key]
            else:
                source.versions[key] = self.rng.randint(1, source.newest[key])

    def _table_changes(self, table: SimulatedTable, key: str) -> None:
        """A row names another object, which may have the same version; or it comes, or goes."""
        row = self.rng.choice(sorted(table.rows))
        act = self.rng.choice(("point", "point", "add", "remove"))
        if act == "remove" and len(table.rows) > 1:
            del table.rows[row]
        else:
            table.point(row if act == "point" else f"r{self.rng.randrange(30):02d}", key)

    def watcher_speaks(self) -> None:
        """Hints come, right or wrong; the source goes and comes back, or so it seems; a watcher ends."""
        for watcher in self.watchers:
            watcher.say(self.rng.choice(SAYINGS))

    def source_vanishes(self) -> None:
        source = self.sources[self.name()]
        source.is_there = not source.is_there

    # Events: readers

    def open_reader(self) -> None:
        name = self.name()
        if name in self.cache.datasets and len(self.readers) < READERS_MOST:
            self.open_named(name)

    def open_named(self, name: str) -> None:
        self.serial += 1
        pid = self.rng.choice((100 + self.serial, 100 + self.serial, 0))
        if pid:
            self.processes[pid] = self.serial
        # Whatever is going on, what an owner has can be opened.
        reader = SimulatedReader.open(
            datasets_dir(self.config.cache_dir) / name, f"s{self.serial}", pid, self.listed
        )
        self.readers.append(reader)
        if self.rng.random() < 0.8:
            self._hello(reader)

    def _hello(self, reader: SimulatedReader) -> None:
        said = self.ask(
            lambda: self.owner.readers.hello(
                reader.version, reader.session, reader.record.manifest, reader.pid
            )
        )
        # One that says so too late may find that its version is not kept any more.
        reader.is_leased = said is not None and reader.pid > 0 and reader.is_kept()

    def reader_dies(self) -> None:
        if (reader := self.pick_reader()) is not None:
            self.readers.remove(reader)
            self.processes.pop(reader.pid, None)

    def read(self) -> None:
        if (reader := self.pick_reader()) is not None:
            self._read(reader, reader.pick(self.rng, self.rng.randint(1, 16)))

    def _read(self, reader: SimulatedReader, numbers: Any) -> None:
        try:
            missing, corrupt = reader.fill(numbers)
        except StagerError:
            self.counts["read_errors"] += 1
            return
        self._was_read(reader, numbers, missing, corrupt)

    def read_slowly(self) -> None:
        """A reader that is stopped between two samples, while the world goes on."""
        reader = self.pick_reader()
        if reader is None or self.depth:
            return
        numbers = reader.pick(self.rng, self.rng.randint(2, 6))
        if self.rng.random() < 0.7:  # found right once, it is not checked again
            self._read(reader, numbers)

        def between() -> None:
            if self.rng.random() < 0.4:
                self.depth += 1
                self.step(self.rng.choice(RUDE_EVENTS))
                self.depth -= 1

        try:
            missing, corrupt = reader.visit(numbers, between)
        except StagerError:
            self.counts["read_errors"] += 1
            return
        if reader in self.readers:
            self._was_read(reader, numbers, missing, corrupt)

    def _was_read(
        self, reader: SimulatedReader, numbers: Any, missing: list[int], corrupt: list[int]
    ) -> None:
        self.counts["compared"] += len(numbers) - len({*missing, *corrupt})
        self.counts["misses"] += len({*missing, *corrupt})
        assert self.is_damaged or not corrupt, f"{reader.session}: {corrupt} are corrupt, and nobody did it"
        reader.count(numbers, len({*missing, *corrupt}))
        if reader.order is not None:
            reader.position = min(reader.position + len(numbers), len(reader.order))
        wanted = numbers[sorted({*missing, *corrupt})].tolist()
        if wanted and self.rng.random() < 0.6:
            self._want(reader, wanted, numbers[corrupt].tolist())

    def _want(self, reader: SimulatedReader, samples: list[int], corrupt: list[int]) -> None:
        wait_s = self.rng.choice((0.5, 5.0, 20.0))
        until = self.clock.now_s + wait_s
        answer = self.ask(lambda: self.owner.readers.want(reader.version, samples, corrupt, wait_s))
        if answer is not None:
            self.waits.append((answer, until))

    def hold_shards(self) -> None:
        if (reader := self.pick_reader()) is not None:
            reader.held = reader.reader._open_shards(("image",))

    def read_held(self) -> None:
        reader = self.pick_reader()
        if reader is not None and reader.held is not None:
            self.counts["compared"] += reader.read_held(reader.manifest.numbers)

    def report(self) -> None:
        reader = self.pick_reader()
        if reader is None:
            return
        answer = self.ask(lambda: self.owner.readers.report(reader.report()))
        if answer is not None:
            reader.sent = [reader.totals]
            reader.reads.clear()
            if not answer["knows_reader"]:
                self._hello(reader)

    def begin_epoch(self) -> None:
        reader = self.pick_reader()
        if reader is None:
            return
        reader.epoch += 1
        make = self.ask(lambda: self.owner.readers.asked_to_read(reader.reading(self.rng)))
        if make is not None:
            self.makes.append((reader, make))
            if self.rng.random() < 0.7:
                self.order_is_known()

    def order_is_known(self) -> None:
        """What was worked out beside the loop comes back to it."""
        if not self.makes:
            return
        reader, make = self.makes.pop(0)
        session = self.ask(make)
        if session is None or reader not in self.readers:
            return
        if self.ask(lambda: self.owner.readers.read_in_order(session)) is not None:
            reader.order, reader.position = session.order, 0

    # Events: people

    def evict(self) -> None:
        self.ask(lambda: self.owner.evict(self.name(), self.subset()))

    def pin(self) -> None:
        self.ask(lambda: self.owner.pin(self.name(), self.subset(), self.rng.random() < 0.5))
        self.pinned.clear()

    def look(self) -> None:
        self.ask(self.owner.status)
        self.ask(self.owner.stats)
        for name in SETS:
            self.ask(lambda name=name: self.owner.why(name, "0"))
            self.ask(lambda name=name: self.owner.failures(name))
            self.ask(lambda name=name: self.owner.reads(name))

    def repair(self) -> None:
        bad = [
            shard["shard"]
            for shard in self.owner.shards()
            if problem_of(Path(shard["path"]), shard["dead_rows"])
        ]
        assert self.flipped.issuperset(bad), "bad, and nobody damaged it"
        self.ask(lambda: self.owner.drop_bad(bad))

    # Events: damage

    def flip_shard(self) -> None:
        shards = self.owner.shards()
        if not shards or not self.can_be_damaged:
            return
        shard = self.rng.choice(shards)
        with Path(shard["path"]).open("r+b") as file:
            at = self.rng.randrange(shard["bytes"])
            if os.lseek(file.fileno(), at, os.SEEK_DATA) != at:
                return  # in a hole
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << self.rng.randrange(8)]), at)
        self.flipped.add(shard["shard"])
        self.is_damaged = True
        for reader in self.readers:  # a flip after the first touch is not seen: let the next be the first
            reader.reader._checked[:] = 0

    def flip_word(self) -> None:
        datasets = list(self.cache.open.values())
        if not datasets or not self.can_be_damaged:
            return
        dataset = self.rng.choice(datasets)
        number = self.rng.randrange(max(dataset.count, 1))
        if is_damaged(dataset.index.words[number : number + 1])[0]:
            return  # a second flip could make a word of it that looks right
        self.is_damaged = True
        with dataset.index.path.open("r+b") as file:
            at = HEADER_BYTES + 8 * number + self.rng.randrange(8)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << self.rng.randrange(8)]), at)

    # Events: room and time

    def budget_changes(self) -> None:
        budget = self.cache.budget
        if self.rng.random() < 0.5:
            capacity = Amount(bytes=self.rng.choice(CAPACITIES))
            budget.capacity = capacity
            self.config = replace(self.config, capacity=capacity)
            self.is_shrunk = True
        else:  # others fill the disk, or make room again
            budget.reserve = Amount() if budget.reserve.fraction else Amount(fraction=1.0)

    def cores_get_busy(self) -> None:
        """Others compute on all cores, or leave them."""
        self.busy_cores = 1.0 - self.busy_cores

    def time_passes(self) -> None:
        self.clock.advance(
            self.rng.choice((0.1, 0.5, 1.0, 3.0, 6.0, 6.0, 61.0, 61.0, 130.0, 700.0, 25_000.0))
        )

    def wall_jumps(self) -> None:
        self.clock.wall_s += self.rng.choice((-1, 1)) * self.rng.choice((1.0, 3600.0, YEAR_S, 5 * YEAR_S))
        self.clock.wall_s = max(self.clock.wall_s, 0.0)

    # Events: the owner's end

    def kill(self) -> None:
        self.recorded = promises.recorded_samples(self)
        raise Killed

    def crash(self) -> None:
        """The owner is killed somewhere in the next things that it does."""
        for reader in self.readers:
            self._read(reader, reader.manifest.numbers)
        self.fuse.left = self.rng.randint(1, 30)
        for _ in range(self.rng.randint(1, 4)):
            name = self.rng.choice(("work", "disk_syncs", "evict", "evict", "prefetch", "repair", "report"))
            self.note(f"  {name}")
            getattr(self, name)()
            self.loop.step(0.0)

    def crash_at_start(self) -> None:
        self.recorded = promises.recorded_samples(self)
        self._abandon()
        self.fuse.left = self.rng.randint(1, 30)
        self._start_again()

    def restart(self) -> None:
        """A stop that waits for the disk, or waits in vain."""
        for _ in range(len(self.disk) if self.rng.random() < 0.8 else 0):
            self.disk.sync()
        self.clock.drift_s = STOP_S
        self.loop.stop()
        self.clock.drift_s = 0.0
        self.waits.clear()
        self.makes.clear()
        self.cache.close()
        self.is_owned = False
        self._start_again()

    def lose_catalog(self) -> None:
        if not self.can_be_damaged:
            return
        self._abandon()
        gc.collect()  # SQLite closes a file when the last cursor goes, and a killed owner's are in frames
        path = self.config.cache_dir / "catalog.db"
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        with path.open("r+b") as file:
            file.truncate(100)
        self.is_catalog_whole = False
        for reader in self.readers:
            reader.is_leased = False
        self._start_again()


SAYINGS: Final = (
    *(Hinted(EVERYTHING), Hinted(Hint.of(["c1"])), Hinted(Hint.of(["c0", "c2"], ["c1"]))),
    *(
        Hinted(EVERYTHING),
        Beat(),
        Gone("simulated: it is not there"),
        Watching("simulated"),
        Watching("simulated"),
        None,
    ),
)
EVENTS: Final[dict[str, float]] = {
    "prefetch": 4.5,
    "cancel": 0.5,
    "work": 20,
    "say": 2,
    "worker_dies": 1.5,
    "worker_hangs": 0.5,
    "source_hangs": 0.6,
    "source_answers": 0.6,
    "disk_syncs": 10,
    "disk_fails": 0.7,
    "source_changes": 3,
    "source_vanishes": 0.3,
    "watcher_speaks": 3,
    "open_reader": 4,
    "reader_dies": 2.5,
    "read": 16,
    "read_slowly": 3,
    "hold_shards": 1,
    "read_held": 2,
    "report": 5,
    "begin_epoch": 2,
    "order_is_known": 1,
    "evict": 1.5,
    "pin": 1,
    "look": 0.7,
    "repair": 0.7,
    "flip_shard": 0.8,
    "flip_word": 1.2,
    "budget_changes": 0.8,
    "cores_get_busy": 0.4,
    "time_passes": 10,
    "wall_jumps": 0.3,
    "kill": 0.8,
    "crash": 1.0,
    "crash_at_start": 0.2,
    "restart": 0.6,
    "lose_catalog": 0.2,
}
RUDE_EVENTS: Final = (
    "evict",
    "evict",
    "evict",
    "work",
    "time_passes",
    "source_changes",
    "prefetch",
    "crash",
    "kill",
)
EVENT_NAMES: Final = list(EVENTS)
EVENT_WEIGHTS: Final = list(EVENTS.values())
