"""stager ls: what is staged, what failed, which classes there are."""

from typing import Annotated, Any

import typer

from stager.cache.budget import say_bytes
from stager.cli.app import (
    AllDatasetsArgument,
    ConfigOption,
    JsonOption,
    app,
    check_staged,
    print_json,
    print_table,
    say,
    say_time,
)
from stager.cli.ask import open_to_look
from stager.cli.memo import is_memo, list_memos, say_memos
from stager.config import load_config
from stager.owner.verbs import CLASSES, DATASETS, FAILURES, MEMOS, VERSIONS
from stager.reader.record import SHOWN_DIGITS


@app.command("ls")
def list_datasets(
    dataset: AllDatasetsArgument = None,
    failed: Annotated[bool, typer.Option("--failed", help="Failed samples, with key and reason.")] = False,
    classes: Annotated[
        bool, typer.Option("--classes", help="Classes, and how much of each is resident.")
    ] = False,
    versions: Annotated[
        bool, typer.Option("--versions", help="Versions that are kept, and who reads them.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List data sets and what is staged of them; or failed samples, classes, or versions.

    `stager ls memo` lists functions whose results are kept.

    stager ls

    stager ls --failed imagenet
    """
    settings = load_config(config)
    with open_to_look(settings) as owner:
        if is_memo(owner, dataset):
            list_memos(owner, as_json)
            return
        memos = [] if as_json or failed or classes or versions else owner.ask(MEMOS)
        datasets = owner.ask(DATASETS)
        check_staged(dataset, {row["name"] for row in datasets}, settings)
        names = [dataset] if dataset else sorted({row["name"] for row in datasets if row["is_current"]})
        if failed:
            rows = [row for name in names for row in owner.ask(FAILURES, name)]
            columns = ["dataset", "index", "reason", "key", "detail"]
        elif classes:
            rows = [{"dataset": name, **row} for name in names for row in owner.ask(CLASSES, name)]
            columns = ["dataset", "class", "samples", "resident"]
        elif versions:
            rows = [row for name in names for row in owner.ask(VERSIONS, name)]
            columns = ["dataset", "version", "found_at", "samples", "resident", "readers"]
        else:
            rows = [row for row in datasets if dataset in (None, row["name"])]
            columns = []
    if as_json:
        print_json(rows)
    elif failed and not rows:
        say("no sample has failed")
    elif columns:
        heads = [name.replace("dataset", "data set").replace("_", " ") for name in columns]
        print_table(heads, [[_cell(name, row[name]) for name in columns] for row in rows])
    elif rows:
        print_table(
            ["data set", "samples", "resident", "failed", "pinned", "shards", "size", "format", "source"],
            [_dataset(row) for row in rows],
        )
        for row in rows:
            if row["is_current"] and row["frozen"]:
                since, why = say_time(row["frozen"]["since"]), row["frozen"]["why"]
                say(f"{row['name']} is frozen since {since}: {why}")
    else:
        say("nothing is staged yet: stager prefetch")
    say_memos(memos)


def _cell(name: str, value: Any) -> str:
    if name == "found_at":
        return say_time(value)
    if name == "version":
        return str(value)[:SHOWN_DIGITS]
    return f"{value:,}" if isinstance(value, int) else str(value)


def _dataset(row: dict[str, Any]) -> list[str]:
    name = row["name"] if row["is_current"] else f"{row['name']} (old recipe {row['recipe_digest'][:8]})"
    counts = [f"{row[key]:,}" for key in ("samples", "resident", "failed", "pinned", "shards")]
    return [name, *counts, say_bytes(row["bytes"]), row["format"], row["source"]]
