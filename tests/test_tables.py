"""Tables and arrays end to end: a CSV with paths, labels and attributes, read by the clients."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from running import Place
from stager.errors import UsageError
from stager_client.numpy import StagedArrays
from stager_client.torch import StagedDataset, StagedLoader
from tables import COUNT, left, right, save, tables_at, write_table


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = tables_at(tmp_path)
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    return place


def told(place: Place, *arguments: str) -> Any:
    done = place.run(*arguments, "--json")
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def test_a_table_is_staged_with_every_object_fetched_once(place: Place) -> None:
    done = told(place, "prefetch", "scans")
    assert (done["staged"], done["failed"]) == (COUNT, 0)
    row = told(place, "stats")["datasets"]["scans"]
    assert row["origin_reads"] == COUNT + 8, "eight objects are shared by three samples each"


@pytest.mark.parametrize("shard_format", ["arrow", "lmdb"])
def test_torch_and_numpy_read_the_same_fields_attributes_and_labels(place: Place, shard_format: str) -> None:
    told(place, "prefetch", "scans", "--format", shard_format)
    data = StagedDataset("scans")
    assert data.classes == ["early", "late"]
    for position in range(COUNT):
        fields, label = data[position]
        at = int(fields["left"][0, 0]) // 100
        np.testing.assert_array_equal(fields["left"].numpy(), left(at))
        np.testing.assert_array_equal(fields["right"].numpy(), right(at % 8))
        assert (int(fields["fold"]), data.classes[label]) == (at % 4, "early" if at % 3 else "late")
    seen = []
    for fields, labels in StagedLoader(data, 5, shuffle=True, seed=3):
        for number in range(len(labels)):
            at = int(fields["left"][number, 0, 0]) // 100
            np.testing.assert_array_equal(fields["right"][number].numpy(), right(at % 8))
            seen.append(at)
    assert sorted(seen) == list(range(COUNT))
    arrays = StagedArrays("scans", 5, shuffle=True, seed=3, columns=["left", "fold"])
    order = []
    for fields, _ in arrays:
        assert list(fields) == ["left", "fold"]
        order += (fields["left"][:, 0, 0] // 100).astype(int).tolist()
        np.testing.assert_array_equal(fields["fold"], [at % 4 for at in order[-len(fields["fold"]) :]])
    assert order == seen


def test_folds_are_complements_that_share_what_is_staged(place: Place) -> None:
    assert told(place, "prefetch", "scans", "--where", "fold != 1")["staged"] == 18
    assert told(place, "prefetch", "scans", "--where", "fold = 1")["staged"] == 6
    again = told(place, "prefetch", "scans")
    assert (again["staged"], again["already"]) == (0, COUNT)
    train, test = StagedDataset("scans", where="fold != 1"), StagedDataset("scans", where="fold = 1")
    assert (len(train), len(test)) == (18, 6)
    with pytest.raises(UsageError, match="there is no column 'flod'") as raised:
        StagedDataset("scans", where="flod = 1")
    assert "fold" in raised.value.hint


def test_a_row_that_names_another_object_restages_one_sample(place: Place) -> None:
    told(place, "prefetch", "scans")
    write_table(Path(place.root) / "source", moved=5)
    again = told(place, "prefetch", "scans")
    assert (again["staged"], again["already"]) == (1, COUNT - 1)
    found = {int(fields["left"][0, 0]) // 100: fields for fields, _ in StagedDataset("scans")}
    np.testing.assert_array_equal(found[5]["right"].numpy(), right(6))


def test_rows_of_one_array_are_samples_and_the_array_is_fetched_once(place: Place) -> None:
    assert told(place, "prefetch", "rows")["staged"] == 24
    row = told(place, "stats")["datasets"]["rows"]
    assert row["origin_reads"] == 2
    rows = sorted(array.tolist() for array, _ in StagedDataset("rows"))
    assert rows == sorted(
        (np.arange(60).reshape(12, 5) + 1000 * n)[r].tolist() for n in range(2) for r in range(12)
    )


def test_a_plain_data_loader_reads_a_table_with_workers_without_a_prefetch(place: Place) -> None:
    with place.service():
        data = StagedDataset("rows", timeout_s=60)
        seen = [row for batch, _ in DataLoader(data, 4, num_workers=2) for row in batch.tolist()]
    assert len(seen) == len({tuple(row) for row in seen}) == 24


def test_a_sample_whose_array_is_of_another_kind_fails_alone(place: Place) -> None:
    save(Path(place.root) / "source" / "left" / "7.npy", np.zeros((2, 2)))
    done = told(place, "prefetch", "scans")
    assert (done["staged"], done["failed"]) == (COUNT - 1, 1)
    (failed,) = told(place, "ls", "--failed", "scans")
    assert (failed["key"], failed["reason"]) == ("left/7.npy", "unknown_format")
    assert "float64[2, 2]" in failed["detail"]


def test_a_table_with_a_wrong_column_is_told_with_a_way_out(place: Place) -> None:
    config = place.config.read_text()
    place.config.write_text(config.replace('label = "phase"', 'label = "phse"', 1))
    done = place.run("prefetch", "scans")
    assert done.returncode == 2
    assert "no column 'phse'" in done.stderr
    assert "did you mean 'phase'?" in done.stderr


def test_fields_in_any_order_are_one_recipe_after_a_restart_too(place: Place) -> None:
    """What is recorded of a recipe has its fields sorted."""
    told(place, "prefetch", "scans")
    assert told(place, "prefetch", "scans")["already"] == COUNT
    (row,) = told(place, "ls")
    assert row["resident"] == COUNT
    assert not list(place.cache.glob("catalog.broken-*"))


def test_a_place_is_inside_of_the_first_part_and_the_others_are_whole(place: Place) -> None:
    assert told(place, "prefetch", "both")["staged"] == 24
    for fields, _ in StagedDataset("both"):
        at = int(fields["a_row"][0]) % 1000 // 5
        np.testing.assert_array_equal(fields["b_whole"].numpy(), left(at))


def test_a_plan_counts_each_object_once(place: Place) -> None:
    plan = told(place, "prefetch", "rows", "--plan")
    sizes = [path.stat().st_size for path in (place.root / "source").glob("pack*.npy")]
    assert (plan["samples"], plan["requests"], plan["source_bytes"]) == (24, 2, sum(sizes))
    assert told(place, "prefetch", "scans", "--plan")["requests"] == COUNT + 8


def test_a_row_that_names_another_file_of_the_same_size_and_time_has_its_bytes(place: Place) -> None:
    """A file's version is its time and size: under a key of the table's, they do not say which file it is."""
    source = place.root / "source"
    for at in (0, 1):
        os.utime(source / "left" / f"{at}.npy", ns=(10**18, 10**18))
    (source / "one.csv").write_text("id,file\nsame,left/0.npy\n")
    recipe = 'kind = "array"\ndtype = "float32"\nshape = [4, 6]'
    options = 'layout = "table"\ntable = "one.csv"\nkey = "id"'
    text = f'\n[datasets.one]\nsource = "{source}"\n{options}\n[datasets.one.recipe]\n{recipe}\n'
    place.config.write_text(place.config.read_text() + text)
    told(place, "prefetch", "one")
    (source / "one.csv").write_text("id,file\nsame,left/1.npy\n")
    assert told(place, "prefetch", "one")["staged"] == 1
    np.testing.assert_array_equal(StagedDataset("one")[0][0].numpy(), left(1))
