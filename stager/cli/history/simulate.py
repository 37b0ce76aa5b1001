"""stager simulate: what a cache of some size would have hit, by policy, on a trace of reads."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from stager.cache.budget import say_bytes
from stager.cli.app import ConfigOption, JsonOption, app, complete_dataset, print_json, print_table, say
from stager.cli.ask import open_owner
from stager.config import load_config
from stager.errors import UsageError
from stager.eviction.simulation import hits_of_lru, hits_of_never_evict, hits_of_next_use
from stager.owner.verbs import READS
from stager.reader.values import Numbers, unpack_numbers

PARTS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
EPOCHS_KNOWN = 2  # an order is known for this epoch and the next


@app.command()
def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="TRACE", help="Sample numbers in the order they were read, one on each line."),
    ] = None,
    from_stats: Annotated[
        str | None,
        typer.Option(
            "--from-stats",
            metavar="DATASET",
            autocompletion=complete_dataset,
            help="Instead of a file: what the readers of this data set read since the service started.",
        ),
    ] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Hit rates by policy and cache size on a trace of reads: what more disk, or another policy, would bring.

    LRU keeps what was read last. Never evict keeps what came first. Next use is what stager does where orders
    are known: it keeps what is needed soonest, this epoch and the next. The optimum knows all that is read.

    stager simulate --from-stats imagenet
    """
    if (trace is None) == (from_stats is None):
        raise UsageError("name a TRACE, or --from-stats DATASET", hint="stager simulate --help")
    sample_bytes = None
    if from_stats is not None:
        with open_owner(load_config(config)) as owner:
            told = owner.ask(READS, from_stats)
        numbers, sample_bytes = unpack_numbers(told["reads"]), told["sample_bytes"]
        if not len(numbers):
            raise UsageError(f"no reads of {from_stats} were recorded", hint="read it while the service runs")
    else:
        assert trace is not None
        numbers = read_trace(trace)
    rows = [hit_rates(numbers, part, sample_bytes) for part in PARTS]
    if as_json:
        print_json(rows)
        return
    say(f"{len(numbers):,} reads of {len(np.unique(numbers)):,} samples")
    names = ("lru", "never_evict", "next_use", "optimum")
    size = ["bytes"] if sample_bytes else []
    print_table(
        ["cache", "samples", *size, "LRU", "never evict", "next use", "optimum"],
        [
            [
                f"{row['part']:.0%}",
                f"{row['capacity']:,}",
                *(say_bytes(row[name]) for name in size),
                *(f"{row[name]:.1%}" for name in names),
            ]
            for row in rows
        ],
    )


def hit_rates(trace: Numbers, part: float, sample_bytes: float | None) -> dict[str, Any]:
    """Hit rates of each policy with a cache for such a part of the samples."""
    distinct = len(np.unique(trace))
    capacity = round(part * distinct)
    reads = trace.tolist()
    return {
        "part": part,
        "capacity": capacity,
        "bytes": round(capacity * sample_bytes) if sample_bytes else None,
        "lru": hits_of_lru(reads, capacity) / len(reads),
        "never_evict": hits_of_never_evict(reads, capacity) / len(reads),
        "next_use": hits_of_next_use(trace, capacity, EPOCHS_KNOWN * distinct) / len(reads),
        "optimum": hits_of_next_use(trace, capacity) / len(reads),
    }


def read_trace(path: Path) -> Numbers:
    try:
        words = path.read_text().split()
        numbers: Numbers = np.asarray([int(word) for word in words], dtype=np.int64)
    except (OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: {error}", hint="a text file with one sample number on each line") from None
    if not len(numbers):
        raise UsageError(f"{path}: it has no reads", hint="a text file with one sample number on each line")
    return numbers
