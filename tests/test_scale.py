"""A hundred thousand samples: what is done for every shard and every request looks at no more than it needs.

Memory is counted, not time: a mask or a copy of a whole data set is seen on every machine.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from making import Listed, folder_layout, image_folder
from running import Place
from sets import staged, table
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.catalog.rows import ShardRow
from stager.config import Config
from stager.errors import UsageError
from stager.owner.owner import Owner
from stager.owner.readers import Version
from stager.reader.amount import Amount
from stager.reader.index import is_resident
from stager.reader.record import DatasetSpec
from stager.reader.samples.runs import is_among
from stager.reader.samples.sealed import read_sealed
from stager.reader.samples.subset import Subset
from stager.reader.values import Numbers, ObjectInfo, SourceSpec
from stager.recipes import check_recipe
from stager.scan.scan import NOTHING_KNOWN, Known, Scan, write_manifest
from stager.sessions import session as sessions
from stager.sessions.session import OpenSession, OrderRequest

COUNT = 100_000
CLASSES = 1000
FEW = np.asarray([5, 70_000, 99_999])
SMALL_BYTES = COUNT // 2  # not even a mask with a byte for each sample
SPEC = DatasetSpec("data", SourceSpec("/nowhere"), "folder", check_recipe({"kind": "image", "crop": 8}))


def objects(count: int = COUNT) -> Iterator[ObjectInfo]:
    for number in range(count):
        yield ObjectInfo(f"class{number * CLASSES // COUNT:05d}/{number:09d}.jpg", 100, f"{number:032x}")


def peak_of(act: Callable[[], object]) -> int:
    """The most bytes that an act had at once."""
    act()  # what is worked out once and kept does not count
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def adopt(cache: Cache, count: int = COUNT) -> Dataset:
    before = cache.known("data")
    known = Known(before.records, before.manifest) if before else NOTHING_KNOWN
    write_manifest(cache.scratch / "scan", folder_layout(), Listed(objects(count)), known)
    return cache.adopt(SPEC, Scan(cache.scratch / "scan"))[0]


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """The owner of a cache with many samples, half of which are staged, as far as its books say."""
    root = tmp_path_factory.mktemp("many")
    cache = Cache(Config(None, root / "cache", root / "sock", Amount(bytes=10**12), Amount()))
    dataset = adopt(cache)
    with cache.catalog.transaction():
        for part in np.array_split(np.arange(0, COUNT, 2), 100):
            number, path = cache.next_shard(dataset, "arrow")
            path.touch()
            row = ShardRow(number, dataset.id, "arrow", 0, part, number % 2 == 0, time.time())
            cache.publish(dataset, row)
            cache.catalog.add_shard(row)
    yield Owner(cache)
    cache.close()


def dataset_of(owner: Owner) -> Dataset:
    return owner.cache.datasets["data"]


def reading(dataset: Dataset, *own_orders: list[int]) -> OrderRequest:
    orders = tuple(np.asarray(order, dtype=np.int64) for order in own_orders)
    return reading_of(dataset, "s", COUNT, orders)


def reading_of(dataset: Dataset, name: str, count: int, orders: tuple[Numbers, ...]) -> OrderRequest:
    record = dataset.record
    version = (record.recipe, record.lineage, record.manifest)
    return OrderRequest(name, "data", *version, Subset(), True, 1, 0, 0, 1, False, count, 0, orders)


def session_of(owner: Owner, dataset: Dataset, about: OrderRequest) -> OpenSession:
    return OpenSession(about, dataset, dataset.manifest, owner.clock)


def version_of(dataset: Dataset) -> Version:
    return Version("data", dataset.record.recipe, dataset.record.lineage)


def test_a_listing_is_held_once_and_little_more(tmp_path: Path) -> None:
    tracemalloc.start()
    write_manifest(tmp_path / "m", folder_layout(), Listed(objects()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(read_sealed(tmp_path / "m")) == COUNT
    entries_bytes = 16_384 * 1000  # those that are Python values for a while
    written_bytes = sum(path.stat().st_size for path in (tmp_path / "m", *Scan(tmp_path / "m").segments))
    assert peak < 1.7 * written_bytes + entries_bytes


def test_what_a_waiting_reader_costs_does_not_grow_with_the_data_set(owner: Owner) -> None:
    dataset = dataset_of(owner)
    owner.loop.sessions.register(session_of(owner, dataset, reading(dataset)))
    job = owner.loop.jobs.restage(dataset, np.arange(1, COUNT, 2))
    version = version_of(dataset)
    assert peak_of(lambda: owner.readers.want(version, FEW.tolist(), [], 1.0)) < SMALL_BYTES
    assert owner.loop.planned(dataset, FEW).tolist() == [True, True, True]
    owner.loop.jobs.cancel(job)


def test_the_next_shard_of_a_job_costs_no_look_at_all_samples(owner: Owner) -> None:
    dataset, jobs = dataset_of(owner), owner.loop.jobs
    job = jobs.restage(dataset, np.arange(COUNT))
    pieces = []
    assert peak_of(lambda: pieces.append(jobs.next_lot())) < SMALL_BYTES
    samples = [piece.samples.tolist() for piece in pieces if piece is not None]
    assert samples[0][:3] == [1, 3, 5]  # every second one is staged
    assert samples[1][0] == samples[0][-1] + 2
    assert peak_of(lambda: jobs.waiting(dataset, FEW)) < SMALL_BYTES
    assert peak_of(lambda: jobs.wanted(dataset, FEW)) < SMALL_BYTES
    assert peak_of(lambda: dataset.records.infos(FEW)) < SMALL_BYTES
    jobs.cancel(job)


def test_a_job_that_has_ended_holds_nothing_of_its_data_set(owner: Owner) -> None:
    jobs = owner.loop.jobs
    job = jobs.restage(dataset_of(owner), np.arange(COUNT))
    jobs.cancel(job)
    assert (len(job.numbers), len(job.queue), job.left, job.dataset) == (0, 0, 0, None)
    assert owner.job(job.id)["wanted"] == COUNT


def test_status_and_ls_tell_what_the_shards_add_up_to_without_opening_their_rows(owner: Owner) -> None:
    (row,) = owner.datasets()
    shards = owner.cache.catalog.shards()
    assert (row["shards"], row["resident"], row["format"]) == (100, COUNT // 2, "arrow")
    assert row["pinned"] == sum(len(shard.samples) for shard in shards if shard.is_pinned) > 0
    assert peak_of(lambda: owner.cache.catalog.holdings(row_id(owner))) < SMALL_BYTES


def row_id(owner: Owner) -> int:
    return dataset_of(owner).id


def test_status_leaves_out_the_classes_of_jobs_which_may_be_thousands(owner: Owner) -> None:
    job = owner.loop.jobs.restage(dataset_of(owner), FEW)
    job.classes = dataset_of(owner).manifest.classes
    (told,) = [known for known in owner.status()["jobs"] if known["id"] == job.id]
    assert "classes" not in told
    assert len(owner.job(job.id)["classes"]) == CLASSES
    owner.loop.jobs.cancel(job)


def test_a_sample_that_an_order_repeats_is_expected_until_its_last_place(owner: Owner) -> None:
    dataset = dataset_of(owner)
    session = session_of(owner, dataset, reading(dataset, [7, 8, 7, 9]))
    session.heard(2)
    assert session.is_ahead(np.asarray([7, 8, 9, 10])).tolist() == [True, False, True, False]
    session.heard(3)
    assert session.is_ahead(np.asarray([7, 9])).tolist() == [False, True]


def test_a_reader_whose_samples_are_all_there_is_looked_through_in_large_steps(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = dataset_of(owner)
    resident = list(range(0, COUNT, 2))
    session = session_of(owner, dataset, reading(dataset, [*resident, 7, 9, *resident, 11]))
    looks = []
    monkeypatch.setattr(sessions, "is_resident", lambda words: looks.append(len(words)) or is_resident(words))
    nothing_in_flight = np.zeros(COUNT, dtype=np.bool_)
    assert session.ahead(nothing_in_flight, 2, 10 * COUNT).tolist() == [7, 9]
    assert session.cursor == len(resident) + 2  # right behind the last one
    assert len(looks) < 30
    assert session.ahead(nothing_in_flight, 2, 10 * COUNT).tolist() == [11]
    assert session.cursor == len(session.order)


def test_a_session_that_was_worked_out_for_an_older_scan_stays_on_its_version(tmp_path: Path) -> None:
    cache = Cache(Config(None, tmp_path / "cache", tmp_path / "sock", Amount(bytes=10**12), Amount()))
    owner = Owner(cache)
    dataset = adopt(cache)
    make = owner.readers.asked_to_read(reading(dataset))
    session = make()
    assert owner.readers.read_in_order(session) == {"samples": COUNT, "missing": COUNT}
    adopt(cache, COUNT - 1)
    assert owner.readers.read_in_order(session) == {"samples": COUNT, "missing": COUNT}
    again = owner.readers.asked_to_read(replace(reading(dataset), manifest=session.asked.manifest))()
    assert again.order.tolist() == session.order.tolist()
    gone = replace(reading(dataset), lineage="0" * 32)
    with pytest.raises(UsageError, match="that was opened is not kept any more"):
        owner.readers.asked_to_read(gone)
    cache.close()


@pytest.mark.parametrize("numbers", [[], [3], [0, 3, 9]])
def test_is_among_says_the_same_as_a_set(numbers: list[int]) -> None:
    samples = np.arange(12)
    expected = [sample in set(numbers) for sample in range(12)]
    assert is_among(samples, np.asarray(numbers, dtype=np.int64)).tolist() == expected


def test_a_plan_takes_a_fresh_scan_and_a_prefetch_scans_anew(tmp_path: Path) -> None:
    place = Place(tmp_path).configure(table("pets", tmp_path / "source"))
    image_folder(tmp_path / "source", 2, 2)
    assert place.json("prefetch", "--plan")["samples"] == 4
    image_folder(tmp_path / "source", 2, 3)
    assert place.json("prefetch", "--plan")["samples"] == 4
    assert place.json("prefetch", "--plan", "--classes", "1")["samples"] == 2
    done = place.run("prefetch", "--plan", "--classes", "3")
    assert (done.returncode, "3 classes were asked for, and there are 2" in done.stderr) == (2, True)
    assert place.json("prefetch")["staged"] == 6
    assert len(staged(place, "pets")) == 6
    place.configure(table("pets", tmp_path / "source", "crop = 40"))  # another recipe is another plan
    assert place.json("prefetch", "--plan")["samples"] == 6


def test_of_batches_that_readers_wait_for_the_nearest_is_given_out_first(tmp_path: Path) -> None:
    """A reader's threads ask at the same time, and any may be heard first; another has other samples."""
    cache = Cache(Config(None, tmp_path / "cache", tmp_path / "sock", Amount(bytes=10**12), Amount()))
    owner, dataset = Owner(cache), adopt(cache, 900)
    orders = np.split(np.random.default_rng(0).permutation(900), [600])
    for name, order in zip("ab", orders, strict=True):
        about = reading_of(dataset, name, 900, (order, order))
        owner.loop.sessions.register(session_of(owner, dataset, about))
    owner.readers.heard("b", 150)
    far, near, nearest = orders[0][300:500], orders[0][100:300], orders[1][200:300]
    for batch in (far, near, nearest):
        owner.readers.want(version_of(dataset), batch.tolist(), [], 60.0)
    lots = iter(owner.loop._tasks.next_urgent, None)
    given = [owner.loop.sessions.distance_to(dataset, lot.samples) for lot in lots]
    assert given == sorted(given)
    assert {50, 100, 300} <= set(given)
    cache.close()
