"""stager evict, pin and unpin."""

from pathlib import Path
from typing import Any

from stager.cache.budget import say_bytes
from stager.cli.app import ConfigOption, DatasetArgument, JsonOption, app, print_json, say
from stager.cli.ask import AnyOwner, open_owner
from stager.cli.subset import takes_subset
from stager.config import load_config
from stager.errors import UsageError
from stager.owner.verbs import DATASETS
from stager.reader.samples.subset import Subset


@app.command()
@takes_subset
def evict(
    subset: Subset,
    dataset: DatasetArgument = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Take staged shards away: all of a data set, or those that lie wholly in a subset. Pinned ones stay."""
    with open_owner(load_config(config)) as owner:
        value = owner.evict(_name(owner, dataset), subset)
    told = f"evicted {value['samples']:,} samples in {value['shards']:,} shards, {say_bytes(value['bytes'])}"
    told += f"; {value['pinned']:,} pinned shards stay" if value["pinned"] else ""
    _tell(value, told, as_json)


@app.command()
@takes_subset
def pin(
    subset: Subset,
    dataset: DatasetArgument = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Keep what is staged of a data set or subset: pinned shards are never evicted."""
    _pin(dataset, subset, True, as_json, config)


@app.command()
@takes_subset
def unpin(
    subset: Subset,
    dataset: DatasetArgument = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Allow pinned shards to be evicted again."""
    _pin(dataset, subset, False, as_json, config)


def _pin(dataset: str | None, subset: Subset, pinned: bool, as_json: bool, config: Path | None) -> None:
    with open_owner(load_config(config)) as owner:
        value = owner.pin(_name(owner, dataset), subset, pinned)
    verb = "pinned" if pinned else "unpinned"
    _tell(
        value,
        f"{verb} {value['samples']:,} samples in {value['shards']:,} shards, {say_bytes(value['bytes'])}",
        as_json,
    )


def _name(owner: AnyOwner, dataset: str | None) -> str:
    if dataset is not None:
        return dataset
    names = sorted({row["name"] for row in owner.ask(DATASETS) if row["is_current"]})
    if len(names) == 1:
        return str(names[0])
    raise UsageError(
        "which data set?", hint="name one of " + ", ".join(names) if names else "nothing is staged yet"
    )


def _tell(value: dict[str, Any], told: str, as_json: bool) -> None:
    print_json(value) if as_json else say(f"{value['dataset']}: {told}")
