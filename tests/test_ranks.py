"""Which part of an epoch is ours: torch.distributed often starts after the loader was made."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from making import image_folder
from running import Place
from sets import table
from stager.errors import UsageError
from stager_client.torch import StagedDataset, StagedLoader

SAMPLES = 24

# As Lightning does it: the loader is made and asked for its length, then the processes meet.
TRAINING = """
import json, sys
from torch import distributed
from stager.errors import UsageError
from stager_client.torch import StagedDataset, StagedLoader

def positions(loader):
    return [int(position) for batch in loader.loader for position in batch.positions]

rank, meeting = int(sys.argv[1]), sys.argv[2]
data = StagedDataset("pets")
loader, other, mine = (StagedLoader(data, 4, shuffle=True, seed=7) for _ in range(3))
fixed = StagedLoader(data, 4, rank=0, world_size=1)
told = {"length_before": len(loader), "state_before": loader.state_dict()}
told["before"] = positions(mine)
distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
told["length"] = len(loader)
other.load_state_dict(told["state_before"])
told["read"], told["again"] = positions(other), positions(loader)
run = iter(loader.loader)
told["second"] = next(run).positions.tolist()
told["position"] = loader.state_dict()["position"]
run.close()
told["fixed"] = positions(fixed)
try:
    positions(mine)
except UsageError as error:
    told["error"] = [error.message, error.hint]
distributed.destroy_process_group()
told["length_after"] = len(loader)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("ranks"))
    image_folder(place.root / "source", 4, SAMPLES // 4)
    place.configure(table("pets", place.root / "source"))
    assert place.json("prefetch", "pets")["staged"] == SAMPLES
    return place


@pytest.fixture(scope="module")
def told(place: Place) -> list[dict[str, Any]]:
    """What two processes, rank 0 and rank 1, have to tell."""
    meeting = place.root / "meeting"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(rank), str(meeting)],
            env=place.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [reader.communicate(timeout=150) for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def test_a_loader_made_before_torch_distributed_starts_reads_the_part_of_its_rank(
    told: list[dict[str, Any]],
) -> None:
    for name in ("read", "again"):
        first, second = (told_by[name] for told_by in told)
        assert len(first) == len(second) == SAMPLES // 2
        assert sorted([*first, *second]) == list(range(SAMPLES))
    assert {told_by["position"] for told_by in told} == {8}  # of both ranks together


def test_a_length_before_torch_distributed_starts_decides_nothing(told: list[dict[str, Any]]) -> None:
    for told_by in told:
        lengths = [told_by[name] for name in ("length_before", "length", "length_after")]
        assert lengths == [6, 3, 3]


def test_ranks_that_change_after_the_first_iteration_are_refused(told: list[dict[str, Any]]) -> None:
    for rank, told_by in enumerate(told):
        assert sorted(told_by["before"]) == list(range(SAMPLES))
        message, hint = told_by["error"]
        assert f"rank 0 of 1 before, and is rank {rank} of 2 now" in message
        assert "init_process_group" in hint


def test_ranks_that_are_given_win_over_those_of_torch_distributed(told: list[dict[str, Any]]) -> None:
    assert [told_by["fixed"] for told_by in told] == [list(range(SAMPLES))] * 2


def test_ranks_that_make_no_sense_are_refused_when_they_are_given(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    data = StagedDataset("pets")
    with pytest.raises(UsageError, match="rank 2 of 2"):
        StagedLoader(data, 4, rank=2, world_size=2)
    late = StagedLoader(data, 4, rank=2)  # of how many is not known yet
    with pytest.raises(UsageError, match="rank 2 of 1"):
        next(iter(late))
