"""What must hold in a simulated world after every step, one function a promise."""

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stager.cache.dataset import Dataset
from stager.cache.verify import check_books
from stager.catalog.rows import ShardRow
from stager.dispatch.task import BuildTask, Lot, Purpose
from stager.eviction.evictor import HEAT_MARGIN
from stager.owner.heat.hot import IDLE_CORES
from stager.reader.index import FORMAT_NAMES, Words, format_of, is_damaged, is_resident, row_of, shard_of
from stager.reader.record import datasets_dir
from stager.reader.shards import SUFFIXES, open_shard
from stager.reader.values import Numbers, SampleInfo
from world_parts import SimulatedPool, pixels, shown_by

if TYPE_CHECKING:
    from world import World

BLOCK_BYTES = 4096


def the_books_of_the_budget_add_up(world: "World", shards: list[ShardRow]) -> None:
    """Used is what is recorded and what is on its way to the disk; reserved is what open tasks have."""
    cache, staging = world.cache, world.loop
    recorded = sum(cache.departures.bytes_of(row) for row in shards)
    coming = sum(row.bytes for row in world.disk.rows())
    held = sum(cache.departures.files._held.values())  # gone, but some reader has it open
    assert cache.budget.used_bytes == recorded + coming + held, (cache.budget, recorded, coming, held)
    tasks = [task for task in staging._tasks._open.values() if isinstance(task, BuildTask)]
    memory = staging._transients
    reserved = {False: 0, True: 0}  # on the disk, in memory
    for task in tasks:
        reserved[task.lot.is_for_memory] += task.reservation.size_bytes
    assert cache.budget.reserved_bytes == reserved[False], (cache.budget.reserved_bytes, reserved)
    assert memory.reserved_bytes == reserved[True], (memory.reserved_bytes, reserved)
    assert memory.used_bytes == sum(shard.row.bytes for shard in memory._shards.values())
    for dataset in cache.open.values():
        flying = np.zeros(dataset.count, dtype=np.bool_)
        for task in tasks:
            if task.lot.dataset is dataset:
                flying[task.lot.samples] = True
        told = staging._tasks.in_flight(dataset)[np.arange(dataset.count)]
        assert np.array_equal(told, flying), "in flight and in no task"


def the_disk_holds_no_more_than_counts(world: "World") -> None:
    budget = world.cache.budget
    total = files = 0
    for path in shard_files(world.cache.directory):
        found = os.lstat(path)
        total += found.st_blocks * 512
        files += 1
    assert total <= budget.used_bytes + budget.reserved_bytes + files * BLOCK_BYTES, (total, budget)
    over = budget.used_bytes + budget.reserved_bytes > budget.capacity.of(0)
    world.is_shrunk = world.is_shrunk and over
    assert not over or world.is_shrunk, budget


def shard_files(directory: Path) -> list[str]:
    """Every shard's file on the disk, whole or being written; not those in memory."""
    found = [entry.path for entry in os.scandir(directory / "scratch") if entry.name.startswith("shard-")]
    for dataset in os.scandir(datasets_dir(directory)):
        with os.scandir(f"{dataset.path}/shards") as entries:
            found += [entry.path for entry in entries if not entry.is_symlink()]
    return found


def every_word_points_to_a_whole_row(world: "World", everything: bool) -> None:
    """Of all indexes, those that only readers have, too. Rows that may have changed, or all of them."""
    for dataset in world.cache.open.values():
        known = world.known_numbers(dataset.records)
        words = dataset.index.words.copy()
        before = world.words_seen.get(str(dataset.index.path), words[:0])
        is_new = np.ones(len(words), np.bool_)
        is_new[: len(before)] = words[: len(before)] != before[: len(words)]
        if everything:
            is_new[:] = True
        check_rows(world, dataset.directory, dataset.record.recipe, words, is_new, known)
        world.words_seen[str(dataset.index.path)] = words
    owned = {(d.record.recipe, d.record.lineage): d for d in world.cache.open.values()}
    for reader in world.readers:
        words = reader.reader.index.words.copy()
        owner = owned.get((reader.record.recipe, reader.record.lineage))
        differs = np.ones(len(words), np.bool_)
        if owner is not None:
            differs = words != owner.index.words[: len(words)]
        known = world.known_numbers(reader.reader.records)
        check_rows(world, reader.reader.directory, reader.record.recipe, words, differs, known)


def check_rows(
    world: "World",
    directory: Path,
    recipe: str,
    words: Words,
    mask: Any,
    known: list[SampleInfo],
) -> None:
    if not words[mask].any():
        return
    used = set()
    for number in np.flatnonzero(mask & is_resident(words)).tolist():
        word = words[number : number + 1]
        shard, row = int(shard_of(word)[0]), int(row_of(word)[0])
        if shard in world.flipped:
            continue
        suffix = SUFFIXES[FORMAT_NAMES[int(format_of(word)[0])]]
        path = f"{directory}/shards/{shard:08x}{suffix}"
        if (found := inode_of(path)) not in world.shards:  # opening takes long
            opened = open_shard(Path(path))
            world.shards[found] = opened, opened.identities()
        reader, identities = world.shards[found]
        used.add(found)
        assert reader.header.recipe == recipe, f"number {number} of another recipe"
        info = known[number]
        assert identities[row] == (info.key, info.version), f"number {number} is another sample"
        array = reader.row(row)["image"]
        right = pixels(*shown_by(info), array.shape[0])
        assert np.array_equal(array, right), f"number {number} shard {shard:08x} row {row} is not whole"
    for found in used:
        world.shards[found][0].close()  # or it would keep its blocks


