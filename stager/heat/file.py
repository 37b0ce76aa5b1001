"""Heat on the disk, so that a restart forgets nothing: a sealed table for each data set and recipe."""

import logging
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from stager.atomic import atomic_path
from stager.errors import CacheError
from stager.heat.heat import NOTHING_WARM, Warm
from stager.reader.samples.sealed import read_sealed, write_sealed

log = logging.getLogger("stager")

FORMAT: Final = b"1"
COLUMNS: Final = pa.schema([("number", pa.uint32()), ("heat", pa.float32())])


def heat_path(directory: Path, recipe: str) -> Path:
    """A file for each recipe, beside the index."""
    return directory / f"heat-{recipe[:16]}.arrow"


def write_heat(path: Path, scratch_dir: Path, lineage: str, warm: Warm) -> None:
    """Keep what is warm. `lineage`: the list that its numbers are of."""
    about = {b"format": FORMAT, b"lineage": lineage.encode(), b"at": repr(warm.at).encode()}
    columns = [pa.array(warm.samples, pa.uint32()), pa.array(warm.heat, pa.float32())]
    with atomic_path(path, scratch_dir) as scratch:
        write_sealed(scratch, pa.Table.from_arrays(columns, schema=COLUMNS.with_metadata(about)))


def read_heat(path: Path, lineage: str, count: int) -> Warm:
    """What was kept of a list of so many samples; nothing, if there is none that can be read, and why."""
    if not path.exists():
        return NOTHING_WARM
    try:
        table = read_sealed(path)
        about = table.schema.metadata or {}
        if about.get(b"format") != FORMAT or not table.schema.equals(COLUMNS):
            raise CacheError(f"{path} has a format that this stager does not read")
        if about[b"lineage"] != lineage.encode():
            raise CacheError(f"{path} is of another list of samples")
        samples = table.column("number").to_numpy().astype(np.int64)
        heat = table.column("heat").to_numpy().astype(np.float64)
        if len(samples) and (samples[-1] >= count or np.any(np.diff(samples) <= 0)):
            raise CacheError(f"{path} is of another list of samples")
        return Warm(float(about[b"at"]), samples, heat)
    except (CacheError, ValueError, KeyError, OSError) as error:
        log.warning("heat lost, it begins anew path=%s problem=%r", path, str(error))
        return NOTHING_WARM
