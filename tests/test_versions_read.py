"""A reader stays on its version until it asks for the next; older ones can be opened while they are kept."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from torch.utils.data import DataLoader

from running import Place
from stager.errors import UsageError
from stager_client.numpy import StagedArrays
from stager_client.reading.session import flush_all
from stager_client.torch import StagedDataset, StagedLoader
from versions_kept import CLASSES, KeptSource, Version, what_is_wrong

SAMPLES = 30


@pytest.fixture
def source(tmp_path: Path) -> KeptSource:
    source = KeptSource(tmp_path / "source")
    for number in range(SAMPLES):
        source.put(number)
    return source


@pytest.fixture
def place(tmp_path: Path, source: KeptSource, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(tmp_path).configure(source.table("data"))
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    with place.service():
        assert place.json("prefetch", "data")["staged"] == SAMPLES
        yield place


def change(source: KeptSource) -> Version:
    """Two contents change, one object comes, one goes; return what the source has then."""
    for number in (3, 4):
        source.put(number)
    source.put(SAMPLES + 1)
    source.remove(20)
    return source.version()


COUNTS = "1 added, 2 changed, 1 removed; 27 are the same"


def check(batches: Any, version: Version) -> None:
    """Every sample of this version comes once, and is what it was there."""
    seen = 0
    for images, labels in batches:
        rows = images.permute(0, 2, 3, 1).numpy() if hasattr(images, "permute") else images
        for image, label in zip(rows, labels, strict=True):
            assert not (wrong := what_is_wrong(image, int(label), version)), wrong
        seen += len(labels)
    assert seen == len(version)


def digest(place: Place) -> str:
    return str(place.json("ls", "--versions")[-1]["version"])


@pytest.mark.parametrize("kind", ["loader", "arrays"])
def test_a_loader_stays_on_its_version_until_it_is_refreshed_between_epochs(
    place: Place, source: KeptSource, kind: str
) -> None:
    before, old = source.version(), digest(place)
    loader: Any = (
        StagedLoader(StagedDataset("data"), 8, shuffle=True)
        if kind == "loader"
        else StagedArrays("data", 8, shuffle=True)
    )
    check(loader, before)
    after = change(source)
    assert place.json("refresh", "data")["staged"] == 2
    check(loader, before)
    epoch = iter(loader)
    first = next(epoch)
    with pytest.raises(UsageError, match="epoch 2 of data is under way"):
        loader.refresh()
    check([first, *epoch], before)
    del epoch
    state = loader.state_dict()
    told = loader.refresh()
    assert str(told) == COUNTS
    assert told.keys["added"] == ("c1/00031.png",)
    check(loader, after)
    assert str(loader.refresh()) == f"nothing has changed; {SAMPLES} are the same"
    with pytest.raises(UsageError, match=f"saved on version {old[:12]} of data"):
        loader.load_state_dict(state)
    # What it had of the version before is given up: the service need not keep that for it.
    gc.collect()
    flush_all()
    readers = {row["version"]: row["readers"] for row in place.json("ls", "--versions")}
    assert (readers.get(old, 0), readers[digest(place)]) == (0, 1)


def test_a_state_of_another_version_is_refused_with_the_way_out(place: Place, source: KeptSource) -> None:
    before, old = source.version(), digest(place)
    keeper = StagedLoader(StagedDataset("data"), 8, shuffle=True, seed=5)
    run = iter(keeper)
    read = [next(run), next(run)]
    state = keeper.state_dict()
    assert (state["version"], state["position"]) == (old, 16)
    change(source)
    place.json("refresh", "data")
    newest = StagedLoader(StagedDataset("data"), 8, shuffle=True, seed=5)
    with pytest.raises(UsageError) as caught:
        newest.load_state_dict(state)
    assert f'open the data set with version="{old[:12]}"' in caught.value.hint
    # The way out, and from the next epoch on the newest version.
    data = StagedDataset("data", version=old[:6])
    resumed = StagedLoader(data, 8, shuffle=True, seed=5, versions="latest")
    resumed.load_state_dict(state)
    check([*read, *resumed], before)
    check(resumed, source.version())
    assert len(data) == len(data.targets) == len(source.version())
    # At the beginning of an epoch nothing was read of any version.
    resumed.load_state_dict({**state, "position": 0})
    check(resumed, source.version())


def test_latest_takes_the_newest_version_at_each_new_epoch(place: Place, source: KeptSource) -> None:
    loader = StagedLoader(StagedDataset("data"), 8, versions="latest")
    check(loader, source.version())
    check(loader, change_and_refresh(place, source))
    broken_off = list(islice(loader, 1))
    assert len(broken_off) == 1
    source.put(7)
    place.json("refresh", "data")
    check(loader, source.version())
    with pytest.raises(UsageError, match="versions is 'newest'"):
        StagedLoader(StagedDataset("data"), 8, versions="newest")


def change_and_refresh(place: Place, source: KeptSource) -> Version:
    version = change(source)
    place.json("refresh", "data")
    return version


def test_an_older_version_is_opened_by_its_digest_while_it_is_kept(place: Place, source: KeptSource) -> None:
    before, old = source.version(), digest(place)
    holds = StagedDataset("data")
    after = change_and_refresh(place, source)
    older = StagedDataset("data", version=old[:8])
    check(StagedLoader(older, 8), before)
    check(StagedArrays("data", 8, version=digest(place)), after)
    readers = {row["version"]: row["readers"] for row in place.json("ls", "--versions")}
    assert (readers[old], len(older)) == (2, SAMPLES)  # each of the two that are open
    with pytest.raises(UsageError, match="data has no version 'zz'") as caught:
        StagedDataset("data", version="zz")
    assert caught.value.hint == f"kept are {old[:12]}, {digest(place)[:12]}"
    loader = StagedLoader(holds, 8)
    assert str(loader.refresh()) == COUNTS
    loader.refresh(old[:8])  # and back
    check(loader, before)


def test_a_refresh_whose_labels_would_change_is_refused_and_latest_stays_where_it_was(
    place: Place, source: KeptSource
) -> None:
    before = source.version()
    loader = StagedLoader(StagedDataset("data"), 8)
    latest = StagedLoader(StagedDataset("data"), 8, versions="latest")
    fixed = StagedLoader(StagedDataset("data", classes=[f"c{at}" for at in range(CLASSES)]), 8)
    other = source.root / "b0" / "one.png"
    other.parent.mkdir()
    other.write_bytes((source.root / "c0" / "00000.png").read_bytes())
    source.put(8)
    place.json("refresh", "data")
    with pytest.raises(UsageError, match=r"other classes \(new: b0\): labels would change"):
        loader.refresh()
    check(loader, before)
    with pytest.warns(UserWarning, match="the version before is read on"):
        check(latest, before)
    fixed.refresh()
    check(fixed, source.version())


def test_a_plain_data_loader_reads_what_its_data_set_was_refreshed_to(
    place: Place, source: KeptSource
) -> None:
    data = StagedDataset("data")
    plain = DataLoader(data, 8, shuffle=True, num_workers=2)
    lasting = DataLoader(data, 8, num_workers=1, persistent_workers=True)
    before = source.version()
    check(plain, before)
    check(lasting, before)
    after = change_and_refresh(place, source)
    check(plain, before)
    assert str(data.refresh()) == COUNTS
    check(plain, after)
    with pytest.raises(UsageError, match="refreshed while workers of a DataLoader had it open"):
        check(lasting, after)


RANK = """
import json, sys, time
from pathlib import Path
from torch import distributed
from stager.errors import UsageError
from stager_client.torch import StagedDataset, StagedLoader

