"""Generated samples are made once: whatever is killed, and until their code changes."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from functions import generated, write_functions
from running import Place
from stager.functions.made import MadeSamples, made_path
from stager.interfaces import Made
from stager.reader.values import Field
from stager_client.numpy import StagedArrays

CORES = len(os.sched_getaffinity(0))


def place_in(root: Path, datasets: str) -> Place:
    write_functions(root)
    return Place(root, {"SIM_CALLS": str(root / "calls")}).configure(datasets)


def calls(place: Place) -> list[int]:
    path = place.root / "calls"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for_calls(place: Place, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(calls(place)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in told for child in path.read_text().split()]


def test_a_kill_of_worker_and_service_loses_no_more_than_the_samples_under_way(tmp_path: Path) -> None:
    count = 60
    place = place_in(tmp_path, generated(count=count, args="{ wait_s = 0.1, bad = false }"))
    service = place.start_service()
    place.run("prefetch", "motion", "--detach")
    wait_for_calls(place, 15)
    for pid in workers_of(service.pid):
        os.kill(pid, signal.SIGKILL)
    wait_for_calls(place, 35)
    service.kill()
    service.wait()
    time.sleep(0.3)  # whatever was under way has ended with it
    before = calls(place)
    assert before
    with place.service():
        told = place.json("prefetch", "motion")
        assert told["failed"] == 0
        data = StagedArrays("motion", count, service=str(place.socket))
        ((fields, _),) = list(data)
        assert fields["index"].tolist() == list(range(count))
        for index in (0, 17, count - 1):
            rng = np.random.default_rng([0, index, 0])
            pose = (rng.standard_normal((25, 6)) * 2.0).astype("float32")
            np.testing.assert_array_equal(fields["pose"][index], pose)
    made = calls(place)
    assert len(set(made)) == count
    assert len(made) <= count + 2 * CORES, "samples were made again that had been made"
    assert list((place.cache / "made").iterdir()) == []
    assert place.leftovers() == []


def test_a_changed_helper_is_told_by_name_and_line_and_the_old_results_stay(tmp_path: Path) -> None:
    place = place_in(tmp_path, generated(count=6, args="{ bad = false }"))
    assert place.json("prefetch", "motion")["staged"] == 6
    helper = tmp_path / "simhelper.py"
    before = helper.read_text()
    helper.write_text(before.replace("scale * FACTOR", "scale + FACTOR"))
    done = place.run("prefetch", "motion", "--plan")
    assert (
        "the recipe has changed (simhelper.scaled changed (line 5)): 6 samples are staged anew" in done.stderr
    )
    assert len(calls(place)) == 6 + 5  # a plan makes five
    assert place.json("prefetch", "motion")["staged"] == 6
    assert [row["resident"] for row in place.json("ls")] == [6, 6]
    helper.write_text(f"# moved\n{before}")
    told = place.json("prefetch", "motion")
    assert (told["staged"], told["already"]) == (0, 6)


def test_a_recipe_has_all_parts_then_the_inputs_and_may_take_any_file(tmp_path: Path) -> None:
    for at in range(4):
        for name in ("a", "b"):
            (tmp_path / f"data/{name}").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"data/{name}/{at}.bin").write_bytes(bytes([at, 1, 2, 3]))
    (tmp_path / "data/rows.csv").write_text("n,age\n" + "".join(f"{at},{30 + at}\n" for at in range(4)))
    fields = 'fields = { values = { dtype = "int32", shape = [4] }, more = { dtype = "int64", shape = [] } }'
    recipe = f'kind = "python"\nprepare = "simulator:doubled"\n{fields}\n'
    source = f'source = "{tmp_path}/data"\n'
    place = place_in(
        tmp_path,
        f'[datasets.rows]\n{source}layout = "table"\ntable = "rows.csv"\n[datasets.rows.recipe]\n{recipe}'
        f'path = ["a/{{n}}.bin", "b/{{n}}.bin"]\ninputs = ["age"]\n'
        f'[datasets.files]\n{source}[datasets.files.recipe]\n{recipe}endings = [".bin"]\n',
    )
    with place.service():
        rows = StagedArrays("rows", 4, service=str(place.socket), columns=["values", "more"])
        ((fields_of_rows, _),) = list(rows)
        assert fields_of_rows["values"][:, 0].tolist() == [0, 2, 4, 6]
        assert fields_of_rows["more"].tolist() == [2] * 4  # the second part, and the age
        files = StagedArrays("files", 8, service=str(place.socket))
        ((fields_of_files, labels),) = list(files)
        assert fields_of_files["more"].tolist() == [0] * 8
        assert labels.tolist() == [0] * 4 + [1] * 4
        answer = place.run(
            "prefetch", f"{tmp_path}/data"
        )  # a function runs for no one who is not in the config
        assert "simulator" not in answer.stderr


def test_what_was_made_comes_back_or_is_nothing_whatever_bit_has_flipped(tmp_path: Path) -> None:
    fields = [Field("pose", "int16", (2, 3)), Field("rate", "float32", ())]
    kept = MadeSamples(tmp_path, "5" * 32, fields)
    pose = np.arange(6, dtype=np.int16).reshape(2, 3)
    kept.keep(7, Made({"pose": pose, "rate": np.float32(0.5)}, 1.25))
    path = made_path(tmp_path, "5" * 32, 7)
    whole, found = path.read_bytes(), 0
    for bit in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        made = kept.find(7)
        if made is not None:
            found += 1
            np.testing.assert_array_equal(made["pose"], pose)
            assert made["rate"] == np.float32(0.5)
    assert found < 100, "how long it took has no sum, all else has"
    path.write_bytes(whole)
    again = kept.find(7)
    assert again is not None
    assert again.seconds == 1.25
