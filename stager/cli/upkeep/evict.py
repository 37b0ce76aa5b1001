"""stager evict, pin and unpin."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stager.cache.budget import say_bytes
from stager.cli.app import ConfigOption, DatasetArgument, JsonOption, app, print_json, say
from stager.cli.ask import AnyOwner, open_owner
from stager.cli.memo import evict_memo, is_memo
from stager.cli.subset import takes_subset
from stager.config import load_config
from stager.errors import UsageError, many
from stager.owner.verbs import DATASETS
from stager.reader.samples.subset import Subset


@app.command()
@takes_subset
def evict(
    subset: Subset,
    dataset: DatasetArgument = None,
    memo: Annotated[str | None, typer.Argument(metavar="NAME", help="After `memo`: the function.")] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Take staged shards away: all of a data set, or those that lie wholly in a subset. Pinned ones stay.

    `stager evict memo NAME` takes the kept results of a function away.

    stager evict imagenet

    stager evict imagenet --split val
    """
    with open_owner(load_config(config)) as owner:
        if is_memo(owner, dataset):
            evict_memo(owner, memo, as_json)
            return
        if memo is not None:
            raise UsageError(f"{memo}: one data set at a time")
        value = owner.evict(name_of(owner, dataset), subset)
    told = f"evicted {_what(value)}"
    told += f"; kept {many(value['pinned'], 'pinned shard')}" if value["pinned"] else ""
    _tell(value, told, as_json)


@app.command()
@takes_subset
def pin(
    subset: Subset,
    dataset: DatasetArgument = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Keep what is staged of a data set or subset: pinned shards are never evicted.

    stager pin imagenet --classes 10 --seed 42
    """
    _pin(dataset, subset, True, as_json, config)


@app.command()
@takes_subset
def unpin(
    subset: Subset,
    dataset: DatasetArgument = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Allow pinned shards to be evicted again.

    stager unpin imagenet
    """
    _pin(dataset, subset, False, as_json, config)


def _pin(dataset: str | None, subset: Subset, pinned: bool, as_json: bool, config: Path | None) -> None:
    with open_owner(load_config(config)) as owner:
        value = owner.pin(name_of(owner, dataset), subset, pinned)
    verb = "pinned" if pinned else "unpinned"
    _tell(value, f"{verb} {_what(value)}", as_json)


def name_of(owner: AnyOwner, dataset: str | None) -> str:
    """The data set that is meant; without a name, the only one that is staged."""
    if dataset is not None:
        return dataset
    names = sorted({row["name"] for row in owner.ask(DATASETS) if row["is_current"]})
    if len(names) == 1:
        return str(names[0])
    raise UsageError(
        "which data set?", hint="name one of " + ", ".join(names) if names else "nothing is staged yet"
    )


def _what(value: dict[str, Any]) -> str:
    return (
        f"{many(value['samples'], 'sample')} in {many(value['shards'], 'shard')}, {say_bytes(value['bytes'])}"
    )


def _tell(value: dict[str, Any], told: str, as_json: bool) -> None:
    print_json(value) if as_json else say(f"{value['dataset']}: {told}")
