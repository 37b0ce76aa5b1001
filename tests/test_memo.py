"""Results that are kept: the same comes back, once computed; what cannot be kept or loaded is told."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stager.errors import UsageError
from stager.reader.memo.store import MemoStore
from stager_client.memo import memo

ROWS = pa.table({"name": ["a", None, "c"], "x": [1.5, 2.5, None]})
RESULTS: dict[str, Any] = {
    "an array": np.arange(12, dtype=">i2").reshape(3, 4),
    "an array by column": np.asfortranarray(np.ones((3, 2), np.float32)),
    "an empty array": np.zeros((0, 3)),
    "records": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "dates": np.array(["2026-01-02"], "M8[D]"),
    "a number of NumPy's": np.float32(2.5),
    "bytes": b"\0\1\2",
    "no bytes": bytearray(),
    "a text": "é" * 10_000,
    "half a character": "\udc80" * 5000,
    "JSON": {"z": 1, "a": [1.5, None, True, "é"], "n": {}},
    "a table": ROWS,
    "all in one": {"trees": [np.arange(3), (np.ones(2), "depth")], 3: ROWS, None: (1, 2), "a": b"x"},
}


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types, in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        layout = isinstance(a, np.generic) or a.flags.f_contiguous == b.flags.f_contiguous
        return a.dtype == b.dtype and a.shape == b.shape and layout and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stager.toml").write_text(f'[cache]\ndir = "{tmp_path}/cache"\n')
    monkeypatch.setenv("STAGER_CONFIG", str(tmp_path / "stager.toml"))
    return tmp_path / "cache"


def counts(function: Callable[..., Any]) -> tuple[int, int, int, int]:
    told = function.counts  # type: ignore[attr-defined]
    return told.computed, told.loaded, told.unloadable, told.unkept


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_as_it_was_and_is_computed_once(name: str, cache: Path) -> None:
    @memo
    def compute(name: str) -> Any:
        return RESULTS[name]

    assert same(compute(name), RESULTS[name])
    assert same(compute(name), RESULTS[name])
    assert counts(compute) == (1, 1, 0, 0)
    assert list((cache / "memo/.scratch").iterdir()) == []


def test_a_loaded_array_can_be_written_to(cache: Path) -> None:
    compute = memo(lambda: np.zeros(3))
    compute()
    compute()[0] = 1
    assert compute()[0] == 0


class Forest:
    def __init__(self, depth: int) -> None:
        self.depth = depth


def grow(depth: int) -> Forest:
    return Forest(depth)


def test_what_cannot_be_kept_is_returned_with_a_warning_that_says_where_it_is(cache: Path) -> None:
    @memo
    def compute() -> Any:
        return {"trees": [1, Forest(3)]}

    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=r"result\['trees'\]\[1\] is a test_memo.Forest.*pickle=True"):
            assert compute()["trees"][1].depth == 3
    assert counts(compute) == (2, 0, 0, 2)


def test_a_pickle_is_kept_and_loaded_only_for_who_says_so(cache: Path) -> None:
    kept = memo(grow, pickle=True)
    assert (kept(3).depth, kept(3).depth, counts(kept)) == (3, 3, (1, 1, 0, 0))
    refused = memo(grow)
    with (
        pytest.warns(RuntimeWarning, match="pickle=True was not said; it is computed anew"),
        pytest.warns(RuntimeWarning, match="could not be kept"),
    ):
        assert refused(3).depth == 3
    assert counts(refused) == (1, 0, 1, 1)
    (pickle,) = cache.rglob("*.pickle")
    os.chown(pickle, 4321, -1)  # as if another user of the cache had written it
    with pytest.warns(RuntimeWarning, match="user 4321 has written it"):
        kept(3)


def save(forest: Forest, path: Path) -> None:
    (path / "weights").mkdir(parents=True)
    (path / "weights/depth.txt").write_text(str(forest.depth))


def load(path: Path) -> Forest:
    return Forest(int((path / "weights/depth.txt").read_text()))


def test_a_checkpoint_is_saved_and_loaded_as_a_folder_or_as_a_file(cache: Path) -> None:
    folder = memo(grow, save_file=save, load_file=load)
    assert (folder(4).depth, folder(4).depth, counts(folder)) == (4, 4, (1, 1, 0, 0))

    def save_one(forest: Forest, path: Path) -> None:
        path.write_text(str(forest.depth))

    one = memo(grow, name="one", save_file=save_one, load_file=lambda path: Forest(int(path.read_text())))
    assert (one(5).depth, one(5).depth, counts(one)) == (5, 5, (1, 1, 0, 0))
    with pytest.raises(UsageError, match="go together"):
        memo(grow, save_file=save)
    none = memo(grow, name="none", save_file=lambda forest, path: None, load_file=load)
    with pytest.warns(RuntimeWarning, match="save_file has written nothing"):
        assert none(6).depth == 6


@pytest.mark.parametrize("damage", ["a flipped bit", "a file that is cut", "no file", "a damaged record"])
def test_what_cannot_be_loaded_is_told_and_computed_anew_once(damage: str, cache: Path) -> None:
    @memo
    def compute() -> Any:
        return np.arange(1000)

    compute()
    (path,) = cache.rglob("record.json" if "record" in damage else "*.npy")
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 16
    path.write_bytes(raw if damage != "a file that is cut" else raw[:-9])
    if damage == "no file":
        path.unlink()
    with pytest.warns(RuntimeWarning, match=r"could not be loaded: .*; it is computed anew") as told:
        assert np.array_equal(compute(), np.arange(1000))
    assert told[0].filename == __file__
    assert np.array_equal(compute(), np.arange(1000))
    assert counts(compute) == (2, 1, 1, 0)
    store = MemoStore(cache)
    (record,) = store.records(store.names()[0])
    assert "could not be loaded" in record.why[0]


def test_a_cache_that_cannot_be_written_costs_a_warning_and_no_result(cache: Path) -> None:
    cache.write_text("no directory")
    compute = memo(lambda: 3)
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        assert compute() == 3


def test_what_nobody_can_know_again_is_refused_before_anything_is_computed(cache: Path) -> None:
    compute = memo(lambda x: 1 / 0)
    with pytest.raises(UsageError, match=r"argument x: .*nobody can tell when it changes"):
        compute(np.random.default_rng(0))
    with pytest.raises(UsageError, match="cannot be called like this"):
        compute()


SLOW = """
import os, sys, time
from pathlib import Path
from stager_client.memo import memo

