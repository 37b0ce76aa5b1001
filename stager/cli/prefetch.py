"""stager prefetch: stage a subset, with a plan before and progress on the way."""

import signal
import sys
import time
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from stager import errors
from stager.cache.budget import say_bytes
from stager.cli.app import (
    ConfigOption,
    JsonOption,
    app,
    complete_dataset,
    err,
    print_json,
    say,
    show_error,
    warn,
)
from stager.cli.ask import AnyOwner, open_owner
from stager.cli.subset import takes_subset
from stager.config import SHARD_FORMATS, load_config
from stager.errors import DONE_IN_PART, UsageError, nearest
from stager.jobs.job import ENDED
from stager.jobs.plan import say_plan, say_seconds
from stager.jobs.start_time import say_ready
from stager.owner.verbs import CANCEL
from stager.reader.samples.subset import Subset

PLAIN_EVERY_S = 2.0
STOP_S = 5.0  # for shards that are under way at a Ctrl-C


@app.command()
@takes_subset
def prefetch(
    subset: Subset,
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET|URL",
            autocompletion=complete_dataset,
            help="A data set of stager.toml (may be left out if there is only one), or s3://bucket/path, "
            "or a directory with a folder a class.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only tell what it would take; stage nothing.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave it to the service and return at once.")
    ] = False,
    until_ready: Annotated[
        bool,
        typer.Option(
            "--until-ready",
            help="Return once a training can start and never wait; the service goes on with the rest.",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try samples again that had failed for good.")
    ] = False,
    shard_format: Annotated[str, typer.Option("--format", help="arrow, lmdb or auto.")] = "",
    resize: Annotated[int | None, typer.Option(help="With a URL: size of the shorter side.")] = None,
    crop: Annotated[int | None, typer.Option(help="With a URL: size of the centre crop.")] = None,
    encode: Annotated[
        str | None, typer.Option(help="With a URL: how samples are stored; raw is the fastest.")
    ] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="With a URL: an S3 server other than AWS.")] = None,
    region: Annotated[str | None, typer.Option(help="With a URL: its region.")] = None,
    profile: Annotated[str | None, typer.Option(help="With a URL: a profile of ~/.aws.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="With a URL: no credentials.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Stage a subset: copy, decode and crop it onto local SSD.

    What is staged already is not fetched again. Ctrl-C keeps what is done; the next run goes on from there.

    stager prefetch --classes 100 --seed 42

    stager prefetch s3://bucket/train --resize 256 --crop 224 --plan
    """
    settings = load_config(config)
    shard_format = shard_format or settings.format
    if shard_format not in SHARD_FORMATS:
        raise UsageError(f"--format {shard_format!r}", hint=nearest(shard_format, SHARD_FORMATS))
    recipe = {
        name: value
        for name, value in (("resize", resize), ("crop", crop), ("encode", encode))
        if value is not None
    }
    access = {
        "endpoint_url": endpoint_url,
        "region": region,
        "profile": profile,
        "anonymous": anonymous or None,
    }
    access = {name: value for name, value in access.items() if value is not None}
    spec = settings.dataset_of_url(dataset, recipe, access)
    with open_owner(settings) as owner:
        if (detach or until_ready) and not owner.is_service:
            flag = "--detach" if detach else "--until-ready"
            raise errors.NoService(
                f"{flag} needs the service, and none answers", hint=f"stager serve, or no {flag}"
            )
        if owner.is_service:  # a Ctrl-C meanwhile would leave a job behind that nobody knows of
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        stop_after = "plan" if plan else ""
        job = owner.prefetch(None if spec else dataset, spec, subset, shard_format, stop_after, retry_failed)
        if detach:
            print_json({"job": job["id"]}) if as_json else say(f"job {job['id']}: see stager status")
            return
        code = _follow(owner, job, as_json, until_ready)
    raise typer.Exit(code)


def _follow(owner: AnyOwner, job: dict[str, Any], as_json: bool, until_ready: bool) -> int:
    """Show a job until it ends, or until a reader can start; return the exit code."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with _Progress() as progress:
            while job["state"] not in ENDED:
                job = owner.job(job["id"])
                progress.show(job)
                if until_ready and job["state"] == "staging" and job["ready"]["in_s"] == 0:
                    break
    except KeyboardInterrupt:
        return _stop(owner, job["id"])
    if owner.is_service and job["left_out"]:  # without one, its worker has said so
        warn(f"note: {job['dataset']}: {job['left_out']}")
    if job["state"] == "staging":
        return _tell_ready(job, as_json)
    return _tell(job, as_json)


def _stop(owner: AnyOwner, number: int) -> int:
    """End a job: what is under way for it is waited for, but not for long, and not after another Ctrl-C."""
    warn("stopping: shards that are under way are finished (Ctrl-C again: at once)")
    deadline = time.monotonic() + STOP_S
    try:
        job = owner.ask(CANCEL, number, finish=True)
        while job["state"] not in ENDED and time.monotonic() < deadline:
            job = owner.job(number)
    except KeyboardInterrupt:
        pass
    job = owner.ask(CANCEL, number, finish=False)
    warn(f"stopped: {job['staged']:,} samples were staged and stay; run it again to go on")
    return DONE_IN_PART


def _tell_ready(job: dict[str, Any], as_json: bool) -> int:
    if as_json:
        names = ("dataset", "classes", "wanted", "staged", "already", "failed", "bytes", "seconds", "format")
        print_json({**{name: job[name] for name in names}, "job": job["id"], "ready": job["ready"]})
        return 0
    say(say_ready(job["ready"]))
    left = job["wanted"] - job["done"]
    say(f"  {left:,} of {job['wanted']:,} samples are still being staged: stager status")
    return 0


def _tell(job: dict[str, Any], as_json: bool) -> int:
    if job["error"]:
        error = errors.from_json(job["error"])
        if as_json:
            print_json(job["error"])
        show_error(error)
        if job["staged"]:
            warn(f"{job['staged']:,} samples were staged before that, and stay")
        return DONE_IN_PART if job["staged"] else error.exit_code
    if job["state"] == "cancelled":
        warn(f"cancelled: {job['staged']:,} samples were staged and stay; run it again to go on")
        return DONE_IN_PART
    if job["stop_after"]:
        print_json(job["plan"]) if as_json else say(say_plan(job["plan"]))
        return 0
    if as_json:
        names = ("dataset", "classes", "wanted", "staged", "already", "failed", "bytes", "seconds", "format")
        print_json({name: job[name] for name in names})
    else:
        _tell_people(job)
    return DONE_IN_PART if job["failed"] else 0


def _tell_people(job: dict[str, Any]) -> None:
    names = job["classes"]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    say(f"{job['dataset']}: {len(names)} classes ({shown})")
    say(f"  listed in {job['saved_as']}")
    say(
        f"  {job['staged']:,} staged, {job['already']:,} already there, {job['failed']:,} failed,"
        f" of {job['wanted']:,}; {say_bytes(job['bytes'])} in {say_seconds(job['seconds'])}",
    )
    if job["staged"]:
        say(f"  as {job['format']}: {job['format_why']}")
    if job["failed"]:
        warn(f"  {job['failed']:,} samples cannot be had: stager ls --failed {job['dataset']}")


def say_changed(changed: dict[str, Any]) -> str:
    """What was staged before and does not count any more."""
    what = {"recipe_changed": "the recipe has changed", "source_changed": "the source has changed"}
    return f"{what[changed['reason']]} ({changed['detail']}): {changed['samples']:,} samples are staged anew"


class _Progress:
    """A bar on a terminal, a plain line now and then elsewhere. Both on stderr."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._said_at = 0.0
        self._has_plan = False
        self._paused: str | None = None

    def __enter__(self) -> "_Progress":
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[speed]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=err, transient=True)
            self._task = self._bar.add_task("scanning", total=1, speed="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, job: dict[str, Any]) -> None:
        # A small job may be over when we look for the first time: what it was about is said all the same.
        if job["plan"] and job["plan"]["samples"] and not job["stop_after"] and not self._has_plan:
            self._has_plan = True
            if job["changed"]:
                warn(say_changed(job["changed"]))
            warn(say_plan(job["plan"]))
            if job["state"] == "staging":
                warn(say_ready(job["ready"]))
        if job["paused"] != self._paused:
            self._paused = job["paused"]
            told = f"paused, goes on by itself: {self._paused}" if self._paused else "there is room: going on"
            warn(told)
        done = job["done"] + job["under_way"]
        speed = f"{job['rate']:,.0f}/s  {say_bytes(job['bytes'])}"
        if self._bar is not None:
            what = f"scanning {job['scanned']:,}" if job["state"] == "scanning" else job["state"]
            self._bar.update(
                self._task, description=what, completed=done, total=max(job["wanted"], 1), speed=speed
            )
        elif time.monotonic() - self._said_at > PLAIN_EVERY_S and job["state"] == "staging":
            self._said_at = time.monotonic()
            eta = f", {say_seconds(job['eta_s'])} left" if job["eta_s"] is not None else ""
            print(f"{job['state']} {done:,}/{job['wanted']:,} {speed}{eta}", file=sys.stderr, flush=True)
