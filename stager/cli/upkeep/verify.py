"""stager verify: read everything that is staged and compare it with its checksums."""

import sys
from typing import Annotated, Any

import typer
from rich.progress import track

from stager.cli.app import ConfigOption, JsonOption, app, err, print_json, say, warn
from stager.cli.ask import AnyOwner, open_owner
from stager.config import load_config
from stager.errors import StagerError
from stager.owner.verbs import PROBLEMS, SHARDS

BATCH_SHARDS = 4


@app.command()
def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Drop what is bad and stage it again.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Check every staged sample against its checksum, and the catalog against the disk."""
    with open_owner(load_config(config)) as owner:
        shards = owner.ask(SHARDS)
        problems = owner.ask(PROBLEMS)
        bad = _read_all(owner, [row["shard"] for row in shards])
        repaired = _repair(owner, bad) if repair and bad else []
        if repair:
            problems = owner.ask(PROBLEMS)
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
            f"{value['samples']:,} samples in {value['shards']:,} shards read: "
            + (f"{len(bad)} bad shards, {len(problems)} problems" if bad or problems else "all good"),
        )
    still_bad = (
        problems or (bad and not repair) or any(job["state"] != "done" or job["failed"] for job in repaired)
    )
    if still_bad and not repair:
        warn("  try: stager verify --repair")
    raise typer.Exit(StagerError.exit_code if still_bad else 0)


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