rank, root = int(sys.argv[1]), Path(sys.argv[2])
old, new = sys.argv[3:5]
distributed.init_process_group("gloo", f"file://{root}/meeting", rank=rank, world_size=2)

def read(loader):
    seen = [int(position) for batch in loader.loader for position in batch.positions]
    return [loader.loader.samples.manifest_digest, seen]

told = {}
differ = StagedLoader(StagedDataset("data", version=(old, new)[rank]), 4)
try:
    told["differ"] = read(differ)[0]
except UsageError as error:
    told["differ"] = [error.message, error.hint]
agree = StagedLoader(StagedDataset("data", version=(new, old)[rank]), 4)
told["changes"] = str(agree.refresh())
told["agree"] = read(agree)
latest = StagedLoader(StagedDataset("data", version=old), 4, versions="latest")
told["latest"] = read(latest)
lost = StagedLoader(StagedDataset("data"), 4)
at = lost.loader.samples.at
lost.loader.samples.at = lambda version=None: at("no such" if rank else version)
if not rank:
    lost.refresh = lambda: lost.loader.refresh(old)
try:
    lost.refresh()
except UsageError as error:
    told["lost"] = [error.message, error.hint]
apart = StagedLoader(StagedDataset("data"), 4, rank=rank, world_size=3)
try:
    apart.refresh()
except UsageError as error:
    told["apart"] = [error.message, error.hint]
told["named"] = str(apart.refresh(old))
distributed.destroy_process_group()
print(json.dumps(told))
"""


def test_ranks_read_one_version_the_one_that_rank_0_takes(place: Place, source: KeptSource) -> None:
    holds, old = StagedDataset("data"), digest(place)
    change_and_refresh(place, source)
    new = digest(place)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(place.root), old, new],
            env=place.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=150) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    assert first["differ"] == old
    assert f"rank 0 reads version {old[:12]} of data, rank 1 reads version {new[:12]}" in second["differ"][0]
    assert (first["changes"], second["changes"]) == (f"nothing has changed; {SAMPLES} are the same", COUNTS)
    for name in ("agree", "latest"):
        assert first[name][0] == second[name][0] == new
        assert sorted(first[name][1] + second[name][1]) == list(range(SAMPLES))
    for told in (first, second):
        assert told["lost"][0].startswith("rank 1: data has no version 'no such'")
        assert "3 ranks that do not know one another" in told["apart"][0]
        assert 'refresh(version="...")' in told["apart"][1]
        assert "2 changed" in told["named"]
    assert len(np.unique(holds.samples.numbers)) == SAMPLES
