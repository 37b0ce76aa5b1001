"""stager status and stager stats: what is there and under way; hits, misses and waits."""

from typing import Annotated, Any

import typer

from stager.cache.budget import say_bytes
from stager.cli.app import (
    AllDatasetsArgument,
    ConfigOption,
    JsonOption,
    app,
    check_staged,
    out,
    print_json,
    print_table,
    say,
    say_time,
)
from stager.cli.ask import open_to_look
from stager.config import load_config
from stager.errors import NoService
from stager.jobs.plan import say_seconds
from stager.owner.verbs import STATS, STATUS


@app.command()
def status(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """The service, its data sets, jobs and budget. Exit code 4 if no service runs.

    stager status

    stager status --json
    """
    with open_to_look(load_config(config)) as owner:
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
        f" disk has {say_bytes(budget['free_bytes'])} free, {say_bytes(budget['reserve_bytes'])} reserved",
    )
    if value["hot"]:
        say(f"hot:     {_told_hot(value['hot'])}")
    for hung in value.get("hung", []):  # a service of before has none
        say(f"hung:    {hung['dataset']}: hung since {hung['hung_s']:.0f} s: {hung['what']}")
    if told := _told_limits(value.get("limits") or {}):
        say(f"limits:  {told}")
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
    if watched := [row for row in value["datasets"] if row["watch"]]:
        out.print()
        print_table(
            ["data set", "watched by", "state", "since", "last change"],
            [[row["name"], *_told_watch(row["watch"])] for row in watched],
        )
        for row in watched:
            for why in filter(None, (row["watch"]["why"], row["watch"]["note"])):
                say(f"{row['name']}: {why}")
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
                    f"{job['rate']:,.0f}/s" if job["rate"] else "-",
                    say_seconds(job["eta_s"]) if job["eta_s"] is not None else "-",
                ]
                for job in value["jobs"][-20:]
            ],
        )


def _told_watch(watch: dict[str, Any]) -> list[str]:
    """How a data set is watched, and how it is."""
    how = [f"{watch['watches']:,} watches"] if watch["watches"] is not None else []
    how += [f"{watch['stats_per_s']:,} stats/s"] if watch["stats_per_s"] else []
    how += [f"every {say_seconds(watch['every_s'])}"] if watch["every_s"] else []
    by = watch["by"] + (f" ({', '.join(how)})" if how else "")
    return [by, watch["state"], say_time(watch["since"]), say_time(watch["last_change"])]


def _told_limits(limits: dict[str, Any]) -> str:
    """What holds now, and until when."""
    sources = {"all sources": limits.get("source"), **limits.get("datasets", {})}
    parts = [(name, f"{say_bytes(one['bytes_per_s'])}/s", one) for name, one in sources.items() if one]
    if cpu := limits.get("cpu"):
        parts.append(("preparing", f"{cpu['share']:.0%} of the cores", cpu))
    return ", ".join(
        f"{name} {what}" + (f" until {one['until']}" if one["until"] else "") for name, what, one in parts
    )


def _told_hot(hot: dict[str, Any]) -> str:
    """How much of the hot set is there, and what keeps the rest away."""
    told = f"{say_bytes(hot['resident_bytes'])} of {say_bytes(hot['wanted_bytes'])} are resident,"
    told += f" of at most {say_bytes(hot['budget_bytes'])}"
    return told + (f"; the rest waits for {hot['waits_for']}" if hot["waits_for"] else "")


@app.command()
def stats(
    dataset: AllDatasetsArgument = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="Each session and epoch, too.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Hit rates and waits, by data set, session and epoch.

    A hit is a sample that was staged when a reader asked for it. For a miss the reader had to wait.
    Origin reads are reads of the source.

    stager stats imagenet --sessions
    """
    settings = load_config(config)
    with open_to_look(settings) as owner:
        value = owner.ask(STATS)
    check_staged(dataset, value["datasets"].keys(), settings)
    if dataset is not None:
        value["datasets"] = {dataset: value["datasets"][dataset]}
        value["sessions"] = [row for row in value["sessions"] if row["dataset"] == dataset]
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
