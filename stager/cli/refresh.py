"""stager diff and refresh: what changed at the source, and taking it."""

from typing import Annotated

import typer

from stager.cli.app import ConfigOption, DatasetArgument, JsonOption, app
from stager.cli.ask import open_owner
from stager.cli.changes import tell_changes
from stager.cli.prefetch import follow
from stager.cli.upkeep.evict import name_of
from stager.config import load_config
from stager.errors import UsageError
from stager.owner.verbs import COMPARE, REFRESH


@app.command()
def diff(
    dataset: DatasetArgument = None,
    before: Annotated[
        str | None, typer.Argument(metavar="A", help="A version: stager ls --versions.")
    ] = None,
    after: Annotated[str | None, typer.Argument(metavar="B", help="Another one.")] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show what changed at the source since it was staged, or between two versions that are kept.

    Nothing is staged or taken over: that is stager refresh.

    stager diff photos

    stager diff photos 1f0c 93ab
    """
    if before is not None and after is None:
        raise UsageError("one version is not enough", hint="stager diff DATASET A B, or no version at all")
    with open_owner(load_config(config)) as owner:
        name = name_of(owner, dataset)
        if before is not None and after is not None:
            tell_changes(name, owner.ask(COMPARE, name, before=before, after=after), as_json)
            return
        code = follow(owner, owner.ask(REFRESH, name, how="look"), as_json)
    raise typer.Exit(code)


@app.command()
def refresh(
    dataset: DatasetArgument = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    accept_removals: Annotated[
        bool,
        typer.Option("--accept-removals", help="Also if more than 5 % of the samples are gone at once."),
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Take the source's new version, and stage anew what was staged and has changed.

    Open readers stay on the version they opened. Samples that are new are staged when somebody asks for
    them: stager prefetch. If more than 5 % are gone at once, nothing is changed: it may be the mount.

    stager refresh photos --dry-run
    """
    how = "look" if dry_run else "take_removals" if accept_removals else "take"
    with open_owner(load_config(config)) as owner:
        code = follow(owner, owner.ask(REFRESH, name_of(owner, dataset), how=how), as_json)
    raise typer.Exit(code)