@memo(wait_s=float(sys.argv[2]))
def slow():
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()}\\n")
    while not os.path.exists(sys.argv[1] + ".go"):
        time.sleep(0.02)
    return "done"

print(slow())
"""


def start(script: Path, log: Path, wait_s: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(script), str(log), str(wait_s)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_process_computes_and_others_wait_so_long_as_it_lives(cache: Path, tmp_path: Path) -> None:
    script, log = tmp_path / "slow.py", tmp_path / "log"
    script.write_text(SLOW)
    first = start(script, log, 60)
    wait_for(log.exists)
    others = [start(script, log, 60), start(script, log, 60)]
    late = start(script, log, 0.2)
    _, told = late.communicate(timeout=30)
    assert f"process {first.pid} has computed slow.slow for more than 0.2 s" in told
    assert log.read_text() == f"{first.pid}\n"
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    wait_for(lambda: log.read_text().count("\n") == 2)  # one of the others, and not both
    Path(f"{log}.go").touch()
    assert [other.communicate(timeout=30)[0] for other in others] == ["done\n", "done\n"]
    assert log.read_text().count("\n") == 2


def test_arguments_are_known_by_value_whatever_holds_them(cache: Path, tmp_path: Path) -> None:
    @memo
    def compute(x: Any) -> int:
        return 1

    file = tmp_path / "folds.csv"
    file.write_text("1,2")
    first = [
        *(np.arange(6).reshape(2, 3), {"depth": [1, None]}, {"b", "a"}),
        *(ROWS, file, Forest(3), grow, 1, True, "1"),
    ]
    again = [
        *(np.arange(12)[::2].reshape(2, 3) // 2, {"depth": [1, None]}, {"a", "b"}),
        pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)]),
        *(Path(str(file)), Forest(3), grow, 1, True, "1"),
    ]
    for value in (*first, *again):
        compute(value)
    assert counts(compute) == (len(first), len(first), 0, 0)
    file.write_text("1,3")
    os.utime(file, ns=(0, 0))
    compute(file)
    compute(Forest(4))
    assert counts(compute) == (len(first) + 2, len(first), 0, 0)


def test_a_tensor_is_known_by_its_numbers(cache: Path) -> None:
    torch = pytest.importorskip("torch")
    compute = memo(lambda x: 1, name="tensors")
    for tensor in (torch.arange(4.0), torch.arange(8.0)[::2] / 2, torch.arange(4.0, requires_grad=True)):
        compute(tensor)
    assert counts(compute) == (1, 2, 0, 0)
    compute(torch.arange(4))
    compute(torch.ones(3, dtype=torch.bfloat16))
    assert counts(compute) == (3, 2, 0, 0)


def test_a_record_is_json_that_a_person_can_read(cache: Path) -> None:
    compute = memo(lambda seed: seed, name="seeds")
    compute(1)
    compute(2)
    told = [json.loads(path.read_text())["why"] for path in cache.rglob("record.json")]
    assert sorted(told) == [["argument seed: 1 -> 2"], ["nothing was kept of it before"]]
