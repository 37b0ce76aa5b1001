"""stager serve: the service in the foreground. It is another package, so another program takes over."""

import os
import sys
from typing import Annotated

import typer

from stager.cli.app import ConfigOption, app


@app.command()
def serve(
    config: ConfigOption = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON, one object a line.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the service in the foreground (what systemd runs). Ctrl-C stops it; what is staged stays."""
    arguments = [sys.executable, "-m", "stagerd", "--log-level", log_level]
    arguments += ["--config", str(config)] if config else []
    arguments += ["--log-json"] if log_json else []
    sys.stdout.flush()
    os.execv(sys.executable, arguments)  # noqa: S606
