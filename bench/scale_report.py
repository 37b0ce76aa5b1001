"""The table of bench.scale, the fit, and SCALE.md."""

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.report import commit, cpu

ESTIMATED: Final = 14_000_000  # ImageNet-21k
BOUNDED: Final = 1_300_000


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table. `most`: the bound at 1.3 million samples, if there is one."""

    title: str
    unit: str = "s"
    most: float | None = None


MEASURES: Final = {
    "scan_s": Measure("scan of a directory", most=60),
    "scan_cpu_s": Measure("… CPU of the worker"),
    "scan_mb": Measure("… the worker's peak, over what it has idle", "MB"),
    "scan_s3_s": Measure("scan of an S3 listing"),
    "scan_s3_cpu_s": Measure("… CPU of the worker"),
    "scan_s3_mb": Measure("… the worker's peak, over what it has idle", "MB", most=1000),
    "manifest_mb": Measure("manifest and records, on disk", "MB"),
    "manifest_open_s": Measure("open the manifest and its records"),
    "draw_100_s": Measure("draw 100 classes"),
    "draw_all_s": Measure("draw all"),
    "epoch_order_s": Measure("order of an epoch", most=1),
    "plan_s": Measure("`stager prefetch --plan`, right after a scan", most=5),
    "shard_cpu_s": Measure("CPU of the service for a shard that is staged"),
    "slowest_while_scanning_s": Measure("slowest answer while it scans", most=0.1),
    "slowest_while_staging_s": Measure("slowest answer while it scans again and stages", most=0.1),
    "slowest_while_opening_s": Measure("slowest answer while a session begins", most=0.1),
    "slowest_while_adopting_s": Measure("slowest answer while a scan that found a new object comes in"),
    "overslept_s": Measure("… and the latest that the bench itself was woken meanwhile"),
    "ready_s": Measure("start of the service to READY, all staged", most=2),
    "ready_cpu_s": Measure("… CPU"),
    "answered_s": Measure("… to the first answer", most=2),
    "service_mb": Measure("memory of the service", "MB"),
    "service_peak_mb": Measure("… its peak, with a session", "MB"),
    "status_s": Measure("`status`, over the socket"),
    "status_command_s": Measure("`stager status`"),
    "ls_command_s": Measure("`stager ls`"),
    "ls_classes_command_s": Measure("`stager ls --classes`"),
    "why_s": Measure("`why`, over the socket"),
    "want_s": Measure("`want` of a resident sample"),
    "open_s": Measure("open a session: `StagedDataset(...)`", most=0.2),
    "open_cpu_s": Measure("… CPU"),
    "open_100_s": Measure("… of 100 classes"),
    "client_mb": Measure("… its memory", "MB"),
    "order_told_s": Measure("tell the service the order of an epoch"),
    "want_in_session_s": Measure("`want` of a resident sample, with a session"),
}

Figures = Mapping[int, Mapping[str, float]]


def fit(figures: Figures, name: str) -> tuple[float, float]:
    """What it costs at all, and for each sample: the line through the two largest sizes.

    Where a cost grows faster than the samples, these show it; a line through all would hide it.
    """
    *_, size, largest = [0, *sorted(figures)]
    value, most = figures[size][name] if size else 0.0, figures[largest][name]
    slope = max((most - value) / (largest - size), 0.0)
    return most - slope * largest, slope


def as_table(figures: Figures) -> str:
    """A line for each measure: as measured, a sample's part of it by the fit, and the estimate."""
    heads = ["", *(f"{size:,}" for size in figures), "each sample", f"{ESTIMATED:,} (fit)", "wanted", ""]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 2) + " --- |"]
    largest = max(figures)
    for name, measure in MEASURES.items():
        if name not in figures[largest]:
            continue
        start, slope = fit(figures, name)
        cells = [_shown(figures[size][name], measure.unit) for size in figures]
        each = f"{slope * 1e6:,.2f} us" if measure.unit == "s" else f"{slope * 1e6:,.0f} B"
        wanted = f"under {_shown(measure.most, measure.unit)}" if measure.most else ""
        verdict = ""
        if measure.most and largest == BOUNDED:
            verdict = "met" if figures[largest][name] < measure.most else "MISSED"
        estimate = _shown(start + slope * ESTIMATED, measure.unit)
        lines.append(f"| {measure.title} | " + " | ".join([*cells, each, estimate, wanted, verdict]) + " |")
    return "\n".join(lines)


def as_markdown(figures: Figures, minutes: float) -> str:
    """SCALE.md."""
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    memory_gb = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)
    missed = [
        measure.title
        for name, measure in MEASURES.items()
        if measure.most and figures.get(BOUNDED, {}).get(name, 0.0) >= measure.most
    ]
    parts = [
        "# What many samples cost",
        f"By `make bench-scale` on {at}, commit {commit()}, in {minutes:.0f} minutes. This file is written "
        "by the bench.",
        f"{len(os.sched_getaffinity(0))} cores of {cpu()}, {memory_gb} GB, Linux {platform.release()}, "
        f"Python {platform.python_version()}; load of the machine, by others too: {os.getloadavg()[1]:.1f}.",
        "130 small JPEGs a class, so 1.3 million samples are 10,000 classes. Files that were just made: the "
        "kernel has their names in memory. The S3 server is bench/slow_s3.c on the same cores, no delay. "
        "The catalog has shards for all samples, whose files have no blocks; the service starts as at every "
        "start but the first. `each sample` is the slope of the line through the two largest sizes, and "
        f"{ESTIMATED:,} samples (ImageNet-21k) are where it leads: estimated, not measured.",
        as_table(figures),
        f"Bounds that are not met: {', '.join(missed) or 'none'}.",
    ]
    return "\n\n".join(parts) + "\n"


def _shown(value: float, unit: str) -> str:
    if unit == "MB":
        return f"{value:,.0f} MB" if value >= 10 else f"{value:.1f} MB"
    if value >= 1:
        return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.2f} ms"
