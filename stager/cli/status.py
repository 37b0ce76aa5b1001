"""stager status and stager stats: what is there and under way; hits, misses and waits."""

from typing import Annotated, Any

import typer

from stager.cache.budget import say_bytes
from stager.cli.app import ConfigOption, JsonOption, app, out, print_json, print_table, say
from stager.cli.ask import open_owner
from stager.config import load_config
from stager.errors import NoService
from stager.jobs.plan import say_seconds
from stager.owner.verbs import STATS, STATUS


@app.command()
def status(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """The service, its data sets, jobs and budget. Exit code 4 if no service runs."""
    with open_owner(load_config(config)) as owner:
        value = owner.ask(STATUS)
    if as_json:
        print_json(value)
    else:
        _tell_status(value)
    if not value["service"]["up"]:
        raise typer.Exit(NoService.exit_code)


def _tell_status(value: dict[str, Any]) -> None:
    service, budget = value["service"], value["budget"]
    if service["up"]:
        say(
            f"service: up for {say_seconds(service['uptime_s'])}, process {service['pid']}, version"
            f" {service['version']}",
        )
    else:
        say("service: not running (start it: systemctl start stager, or stager serve)")
    say(f"cache:   {service['cache_dir']}")
    say(f"native:  {service['native']}")
    say(
        f"budget:  {say_bytes(budget['used_bytes'])} used of {say_bytes(budget['capacity_bytes'])};"
        f" disk has {say_bytes(budget['free_bytes'])} free, {say_bytes(budget['reserve_bytes'])} are kept",
    )
    if value["datasets"]:
        out.print()
        print_table(
            ["data set", "samples", "resident", "failed", "size", "format"],
            [
                [
                    row["name"],
                    f"{row['samples']:,}",
                    f"{row['resident']:,}",
                    f"{row['failed']:,}",
                    say_bytes(row["bytes"]),
                    row["format"],
                ]
                for row in value["datasets"]
            ],
        )
    if value["jobs"]:
        out.print()
        print_table(
            ["job", "data set", "state", "done", "wanted", "rate", "left"],
            [
                [
                    str(job["id"]),
                    job["dataset"],
                    job["state"],
                    f"{job['done']:,}",
                    f"{job['wanted']:,}",
                    f"{job['rate']:,.0f}/s",
                    say_seconds(job["eta_s"]) if job["eta_s"] is not None else "-",
                ]
                for job in value["jobs"][-20:]
            ],
        )


@app.command()
def stats(
    sessions: Annotated[bool, typer.Option("--sessions", help="Each session and epoch, too.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Hit rates and waits, by data set, session and epoch.

    A hit was resident when asked for; a miss had to wait. Origin reads are reads of the source.
    """
    with open_owner(load_config(config)) as owner:
        value = owner.ask(STATS)
    if as_json:
        print_json(value)
        return
    print_table(
        ["data set", "requests", "hits", "misses", "hit rate", "waited", "origin reads", "origin bytes"],
        [
            [name, *_counts(row), f"{row['origin_reads']:,}", say_bytes(row["origin_bytes"])]
            for name, row in value["datasets"].items()
        ],
    )
    reasons = {name: row["reasons"] for name, row in value["datasets"].items() if row["reasons"]}
    for name, counts in reasons.items():
        told = ", ".join(
            f"{reason} {count:,}" for reason, count in sorted(counts.items(), key=lambda item: -item[1])
        )
        say(f"misses of {name}: {told}")
    if sessions and value["sessions"]:
        out.print()
        print_table(
            ["session", "data set", "epoch", "requests", "hits", "misses", "hit rate", "waited"],
            [
                [session["session"][:12], session["dataset"], str(epoch["epoch"]), *_counts(epoch)]
                for session in value["sessions"]
                for epoch in session["epochs"]
            ],
        )


def _counts(row: dict[str, Any]) -> list[str]:
    rate = f"{row['hit_rate']:.1%}" if row["requests"] else "-"
    return [f"{row['requests']:,}", f"{row['hits']:,}", f"{row['misses']:,}", rate, f"{row['wait_s']:.1f} s"]
