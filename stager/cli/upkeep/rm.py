"""stager rm: forget a data set, with all that is staged of it."""

import sys
import time
from typing import Annotated, Any, Final

import typer

from stager.cache.budget import say_bytes
from stager.cli.app import ConfigOption, JsonOption, app, check_staged, err, print_json, say
from stager.cli.ask import AnyOwner, open_owner
from stager.config import load_config
from stager.errors import DONE_IN_PART, StagerError, UsageError, many, shown
from stager.owner.verbs import DATASETS, REMOVE
from stager.reader.record import datasets_dir

ASK_EVERY_S: Final = 0.2  # until what is under way has ended
PATIENCE_S: Final = 120.0


def complete_staged(incomplete: str) -> list[str]:
    """Names of data sets that are staged, also those that the config does not have any more."""
    try:
        paths = datasets_dir(load_config().cache_dir).iterdir()
        return sorted(path.name for path in paths if path.name.startswith(incomplete))
    except (StagerError, OSError):
        return []


@app.command("rm")
def remove(
    dataset: Annotated[
        str,
        typer.Argument(metavar="DATASET", help="A data set that is staged.", autocompletion=complete_staged),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if it is in use: its jobs and readers end.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Forget a data set: its shards, also pinned ones, its versions, heat and statistics.

    The source is not touched. A data set of the config comes back with its next prefetch.

    stager rm pets

    stager rm photos-1f0c88 --yes
    """
    settings = load_config(config)
    with open_owner(settings) as owner:
        rows = [row for row in owner.ask(DATASETS) if row["name"] == dataset]
        check_staged(dataset, {row["name"] for row in owner.ask(DATASETS)}, settings)
        told = {
            "dataset": dataset,
            **{name: sum(row[name] for row in rows) for name in ("resident", "shards", "pinned", "bytes")},
            "is_in_config": dataset in settings.datasets,
        }
        if not yes and not _is_agreed(told):
            raise typer.Exit(DONE_IN_PART)
        told |= {"bytes": _remove(owner, dataset, force)["bytes"]}
    print_json(told) if as_json else say(f"{dataset}: removed, {say_bytes(told['bytes'])} are free again")


def _is_agreed(told: dict[str, Any]) -> bool:
    """Say what would go, and ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"nobody is there to be asked whether {told['dataset']} is to go", hint="--yes")
    what = (
        f"{many(told['resident'], 'sample')} in {many(told['shards'], 'shard')}, {say_bytes(told['bytes'])}"
    )
    what += f"; {told['pinned']:,} samples are pinned" if told["pinned"] else ""
    err.print(shown(f"{told['dataset']}: {what}"), highlight=False, soft_wrap=True)
    if told["is_in_config"]:
        err.print("  it is in stager.toml: its next prefetch stages it anew", highlight=False, soft_wrap=True)
    return typer.confirm(f"remove {told['dataset']}?", err=True)


def _remove(owner: AnyOwner, dataset: str, force: bool) -> dict[str, Any]:
    """Until it is gone. Once nobody uses it, what workers have under way must end."""
    deadline = time.monotonic() + PATIENCE_S
    told = owner.ask(REMOVE, dataset, force=force)
    while not told["is_gone"]:
        if time.monotonic() > deadline:
            raise StagerError(
                f"{dataset}: workers still stage it after {PATIENCE_S:.0f} s", hint="stager status; try again"
            )
        time.sleep(ASK_EVERY_S)
        told = owner.ask(REMOVE, dataset, force=force)
    return told
