"""stager check: what a place has, which layout and recipe fit it, and a config to start from."""

from pathlib import Path
from typing import Annotated

import typer

from stager.check.config import config_for
from stager.check.place import look_at
from stager.cli.app import JsonOption, app, err, print_json
from stager.cli.check.shown import tell, tell_fit
from stager.errors import DONE_IN_PART, UsageError
from stager.reader.record import name_for_url, source_url
from stager.reader.values import SourceSpec


@app.command()
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/path, or a directory.")],
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE", help="Write the config to a new file.")
    ] = None,
    endpoint_url: Annotated[str | None, typer.Option(help="An S3 server other than AWS.")] = None,
    region: Annotated[str | None, typer.Option(help="Its region.")] = None,
    profile: Annotated[str | None, typer.Option(help="A profile of ~/.aws.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="No credentials.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a place: which layout and recipe fit, ten samples, and a config to start from.

    Nothing is staged. It looks at a folder, at tars, Parquet or tables, on S3 or on a mount. The exit code is
    1 if nothing fits, 3 if some of the ten samples fail.

    stager check s3://bucket/shards --write stager.toml
    """
    if write is not None and write.exists():
        raise UsageError(f"{write} is there already", hint="name a new file, or leave --write out")
    source = SourceSpec(source_url(url), endpoint_url, region, profile, anonymous)
    with err.status("listing") as status:
        finding = look_at(source, status.update)
    best = finding.fits
    config = config_for(name_for_url(source.url), source, best) if best else ""
    if best and write is not None:
        write.write_text(config)
    if as_json:
        print_json({**finding.to_json(), "config": config})
    else:
        tell(finding)
        if best:
            tell_fit(best, config, name_for_url(source.url), write)
    if best is None:
        raise typer.Exit(1)
    if best.good < len(best.samples):
        raise typer.Exit(DONE_IN_PART)
