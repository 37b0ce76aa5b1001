"""The start-now line: when a reader can start so that it never waits, though not all is staged."""

from collections.abc import Mapping
from typing import Any

from stager.jobs.plan import say_seconds


def ready_in(missing: int, staging_rate: float, samples: int, reader_rate: float | None) -> float | None:
    """Seconds until an epoch over `samples`, `missing` of which are not staged, runs without waiting.

    Staging follows the reader's order, so the one that is missing last is the one to watch: it is staged
    after missing / staging_rate seconds, and read after samples / reader_rate. If the reader starts before,
    it waits for just as long in all. A reader of unknown speed is taken for one that needs no time.
    None: nothing is known of the staging rate yet.
    """
    if missing == 0:
        return 0.0
    if staging_rate <= 0:
        return None
    reading_s = samples / reader_rate if reader_rate else 0.0
    return max(0.0, missing / staging_rate - reading_s)


def ready_json(job: Mapping[str, Any], reader_rate: float | None) -> dict[str, Any]:
    """The line for a job as it is told."""
    missing = max(job["wanted"] - job["done"] - job["under_way"], 0)
    rate = job["rate"]
    in_s = ready_in(missing, rate, job["wanted"], reader_rate)
    return {
        "in_s": None if in_s is None else round(in_s, 1),
        "staging_rate": round(rate, 1),
        "reader_rate": round(reader_rate, 1) if reader_rate else None,
    }


def say_ready(ready: Mapping[str, Any]) -> str:
    """The line for people, from its JSON."""
    reader = (
        f"the last reader took {ready['reader_rate']:,.0f} samples/s"
        if ready["reader_rate"]
        else "however fast it reads: no reader has been seen yet"
    )
    if ready["in_s"] is None:
        return "ready: not known yet"
    if ready["in_s"] == 0:
        return f"ready: start now, and training never waits ({reader})"
    seconds = say_seconds(ready["in_s"])
    return (
        f"ready in {seconds}: a training that starts then never waits,"
        f" one that starts now waits {seconds} ({reader})"
    )
