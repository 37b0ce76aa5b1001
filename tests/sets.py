"""Data sets for end-to-end tests: their tables in the config, and what is staged of them."""

import json
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from running import Place
from stager.errors import ShardGone
from stager.jobs.job import ENDED
from stager.reader.index import FORMAT_NAMES, IndexReader, format_of, is_resident, row_of, shard_of
from stager.reader.record import DatasetRecord, index_path, manifest_path, shard_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.sample_list import SampleList
from stager.reader.service import Service
from stager.reader.shards import open_shard
from stager.reader.values import checksum_of

# To crop without resizing needs no torch, which takes a worker seconds to import.
CROP = "crop = 32"


def table(name: str, source: Path | str, recipe: str = CROP, **access: str | bool) -> str:
    """A data set as stager.toml has it."""
    keys = {"source": str(source), **access}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return f"[datasets.{name}]\n{lines}[datasets.{name}.recipe]\n{recipe}\n"


def manifest_at(place: Place, name: str) -> Manifest:
    """The newest manifest of a data set."""
    directory = place.cache / "datasets" / name
    record = DatasetRecord.read(directory)
    records = SampleList.open(directory, record.lineage, record.segments)
    return Manifest.open(manifest_path(directory, record.manifest, record.lineage), records)


def staged(place: Place, name: str) -> dict[str, npt.NDArray[np.uint8]]:
    """The pixels of every sample that is resident, by key, each checked against its checksum.

    Read from the files alone, by their format and nobody's help.
    """
    directory = place.cache / "datasets" / name
    if not (directory / "dataset.json").exists():
        return {}
    record = DatasetRecord.read(directory)
    manifest = manifest_at(place, name)
    records = manifest.records
    path = index_path(directory, record.recipe, record.lineage)
    index = IndexReader(path, record.lineage, record.recipe)
    words = index.words.copy()
    found = {}
    numbers = manifest.numbers[:]
    for number in numbers[is_resident(words[numbers])].tolist():
        word = words[number : number + 1]
        kind = FORMAT_NAMES[int(format_of(word)[0])]
        try:
            shard = open_shard(shard_path(directory, int(shard_of(word)[0]), kind))
        except ShardGone:  # a service may take back what it could not write down: first out of the index
            assert index.words[number] != word[0], records.key(number)
            continue
        row = int(row_of(word)[0])
        arrays = shard.row(row)
        checksum = checksum_of(records.tag(number), record.recipe, record.fields, arrays)
        assert checksum == int(shard.checksums[row]), records.key(number)
        found[records.key(number)] = arrays["image"].copy()
    return found


def ask_catalog(place: Place, query: str) -> list[Any]:
    """What the catalog has on record; a command would take a second to tell.

    Its owner lets nobody else open it, so a copy is asked: of a moment at which nothing was written.
    """
    files = [place.cache / name for name in ("catalog.db", "catalog.db-wal")]

    def written() -> list[tuple[int, int]]:
        seen = [path.stat() for path in files if path.exists()]
        return [(about.st_mtime_ns, about.st_size) for about in seen]

    with tempfile.TemporaryDirectory() as directory:
        before: list[tuple[int, int]] = []
        while before != written():
            before = written()
            for path in files:
                with suppress(FileNotFoundError):
                    shutil.copy(path, directory)
        with closing(sqlite3.connect(Path(directory) / "catalog.db")) as catalog:
            return catalog.execute(query).fetchall()


def origin_reads(place: Place) -> int:
    """How often a source was read."""
    return int(ask_catalog(place, "SELECT sum(origin_reads) FROM datasets")[0][0])


def classes_of(keys: Any) -> set[str]:
    return {key.split("/")[0] for key in keys}


def shard_files(place: Place, name: str) -> list[Path]:
    return sorted((place.cache / "datasets" / name / "shards").iterdir())


def flip_a_bit(path: Path) -> list[str]:
    """Damage the pixels of one sample of a shard, in place; return the keys of all samples in it."""
    shard = open_shard(path)
    row = len(shard) // 2
    pixels = shard.row(row)["image"].tobytes()
    data = path.read_bytes()
    at = data.index(pixels) + len(pixels) // 2
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 4]))
    return [key for key, _ in shard.identities()]


def wait_for(what: Callable[[], Any], timeout_s: float = 100.0) -> Any:
    """Return the first true answer. For states that come by themselves; nothing is asserted about time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout_s:.0f} s in vain")


def complaint(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    """The exit code is as expected, and stderr has one line of error and at most one hint: return both."""
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("stager: ")]
    hints = [line for line in lines if line.startswith("  try: ")]
    assert len(hints) <= 1, done.stderr
    assert lines[at + 1 : at + 2] == hints or not hints, done.stderr
    return "\n".join([lines[at], *hints])


def ended(service: Service, job: int) -> dict[str, Any]:
    """The job, once it has ended."""
    value: dict[str, Any] = wait_for(lambda: _if_ended(service.get(f"/jobs/{job}")))
    return value


def _if_ended(job: dict[str, Any]) -> dict[str, Any] | None:
    return job if job["state"] in ENDED else None
