"""stager heat: what of a data set is read most, and what of that is resident."""

from typing import Annotated, Any

import typer

from stager.cli.app import ConfigOption, DatasetArgument, JsonOption, app, out, print_json, print_table, say
from stager.cli.ask import open_owner
from stager.cli.upkeep.evict import name_of
from stager.config import load_config
from stager.jobs.plan import say_seconds
from stager.owner.verbs import HEAT


@app.command()
def heat(
    dataset: DatasetArgument = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="So many classes and samples.")] = 10,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """The classes and samples that are read most, and what of them is resident.

    A read counts half after six hours, a quarter after twelve, and so on.

    stager heat imagenet

    stager heat imagenet --top 30 --json
    """
    with open_owner(load_config(config)) as owner:
        value = owner.ask(HEAT, name_of(owner, dataset))
    value["classes"], value["samples"] = value["classes"][:top], value["samples"][:top]
    print_json(value) if as_json else _tell(value)


def _tell(value: dict[str, Any]) -> None:
    if not value["warm"]:
        say(f"{value['dataset']}: nothing of it was read lately")
        return
    say(
        f"{value['dataset']}: {value['warm']:,} samples are warm, {value['reads']:,.1f} reads in all"
        f" (one of {say_seconds(value['half_life_s'])} ago counts half);"
        f" {value['resident_share']:.1%} of that is resident"
    )
    out.print()
    print_table(
        ["class", "samples", "reads", "share", "resident"],
        [
            [
                row["class"],
                f"{row['samples']:,}",
                f"{row['reads']:,.1f}",
                f"{row['share']:.1%}",
                f"{row['resident_share']:.1%}",
            ]
            for row in value["classes"]
        ],
    )
    out.print()
    print_table(
        ["sample", "class", "reads", "share", "resident"],
        [
            [
                row["key"],
                row["label"],
                f"{row['reads']:,.1f}",
                f"{row['share']:.2%}",
                "yes" if row["resident"] else "no",
            ]
            for row in value["samples"]
        ],
    )
