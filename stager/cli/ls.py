"""stager ls: what is staged, what failed, which classes there are."""

from typing import Annotated, Any

import typer

from stager.cache.budget import say_bytes
from stager.cli.app import ConfigOption, DatasetArgument, JsonOption, app, print_json, print_table, say
from stager.cli.ask import AnyOwner, open_owner
from stager.config import load_config
from stager.owner.verbs import CLASSES, DATASETS, FAILURES


@app.command("ls")
def list_datasets(
    dataset: DatasetArgument = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Samples that cannot be had, with key and reason.")
    ] = False,
    classes: Annotated[
        bool, typer.Option("--classes", help="Classes, and how much of each is resident.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List data sets and what is staged of them; or failed samples; or classes."""
    with open_owner(load_config(config)) as owner:
        if failed:
            rows = [row for name in _names(owner, dataset) for row in owner.ask(FAILURES, name)]
            columns = ["dataset", "index", "reason", "key", "detail"]
        elif classes:
            rows = [
                {"dataset": name, **row}
                for name in _names(owner, dataset)
                for row in owner.ask(CLASSES, name)
            ]
            columns = ["dataset", "class", "samples", "resident"]
        else:
            rows = [row for row in owner.ask(DATASETS) if dataset in (None, row["name"])]
            columns = []
    if as_json:
        print_json(rows)
    elif failed and not rows:
        say("no sample has failed")
    elif columns:
        print_table(["data set", *columns[1:]], [[_cell(row[name]) for name in columns] for row in rows])
    elif rows:
        print_table(
            ["data set", "samples", "resident", "failed", "pinned", "shards", "size", "format", "source"],
            [_dataset(row) for row in rows],
        )
    else:
        say("nothing is staged yet: stager prefetch")


def _names(owner: AnyOwner, dataset: str | None) -> list[str]:
    return [dataset] if dataset else sorted({row["name"] for row in owner.ask(DATASETS) if row["is_current"]})


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _dataset(row: dict[str, Any]) -> list[str]:
    name = row["name"] if row["is_current"] else f"{row['name']} (old recipe {row['recipe_digest'][:8]})"
    counts = [f"{row[key]:,}" for key in ("samples", "resident", "failed", "pinned", "shards")]
    return [name, *counts, say_bytes(row["bytes"]), row["format"], row["source"]]
