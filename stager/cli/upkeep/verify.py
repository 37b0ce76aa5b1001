"""stager verify: read everything that is staged and compare it with its checksums."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from stager.cli.app import (
    AllDatasetsArgument,
    ConfigOption,
    JsonOption,
    app,
    check_staged,
    err,
    print_json,
    say,
    show_error,
    warn,
)
from stager.cli.ask import AnyOwner, open_owner
from stager.config import load_config
from stager.errors import StagerError, many
from stager.owner.verbs import DATASETS, PROBLEMS, SHARDS, STATUS
from stager.reader.record import datasets_dir

BATCH_SHARDS = 4


@app.command()
def verify(
    dataset: AllDatasetsArgument = None,
    repair: Annotated[bool, typer.Option("--repair", help="Drop what is bad and stage it again.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Check every staged sample against its checksum, and the catalog against the disk.

    stager verify

    stager verify imagenet --repair
    """
    settings = load_config(config)
    with open_owner(settings) as owner:
        check_staged(dataset, {row["name"] for row in owner.ask(DATASETS)}, settings)
        shards = [row for row in owner.ask(SHARDS) if dataset in (None, row["dataset"])]
        bad = _read_all(owner, [row["shard"] for row in shards])
        repaired = _repair(owner, bad) if repair and bad else []
        problems = _problems(owner, dataset)
    value = {
        "shards": len(shards),
        "samples": sum(row["samples"] for row in shards),
        "bytes": sum(row["bytes"] for row in shards),
        "bad": bad,
        "problems": problems,
        "repaired": repaired,
    }
    if as_json:
        print_json(value)
    else:
        for row in bad:
            say(f"bad: {row['dataset']} {row['path']}: {row['problem']}")
        for problem in problems:
            say(f"problem: {problem}")
        for job in repaired:
            say(
                f"repaired: {job['dataset']}: {job['staged']:,} staged again, {job['failed']:,} failed",
            )
        say(
            f"{many(value['samples'], 'sample')} in {many(value['shards'], 'shard')} read: "
            + (
                f"{many(len(bad), 'bad shard')}, {many(len(problems), 'problem')}"
                if bad or problems
                else "all good"
            ),
        )
    still_bad = (
        problems or (bad and not repair) or any(job["state"] != "done" or job["failed"] for job in repaired)
    )
    if still_bad and not repair:
        warn("  try: stager verify --repair")
    if failed := sum(job["failed"] for job in repaired):
        told = f"{failed:,} of the samples that were dropped could not be staged again"
        show_error(StagerError(told, hint="stager ls --failed; if the source has changed: stager prefetch"))
    raise typer.Exit(StagerError.exit_code if still_bad else 0)


def _problems(owner: AnyOwner, dataset: str | None) -> list[str]:
    """Where the catalog and the disk disagree, of one data set or of all."""
    place = datasets_dir(Path(owner.ask(STATUS)["service"]["cache_dir"])) / (dataset or "")
    return [told for told in owner.ask(PROBLEMS) if dataset is None or told.startswith(f"{place}/")]


def _read_all(owner: AnyOwner, shards: list[int]) -> list[dict[str, Any]]:
    parts = [shards[at : at + BATCH_SHARDS] for at in range(0, len(shards), BATCH_SHARDS)]
    shown = track(parts, "verifying", console=err, transient=True) if sys.stderr.isatty() else parts
    return [row for part in shown for row in owner.verify(part)]


def _repair(owner: AnyOwner, bad: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the bad shards and wait until what they held is staged again."""
    jobs = owner.drop([row["shard"] for row in bad])["jobs"]
    ended = []
    for number in jobs:
        job = owner.job(number)
        while job["state"] not in ("done", "failed", "cancelled"):
            job = owner.job(number)
        ended.append(job)
    return ended
