"""stager serve and stager demo. Both are other packages, so another program takes over."""

import os
import sys
from typing import Annotated

import typer

from stager.cli.app import ConfigOption, app


@app.command()
def serve(
    config: ConfigOption = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log JSON, one object on each line.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the service in the foreground (what systemd runs). Ctrl-C stops it; what is staged stays.

    stager serve

    stager serve --config stager.toml --log-level warning
    """
    arguments = [sys.executable, "-m", "stagerd", "--log-level", log_level]
    arguments += ["--config", str(config)] if config else []
    arguments += ["--log-json"] if log_json else []
    sys.stdout.flush()
    os.execv(sys.executable, arguments)  # noqa: S606


@app.command()
def demo() -> None:
    """Show stager at work, on this machine alone: an S3 server, the service, a prefetch, a training run.

    It makes 3,000 images, stages half of them and measures what that gains, in two minutes on two cores. All
    it writes is in .demo/. It needs pip install 'stager[demo]'.

    stager demo
    """
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "stager_demo"])  # noqa: S606
