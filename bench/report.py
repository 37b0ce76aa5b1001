"""RESULTS.md and the JSON of a run."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from bench.environments import ROOT
from bench.rounds import Prepared, Rounds
from bench.targets import Verdict

PACKAGES: Final = (
    "torch",
    "numpy",
    "pyarrow",
    "pycurl",
    "awscrt",
    "simplejpeg",
    "pillow",
    "opencv-python-headless",
)
TITLES: Final = {
    "prepare": "Prepare: JPEGs to 224 px raw",
    "fetch": "Fetch: GETs at 30 ms a request",
    "cold": "Cold: epoch 0 from a slow S3 (30 ms a request, 200 MB/s)",
    "warm": "Warm: staged 224 px crops, shuffled, batches of 256",
    "augment": "Augment: RandomResizedCrop and flip from 256 px, warm, 2 threads",
    "budget": "Budget: a cache smaller than the data, one uniform job of five epochs",
}
TEXTS: Final = {
    "prepare": "Images/s on all cores. stager reads from a local S3 server that is not slow, the peers "
    "read files. The bare loop is stager's own recipe on all cores, from memory, with nothing kept; that of "
    "libraries has simplejpeg and torch in the place of stager's C. All find the memory that they will take "
    "backed by the host (bench/memory.py). The peers decode with Pillow in two processes, as their own "
    "documentation shows.",
    "fetch": "stager's way to S3, with its checks of length, version and checksum (MD5 where the server "
    "keeps none), so many under way.",
    "cold": "The clock runs from the opening of the data set, the scan included. Raw shards of peers were "
    "prepared before; `with preparation` counts that time in. Epoch 1 follows in the same process.",
    "warm": "All peers store the very pixels that stager staged, and have the best of their settings. "
    "Memory is what the process and its children have more (PSS) than after the import of everything; "
    "`anonymous` is without mapped files, whose pages are the page cache's. "
    "The first epoch of stager compares all checksums. Before each run its files are brought into the page "
    "cache, in huge pages, for all alike: this kernel drops what was idle for a minute.",
    "augment": "FFCV stores as many pixels: the same 256 px crops, raw or as JPEG of quality 90.",
    "budget": "GETs of each epoch, as the server counted them. The least possible after the first epoch is "
    "(1 - c) N, less what 12 MB of memory hold.",
}
Columns = tuple[tuple[str, str], ...]
COLUMNS: Final[dict[str, Columns]] = {
    "prepare": (
        ("rate", "images/s"),
        ("cpu_ms", "CPU ms an image"),
        ("service_memory_mb", "memory of the service, MB"),
    ),
    "fetch": (
        ("rate", "GET/s"),
        ("gets_per_cpu_s", "GET a CPU-second"),
        ("cpu_s_per_1000", "CPU-s for 1,000"),
    ),
    "cold": (
        ("rate", "samples/s"),
        ("rate_with_preparation", "with preparation"),
        ("first_batch_s", "first batch, s"),
        ("rate_epoch_1", "epoch 1"),
        ("cpu_ms", "CPU ms a sample"),
        ("gets", "GETs"),
    ),
    "warm": (
        ("rate", "samples/s"),
        ("first_epoch_rate", "first epoch"),
        ("first_batch_s", "first batch, s"),
        ("memory_all_mb", "memory, MB"),
        ("memory_anonymous_mb", "anonymous"),
        ("memory_worker_all_mb", "a worker, MB"),
    ),
    "augment": (("rate", "samples/s"), ("first_batch_s", "first batch, s")),
    "budget": (
        ("reads_epoch_0", "epoch 0"),
        ("reads_later", "a later epoch"),
        ("over_least", "of (1 - c) N"),
    ),
}


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the page: the rows of one scenario. `columns`: figures, and what they are called."""

    name: str
    title: str
    text: str
    columns: Columns


SCENARIOS: Final = tuple(Section(name, title, TEXTS[name], COLUMNS[name]) for name, title in TITLES.items())


def as_json(run: Rounds, data: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "machine": machine(run, data),
        "rows": [asdict(row) for row in run.rows],
        "targets": [asdict(verdict) for verdict in verdicts],
        "left_out": run.left_out,
        "notes": run.notes,
    }


