"""A cache that a command owns can be looked at: ls, status and stats answer what the owner would."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from making import image_folder, jpeg
from running import Place
from sets import table
from stager.catalog.catalog import Catalog
from stager.catalog.rows import ListRow
from stager.cli.ask import Seen, open_owner, open_to_look
from stager.config import load_config
from stager.errors import CacheOwned, UsageError
from stager.owner.onlooker import copy_catalog
from stager.owner.verbs import CLASSES, DATASETS, FAILURES, STATS, STATUS

OWNER = """
import sys
from stager.cache.cache import Cache
from stager.config import load_config
cache = Cache(load_config(), "stager prefetch pets")
cache.catalog.add_failures(1, [(3, b"class000/0.jpg", "corrupt", "said a test")])  # in its log alone
print("ready", flush=True)
sys.stdin.read()
cache.catalog.remove_failures(1, [3])
cache.close()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("view"))
    image_folder(place.root / "source", 3, 4)
    (place.root / "source/class000/broken.jpg").write_bytes(jpeg(1)[:200])
    place.configure(table("pets", place.root / "source"))
    place.json("prefetch", "pets", code=3)
    return place


@contextmanager
def command_at_work(place: Place) -> Iterator[None]:
    """A process that has the cache."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", OWNER], env=place.env(), stdin=pipe, stdout=pipe) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        yield
        owner.stdin.close()
        assert owner.wait(60) == 0


def looks(place: Place) -> list[Any]:
    """What the verbs that only look are told."""
    with open_to_look(load_config(place.config)) as asked:
        status = asked.ask(STATUS)
        del status["budget"]["free_bytes"]
        return [asked.ask(DATASETS), asked.ask(CLASSES, "pets"), asked.ask(STATS), status]


def test_a_command_that_has_the_cache_is_in_nobodys_way(place: Place) -> None:
    alone = looks(place)
    config = load_config(place.config)
    with command_at_work(place):
        assert looks(place) == alone
        with open_to_look(config) as seen:
            assert isinstance(seen, Seen)
            assert "said a test" in [row["detail"] for row in seen.ask(FAILURES, "pets")]
            with pytest.raises(UsageError, match="nothing of 'pet' is staged here"):
                seen.ask(CLASSES, "pet")
        with pytest.raises(CacheOwned, match=r"\(stager prefetch pets\)"), open_owner(config):
            pass  # what needs the cache for itself says who has it
        done = place.run("ls")
        assert "(stager prefetch pets) is at work" in done.stderr
        assert "pets" in done.stdout
    assert looks(place) == alone


def test_a_copy_of_a_catalog_is_of_one_moment_whatever_its_owner_writes(tmp_path: Path) -> None:
    """Each transaction replaces two rows; the log begins anew several times on the way."""
    catalog = Catalog(tmp_path / "catalog.db", is_new=True)
    for name in ("a", "b"):
        catalog.put_list(ListRow(name, "0" * 32, (), 0, "0" * 32))
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            spec = json.dumps({"n": number, "pad": "x" * 400_000})
            with catalog.transaction():
                for name in ("a", "b"):
                    catalog.put_dataset(name, "0" * 32, spec)
            wrote.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    try:
        assert wrote.wait(30)
        for turn in range(12):
            (tmp_path / str(turn)).mkdir()
            copy = Catalog(copy_catalog(tmp_path / "catalog.db", tmp_path / str(turn)))
            first, second = (json.loads(row.spec)["n"] for row in copy.datasets())
            copy.close()
            assert first == second
            seen.add(first)
    finally:
        stop.set()
        thread.join()
        catalog.close()
    assert len(seen) > 3
