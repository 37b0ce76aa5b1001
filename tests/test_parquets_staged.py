"""Parquet end to end: row groups fetched once, in real processes, and read by the clients."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from parquets import NAMES, parquet_of, photos
from running import Place
from s3server import S3Server
from stager_client.torch import StagedDataset, StagedLoader
from test_tars_staged import pixels

FILES, EACH, GROUP = 3, 120, 40
CONFIG = """
[datasets.photos]
source = "{source}"
layout = "parquet"
{access}
[datasets.photos.recipe]
crop = 32
"""


def test_row_groups_on_s3_are_fetched_once_and_rows_are_read_shuffled(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(FILES):
        body = parquet_of(photos(range(at * EACH, (at + 1) * EACH)), GROUP)
        s3.client().put_object(Bucket=s3.bucket, Key=f"rows/data/train-{at:05}-of-3.parquet", Body=body)
    access = f'endpoint_url = "{s3.endpoint_url}"'
    place = Place(tmp_path).configure(CONFIG.format(source=f"s3://{s3.bucket}/rows", access=access))
    monkeypatch.setenv("STAGER_CONFIG", str(place.config))
    with place.service():
        done = place.json("prefetch", "photos")
        assert (done["staged"], done["failed"], done["classes"]) == (FILES * EACH, 0, NAMES)
        row = place.json("stats")["datasets"]["photos"]
        groups = FILES * EACH // GROUP
        assert row["origin_reads"] <= 3 * groups, "groups and footers, a few more often for the plan"
        data = StagedDataset("photos", where="fold = 2", split="train")
        seen = []
        columns = ["image", "number"]
        for fields, labels in StagedLoader(data, 16, shuffle=True, seed=1, columns=columns):
            for at, number in enumerate(fields["number"].tolist()):
                np.testing.assert_array_equal(fields["image"][at].permute(1, 2, 0), pixels(number))
                assert data.classes[labels[at]] == NAMES[number % 3]
                seen.append(number)
    assert sorted(seen) == list(range(2, FILES * EACH, 4))


def test_a_file_with_another_schema_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/0.parquet").write_bytes(parquet_of(photos(range(5))))
    (tmp_path / "rows/1.parquet").write_bytes(parquet_of(pa.table({"x": [b"1"]})))
    place = Place(tmp_path).configure(CONFIG.format(source=tmp_path / "rows", access=""))
    done = place.run("prefetch", "photos", "--json")
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert (told["staged"], told["failed"]) == (5, 0)
    assert "1.parquet: it has no column" in told["left_out"]
    assert "1.parquet: it has no column" in done.stderr
    (tmp_path / "rows/2.parquet").write_bytes(parquet_of(photos(range(5, 9))))
    again = place.json("prefetch", "photos", code=3)
    assert (again["already"], again["staged"]) == (5, 4), "what is known says what a row is made of"
    assert "1.parquet: it has no column image" in again["left_out"]
