"""stager why: is a sample resident, since when, and if not, why not."""

import time
from typing import Annotated, Any

import typer

from stager.cli.app import ConfigOption, JsonOption, app, complete_dataset, print_json, say
from stager.cli.ask import open_owner
from stager.cli.memo import is_memo, why_memo
from stager.config import load_config
from stager.jobs.plan import say_seconds
from stager.owner.verbs import WHY


@app.command()
def why(
    dataset: Annotated[str, typer.Argument(help="A data set.", autocompletion=complete_dataset)],
    sample: Annotated[str, typer.Argument(metavar="KEY|INDEX", help="A key of the source, or a number.")],
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Is a sample resident, since when, and if it is not: why not.

    `stager why memo NAME` says why each result of a function was computed.

    stager why imagenet n01440764/n01440764_18.JPEG

    stager why imagenet 0
    """
    with open_owner(load_config(config)) as owner:
        if is_memo(owner, dataset):
            why_memo(owner, sample, as_json)
            return
        value = owner.ask(WHY, dataset, sample)
    print_json(value) if as_json else _tell(value)


def _tell(value: dict[str, Any]) -> None:
    say(f"{value['dataset']} {value['index']}: {value['key']} ({value['label']})")
    say(f"  {value['why']}")
    if value["last"]:
        last = value["last"]
        ago = say_seconds(max(time.time() - last["at"], 0))
        say(f"  last miss {ago} ago: {last['reason']}, waited {last['wait_s']:.1f} s")
