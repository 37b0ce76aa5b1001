"""stager prefetch: stage a subset, with a plan before and progress on the way."""

import signal
import sys
import time
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

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
from stager.cli.changes import tell_refreshed
from stager.cli.subset import takes_subset
from stager.config import SHARD_FORMATS, load_config
from stager.errors import DONE_IN_PART, SourceSilent, UsageError, many, nearest
from stager.jobs.job import ENDED
from stager.jobs.plan import say_evicts, say_plan, say_seconds
from stager.jobs.start_time import say_ready
from stager.mounts import is_there
from stager.owner.verbs import CANCEL, STAGE_HOT
from stager.reader.samples.subset import Subset

PLAIN_EVERY_S = 2.0
BAR_COLUMNS = 30
SHOWN_S = 0.05  # what is less would be shown as 0.0 s
TOLD = ("dataset", "classes", "wanted", "staged", "already", "failed", "bytes", "seconds", "format")
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
            "or a directory with one folder for each class.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show what it would take; stage nothing.")
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
        bool, typer.Option("--retry-failed", help="Also try samples again that failed for good.")
    ] = False,
    evict_cold: Annotated[
        bool,
        typer.Option("--evict-cold", help="If it does not fit, take the place of what is needed latest."),
    ] = False,
    hot: Annotated[
        bool, typer.Option("--hot", help="Stage what is read most and missing, of DATASET or of all.")
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

    stager prefetch ./photos

    stager prefetch imagenet --classes 100 --seed 42

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
    if hot:
        others = (plan, detach, until_ready, retry_failed, evict_cold, recipe, access, subset != Subset())
        if any(others):
            raise UsageError(
                "--hot goes with a DATASET, --json and --config only", hint="stager heat DATASET"
            )
        with open_owner(settings) as owner:
            code = stage_hot(owner, dataset, as_json)
        raise typer.Exit(code)
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
        try:
            job = owner.prefetch(
                None if spec else dataset, spec, subset, shard_format, stop_after, retry_failed, evict_cold
            )
        except UsageError as error:
            if spec is None and dataset and dataset not in settings.datasets and _is_folder(dataset):
                error = UsageError(error.message, hint=f"for the folder here: stager prefetch ./{dataset}")
            raise error from None
        if detach:
            print_json({"job": job["id"]}) if as_json else say(f"job {job['id']}: see stager status")
            return
        code = follow(owner, job, as_json, until_ready)
    raise typer.Exit(code)


def _is_folder(name: str) -> bool:
    """Whether there is a folder of that name here. A mount that hangs has none."""
    try:
        return is_there(f"{name}/")
    except SourceSilent:
        return False


def stage_hot(owner: AnyOwner, dataset: str | None, as_json: bool) -> int:
    """Have what is hot staged now, a data set after the other; return the exit code."""
    ended, code = [], 0
    for begun in owner.ask(STAGE_HOT, name=dataset)["jobs"]:
        job = begun
        with _Progress() as progress:
            while job["state"] not in ENDED:
                job = owner.job(job["id"])
                progress.show(job)
        code = code or (0 if job["state"] == "done" and not job["failed"] else DONE_IN_PART)
        ended.append(job)
        if not as_json:
            say(f"{job['dataset']}: {many(job['staged'], 'hot sample')} staged, {say_bytes(job['bytes'])}")
        if job["error"]:
            show_error(errors.from_json(job["error"]))
    if as_json:
        print_json({"jobs": [{name: job[name] for name in (*TOLD, "state")} for job in ended]})
    elif not ended:
        say("nothing that is hot is missing, or there is no room for it: stager heat DATASET")
    return code


def follow(owner: AnyOwner, job: dict[str, Any], as_json: bool, until_ready: bool = False) -> int:
    """Show a job until it ends, or until a reader can start; return the exit code."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with _Progress() as progress:
            while job["state"] not in ENDED:
                job = owner.job(job["id"])
                progress.show(job)
                if until_ready and job["state"] == "staging" and job["ready"]["in_s"] == 0:
                    break
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to stop
    except KeyboardInterrupt:
        return _stop(owner, job["id"])
    if owner.is_service and job["left_out"]:  # without one, its worker has said so
        warn(f"note: {job['dataset']}: {job['left_out']}")
    if job["state"] == "staging":
        return _tell_ready(job, as_json)
    return _tell(job, as_json)


def _stop(owner: AnyOwner, number: int) -> int:
    """End a job: what is under way for it is waited for, but not for long, and not after another Ctrl-C."""
    warn("stopping: finishing the shards under way (Ctrl-C again: stop at once)")
    deadline = time.monotonic() + STOP_S
    try:
        job = owner.ask(CANCEL, number, finish=True)
        while job["state"] not in ENDED and time.monotonic() < deadline:
            job = owner.job(number)
    except KeyboardInterrupt:
        pass
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = owner.ask(CANCEL, number, finish=False)
    warn(f"stopped: {job['staged']:,} samples were staged and stay; run it again to go on")
    return DONE_IN_PART


def _tell_ready(job: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json({**{name: job[name] for name in TOLD}, "job": job["id"], "ready": job["ready"]})
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
    if job["refresh"]:
        tell_refreshed(job, as_json)
        return DONE_IN_PART if job["failed"] else 0
    if job["stop_after"]:
        if as_json:
            print_json(job["plan"])
        else:
            for line in _say_price(job).split("\n"):
                say(line)
        return 0
    if as_json:
        evicts = job["plan"]["evicts"] if job["plan"] else []
        print_json({**{name: job[name] for name in (*TOLD, "left_out")}, "evicted": evicts})
    else:
        _tell_people(job)
    return DONE_IN_PART if job["failed"] or job["lacks_samples"] else 0


def _say_took(job: dict[str, Any]) -> str:
    """What a plan had told, and apart from it what came before the plan."""
    if job.get("staging_s", 0.0) < SHOWN_S:  # the plan's few were all; or a service of before
        return say_seconds(job["seconds"])
    before_s = job["seconds"] - job["staging_s"]
    return f"{say_seconds(job['staging_s'])}, after {say_seconds(before_s)} for the list and the plan"


def _say_price(job: dict[str, Any]) -> str:
    if job["plan"]["samples"]:
        evicts = job["plan"]["evicts"]
        return say_plan(job["plan"]) + (f"\n{say_evicts(evicts)}" if evicts else "")
    return (
        f"nothing to stage: {job['already']:,} already there, {job['failed']:,} failed, of {job['wanted']:,}"
    )


def _tell_people(job: dict[str, Any]) -> None:
    names = job["classes"]
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    say(f"{job['dataset']}: " + (f"{many(len(names), 'class')} ({shown})" if any(names) else "no classes"))
    if not any(names) and job.get("fields"):  # a service of before does not say it
        say(f"  a sample is {', '.join(job['fields'])}")
    say(f"  listed in {job['saved_as']}")
    say(
        f"  {job['staged']:,} staged, {job['already']:,} already there, {job['failed']:,} failed,"
        f" of {job['wanted']:,}; {say_bytes(job['bytes'])} in {_say_took(job)}",
    )
    if job["staged"]:
        say(f"  as {job['format']}: {job['format_why']}")
    if job["failed"]:
        warn(f"  {job['failed']:,} samples failed; to see why: stager ls --failed {job['dataset']}")


def say_changed(changed: dict[str, Any]) -> str:
    """What was staged before and does not count any more."""
    what = {"recipe_changed": "the recipe has changed", "source_changed": "the source has changed"}
    return f"{what[changed['reason']]} ({changed['detail']}): {changed['samples']:,} samples are staged anew"


class _Progress:
    """A bar on a terminal, a plain line now and then elsewhere. Both on stderr."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._said_at = 0.0
        self._has_plan = self._has_change = False
        self._paused: str | None = None

    def __enter__(self) -> "_Progress":
        if sys.stderr.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(BAR_COLUMNS),
                TextColumn("{task.fields[told]}"),
            )
            self._bar = Progress(*columns, console=err, transient=True)
            self._task = self._bar.add_task("scanning", total=None, told="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, job: dict[str, Any]) -> None:
        # A small job may be over when we look for the first time: what it was about is said all the same.
        if job["changed"] and not self._has_change:
            self._has_change = True
            warn(say_changed(job["changed"]))
        if job["plan"] and job["plan"]["samples"] and not job["stop_after"] and not self._has_plan:
            self._has_plan = True
            warn(say_plan(job["plan"]))
            if job["plan"]["evicts"]:
                warn(say_evicts(job["plan"]["evicts"]))
            if job["state"] == "staging":
                warn(say_ready(job["ready"]))
        if job["paused"] != self._paused:
            self._paused = job["paused"]
            told = f"paused, goes on by itself: {self._paused}" if self._paused else "going on"
            warn(told)
        staging, done = job["state"] == "staging", job["done"] + job["under_way"]
        told = _say_progress(job, done) if staging else ""
        if self._bar is not None:  # before it stages, nobody knows how much there is to do: the bar swings
            what = f"scanning {job['scanned']:,}" if job["state"] == "scanning" else job["state"]
            total = max(job["wanted"], 1) if staging else None
            self._bar.update(self._task, description=what, completed=done, total=total, told=told)
        elif staging and time.monotonic() - self._said_at > PLAIN_EVERY_S:
            self._said_at = time.monotonic()
            print(f"staging {told}", file=sys.stderr, flush=True)


def _say_progress(job: dict[str, Any], done: int) -> str:
    """How far a job is: 145/200, 127/s, 4.8 MB, 0.4 s left."""
    told = [f"{done:,}/{job['wanted']:,}", f"{job['rate']:,.0f}/s"]
    told += [say_bytes(job["bytes"])] if job["bytes"] else []
    told += [f"{say_seconds(job['eta_s'])} left"] if job["eta_s"] is not None else []
    return ", ".join(told)
