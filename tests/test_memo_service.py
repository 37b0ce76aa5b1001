"""Kept results in the budget of a cache, with a service and without: counted, bounded, swept, evicted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from making import image_folder
from running import Place
from stager.errors import NoSpace
from stager.reader.memo.room import Kept, longest_unused, over_part
from stager.reader.memo.store import MemoStore
from stager.reader.samples.subset import Subset
from stager_client.memo import memo
from stager_client.samples import StagedSamples

NAME = "numbers"
RESULT_BYTES = 400_000


def make(seed: int) -> Any:
    return np.full(RESULT_BYTES // 8, seed, np.int64)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A budget of 2 MB: results may have half of it, two of ours."""
    place = Place(tmp_path).configure("", capacity="2MB")
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    return place


def seeds(place: Place) -> list[int]:
    """The seeds of the results that are kept."""
    store = MemoStore(place.cache)
    kept = (store.find(NAME, key) for key in store.keys(NAME))
    return sorted(int(record.key.arguments["seed"].parts["value"]) for record in kept if record)


def used_bytes(place: Place) -> int:
    return int(place.json("status")["budget"]["used_bytes"])


def keep(*wanted: int) -> None:
    numbers = memo(make, name=NAME)
    for seed in wanted:
        assert int(numbers(seed)[0]) == seed
        time.sleep(0.01)  # so that one was used before the other


def test_results_without_a_service_keep_to_half_of_the_budget_and_the_longest_unused_goes(
    place: Place,
) -> None:
    keep(1, 2, 1, 3)
    assert seeds(place) == [1, 3]
    with pytest.warns(RuntimeWarning, match=r"could not be kept: the result has .*\(a larger .* capacity"):
        memo(lambda: np.zeros(3 * RESULT_BYTES // 8))()
    assert seeds(place) == [1, 3]
    gone = [record for record in MemoStore(place.cache).records(NAME) if record.gone_at]
    assert [record.gone_why for record in gone] == ["for a newer result"]


def test_the_service_counts_results_bounds_them_and_takes_them_away(place: Place) -> None:
    keep(7)
    with place.service():
        before = used_bytes(place)
        assert RESULT_BYTES < before < 1.1 * RESULT_BYTES
        keep(8, 7, 9)
        assert seeds(place) == [7, 9]
        assert used_bytes(place) == pytest.approx(2 * before, rel=0.02)
        (row,) = place.json("ls", "memo")
        assert (row["name"], row["results"], row["bytes"]) == (NAME, 2, used_bytes(place))
        assert place.json("evict", "memo", NAME)["results"] == 2
        assert (seeds(place), used_bytes(place)) == ([], 0)
        keep(7)
        whys = [result["why"][0] for result in place.json("why", "memo", NAME)["results"]]
        assert whys[0].endswith(": by stager evict")
        assert "argument seed: 8 -> 9" in whys or "argument seed: 7 -> 9" in whys


def test_samples_that_nobody_asked_for_lately_make_room_for_a_result(place: Place) -> None:
    image_folder(place.root / "photos", 1, 60)
    source = f'[datasets.photos]\nsource = "{place.root}/photos"\nrecipe = {{ resize = 120, crop = 120 }}\n'
    place.configure(source, capacity="2MB")
    with place.service():
        place.json("prefetch", "photos", "--per-class", "1")
        StagedSamples("photos", Subset(), None, 60.0, False).read(range(60))
        assert used_bytes(place) > 2_000_000 - RESULT_BYTES
        (before,) = place.json("ls", "photos")
        keep(1)
        (after,) = place.json("ls", "photos")
        assert seeds(place) == [1]
        assert used_bytes(place) <= 2_000_000
        assert before["resident"] - 20 < after["resident"] < before["resident"]


WRITES = """
import os, time
from pathlib import Path
from stager_client.memo import memo
def save(result, path):
    path.write_bytes(bytes(1000))
    Path("written").touch()
    time.sleep(60)
memo(lambda: 1, name="killed", save_file=save, load_file=Path.read_bytes)()
"""


def test_what_a_killed_process_was_writing_is_swept_and_what_a_living_one_writes_stays(place: Place) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITES], cwd=place.root, env=os.environ)
    deadline = time.monotonic() + 30
    while not (place.root / "written").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    scratch = place.cache / "memo/.scratch"
    assert place.json("ls", "memo") == []  # a command opens the cache, as the service does at its start
    assert len(list(scratch.iterdir())) == 1
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert place.json("ls", "memo") == []
    assert list(scratch.iterdir()) == []


def test_a_cache_whose_results_are_out_of_reach_works_all_the_same(place: Place) -> None:
    place.cache.mkdir()
    (place.cache / "memo").write_text("no folder")
    assert place.json("ls", "memo") == []


def test_the_longest_unused_results_go_and_no_more_than_needed() -> None:
    results = [Kept("f", "a", 3.0, 10), Kept("f", "b", 1.0, 10), Kept("g", "c", 2.0, 10)]
    assert longest_unused(results, 0) == []
    assert [result.key for result in longest_unused(results, 11)] == ["b", "c"]
    assert [result.key for result in over_part(results, 10, 60)] == ["b"]
    with pytest.raises(NoSpace, match="half of it"):
        over_part(results, 31, 60)