def inode_of(path: str) -> int:
    """Which file has this name now; 0: none."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116
    except FileNotFoundError:
        return 0


def nothing_is_left_over(world: "World") -> None:
    """Files on the disk are recorded or under way, and what is recorded is there and in the index."""
    damaged = any(np.any(is_damaged(dataset.index.words)) for dataset in world.cache.open.values())
    told = check_books(world.cache, world.loop.paths_under_way())
    problems = [line for line in told if not damaged or not line.endswith(("damaged words", "the index"))]
    assert not problems, problems
    memory = world.loop._transients._directory
    if memory.exists():
        files = {path for path in memory.iterdir() if path.suffix != ".scratch"}
        known = {shard.path for shard in world.loop._transients._shards.values()}
        tasks = [task for task in world.loop._tasks._open.values() if isinstance(task, BuildTask)]
        known |= {task.file.path for task in tasks if task.lot.is_for_memory}
        assert files <= known, files - known


def hits_and_misses_are_requests(world: "World") -> None:
    counts: dict[str, list[int]] = {}
    for row in world.cache.catalog.counts.all():
        assert row["hits"] + row["misses"] == row["requests"], row
        assert sum(row["reasons"].values()) == row["misses"], row
        sums = counts.setdefault(row["session"], [0, 0])
        sums[0] += row["requests"]
        sums[1] += row["misses"]
    if world.is_catalog_whole:
        for reader in world.readers:
            found = counts.get(reader.session, [0, 0])
            told = [[total.requests, total.misses] for total in reader.sent]
            assert found in told, (found, told)  # the answers to what was sent last may have been lost


def what_is_hot_comes_after_all_else(world: "World", lot: Lot) -> None:
    """Nothing is staged unasked while a job is open, a reader waits, or others need the cores."""
    if lot.purpose is Purpose.HOT:
        world.counts["hot"] += 1
        assert not world.loop.jobs.busy(), "but for those whose source hangs"
        assert not len(world.loop._waiting)
        assert world.config.hot is None or world.busy_cores <= 1 - IDLE_CORES


def heat_of_residents(world: "World") -> dict[tuple[int, int], float]:
    """By data set and sample, where no order says when it is read."""
    found = {}
    for dataset in world.cache.open.values():
        if dataset.id not in world.loop.sessions.datasets():
            here = dataset.resident()
            heat = dataset.guess(world.clock.wall_s)[here]
            found |= {(dataset.id, at): hot for at, hot in zip(here.tolist(), heat.tolist(), strict=True)}
    return found


def nothing_hotter_went(
    world: "World", before: dict[tuple[int, int], float], dataset: Dataset, kept: Numbers
) -> None:
    """What went for hot samples is colder than each of them, by the margin of hysteresis."""
    after = heat_of_residents(world)
    gone = [heat for sample, heat in before.items() if sample not in after]
    if gone and dataset.id not in world.loop.sessions.datasets():
        world.counts["colder"] += len(gone)
        coldest = float(dataset.guess(world.clock.wall_s)[kept].min())
        assert max(gone) * HEAT_MARGIN <= coldest * 1.001, (max(gone), coldest)


def whoever_waits_has_a_deadline(world: "World") -> None:
    """After a step of the loop nobody waits whose time is up, and every answer says what it should."""
    for want in world.loop._waiting._open:
        assert want.until > world.clock.now_s, "a reader waits for ever"
    waits = []
    for future, until in world.waits:
        if future.done():
            error = future.exception()
            world.note_answer(error)
        else:
            assert until > world.clock.now_s, "a reader's answer is lost"
            waits.append((future, until))
    world.waits = waits


def what_is_leased_is_kept(world: "World") -> None:
    """A version that a living reader has said it reads stays: its manifest, its list and its index."""
    for reader in world.readers:
        assert not reader.is_leased or reader.is_kept(), f"{reader.session}: its version has gone"


def what_is_pinned_stays(world: "World", shards: list[ShardRow]) -> None:
    """Nothing but damage takes a pinned sample away, as long as it is pinned."""
    pinned = {row.number: row.samples[row.samples >= 0].tolist() for row in shards if row.is_pinned}
    if not world.is_damaged and world.is_catalog_whole and world.lists() == world.lists_seen:
        for number, samples in world.pinned.items():
            assert pinned.get(number) == samples, f"pinned shard {number:08x} had {samples}"
    world.pinned, world.lists_seen = pinned, world.lists()


def recorded_samples(world: "World") -> set[tuple[str, str, int]]:
    """What somebody was told is staged: recipe, list and number of each sample."""
    about = {dataset.id: dataset.record for dataset in world.cache.open.values()}
    return {
        (about[row.dataset].recipe, about[row.dataset].lineage, number)
        for row in world.cache.catalog.shards()
        for number in row.samples[row.samples >= 0].tolist()
    }


def what_was_recorded_is_there(world: "World", before: set[tuple[str, str, int]]) -> None:
    """An owner that was killed loses nothing that was acknowledged."""
    assert before <= recorded_samples(world), before - recorded_samples(world)


def nothing_is_under_way(world: "World") -> None:
    """Once all work is done and all readers are gone, no task, reservation, file or wait is left."""
    staging, pool = world.loop, world.pool
    assert isinstance(pool, SimulatedPool)
    assert not staging._tasks._open
    assert not list(staging._tasks._urgent)
    assert not list(staging._tasks._suspects)
    assert not staging._waiting._open
    assert not len(world.disk)
    assert staging.cache.budget.reserved_bytes == 0
    world.readers.clear()
    world.makes.clear()
    if staging.cache.departures.files._held:
        gc.collect()  # readers that were stopped are in frames of errors
    staging.cache.departures.files.settle()
    assert not staging.cache.departures.files._held, "nobody has them open, and they count"
    open_jobs = [job.told() for job in staging.jobs.by_id.values() if not job.ended]
    assert not open_jobs, open_jobs