def machine(run: Rounds, data: str) -> dict[str, Any]:
    """Where, with what and of which data it was measured."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    peers = {env.peer.title: env.version for env in run.environments.values()}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": packages,
        "peers": peers,
        "data": data,
        "other_load_cores": round(max(run.other_load, default=0.0), 2),
        "minutes": round((time.monotonic() - run.began) / 60, 1),
    }


def as_markdown(
    run: Rounds, data: str, sections: Sequence[Section], verdicts: Sequence[Verdict], command: str,
    targets: str, picture: str = "",
) -> str:  # fmt: skip
    """The page of one run. `targets`: the file that has them."""
    about = machine(run, data)
    versions = ", ".join(f"{name} {number}" for name, number in (about["packages"] | about["peers"]).items())
    missed = [verdict for verdict in verdicts if verdict.value is not None and not verdict.met]
    parts = [
        "# What was measured",
        f"By `{command}` on {about['date']}, commit {about['commit']}, in {about['minutes']} minutes. "
        "This file is written by the bench.",
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gb']} GB, Linux {about['kernel']}, "
        f"Python {about['python']}; {about['data']}; others used up to {about['other_load_cores']} cores "
        f"meanwhile. {versions}.",
        "All run in turn, round by round, each in a process of its own. A figure is the median of the "
        "rounds, with the lowest and the highest in brackets. Absolute figures move from machine to machine: "
        "take the ratios.",
        *([picture] if picture else []),
        "## Targets",
        f"{sum(verdict.met for verdict in verdicts)} met, {len(missed)} missed, "
        f"{sum(verdict.value is None for verdict in verdicts)} not measured ({targets}).",
        target_table(verdicts),
    ]
    for section in sections:
        rows = [row for row in run.rows if row.scenario == section.name]
        if rows:
            parts += [f"## {section.title}", section.text, scenario_table(section.columns, rows)]
    left_out = [f"- {title}: {why}" for title, why in run.left_out.items()]
    if left_out:
        parts += ["## Left out", "\n".join(left_out)]
    if run.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in run.notes)]
    return "\n\n".join(parts) + "\n"


def target_table(verdicts: Sequence[Verdict]) -> str:
    lines = ["| target | wanted | measured | |", "| --- | --- | --- | --- |"]
    for verdict in verdicts:
        values = [] if verdict.value is None else [verdict.value]
        value = shown([verdict.spread[0], *values, verdict.spread[1]] if verdict.spread else values)
        against = f" ({verdict.against})" if verdict.against and verdict.against not in verdict.name else ""
        lines.append(f"| {verdict.name}{against} | {verdict.wanted} | {value} | {verdict.word} |")
    return "\n".join(lines)


def scenario_table(known: Columns, rows: Sequence[Prepared]) -> str:
    """A row for each who took part."""
    columns = [(key, head) for key, head in known if any(key in row.figures for row in rows)]
    heads = ["", *(head for _, head in columns), "setting, check"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " --- |" * (len(heads) - 1)]
    for row in rows:
        if not row.figures:
            lines.append(f"| {row.who} |" + " |" * len(columns) + f" {row.problem or 'not run'} |")
            continue
        cells = [shown(row.figures.get(key)) for key, _ in columns]
        told = [row.setting, row.told.get("check", ""), row.told.get("reads", ""), row.problem]
        lines.append(
            f"| {row.who} | " + " | ".join(cells) + f" | {'; '.join(text for text in told if text)} |"
        )
    return "\n".join(lines)


def shown(values: Sequence[float] | None) -> str:
    """A figure and its spread."""
    if not values:
        return ""
    ordered = sorted(values)
    middle = Prepared("", "", "", figures={"rate": ordered}).figure() or 0.0

    def text(value: float) -> str:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

    spread = f" ({text(ordered[0])}-{text(ordered[-1])})" if len(ordered) > 1 else ""
    return text(middle) + spread


def commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    head = git("rev-parse", "--short", "HEAD") or "unknown"
    return head + (
        " with changes"
        if git(
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            ":!bench/RESULTS.md",
            ":!bench/results.svg",
            ":!bench/WORKLOADS.md",
        )
        else ""
    )


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
