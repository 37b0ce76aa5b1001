"""stager simulate: what a cache of some size would have hit, by policy, on a recorded trace."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from stager.cli.app import JsonOption, app, print_json, print_table
from stager.errors import UsageError
from stager.model import Numbers
from stager.simulation import hits_of_lru, hits_of_never_evict, hits_of_next_use

PARTS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@app.command()
def simulate(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Sample numbers in the order they were read, one a line.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Hit rates by policy and cache size on a trace of reads: what more disk, or another policy, would bring.

    LRU keeps what was read last; never-evict keeps what came first; the optimum knows what is read next.
    """
    numbers = read_trace(trace)
    rows = [hit_rates(numbers, part) for part in PARTS]
    if as_json:
        print_json(rows)
        return
    names = ("lru", "never_evict", "optimum")
    print_table(
        ["cache", "samples", "LRU", "never evict", "optimum"],
        [
            [f"{row['part']:.0%}", f"{row['capacity']:,}", *(f"{row[name]:.1%}" for name in names)]
            for row in rows
        ],
    )


def hit_rates(trace: Numbers, part: float) -> dict[str, Any]:
    """Hit rates of each policy with a cache for such a part of the samples."""
    capacity = round(part * len(np.unique(trace)))
    reads = trace.tolist()
    return {
        "part": part,
        "capacity": capacity,
        "lru": hits_of_lru(reads, capacity) / len(reads),
        "never_evict": hits_of_never_evict(reads, capacity) / len(reads),
        "optimum": hits_of_next_use(trace, capacity) / len(reads),
    }


def read_trace(path: Path) -> Numbers:
    try:
        words = path.read_text().split()
        numbers: Numbers = np.asarray([int(word) for word in words], dtype=np.int64)
    except (OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: {error}", hint="a text file with one sample number a line") from None
    if not len(numbers):
        raise UsageError(f"{path}: there is no read in it", hint="a text file with one sample number a line")
    return numbers
