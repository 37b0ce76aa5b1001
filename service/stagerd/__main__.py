"""`stagerd`: the service in the foreground, as systemd runs it."""

import argparse
import sys
from pathlib import Path

from stager.config import load_config
from stager.errors import StagerError
from stagerd import logs


def main() -> None:
    parser = argparse.ArgumentParser("stagerd", description="The stager service, in the foreground.")
    parser.add_argument("--config", type=Path, help="stager.toml (else the usual places)")
    parser.add_argument("--log-json", action="store_true", help="log JSON, one object a line")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    options = parser.parse_args()
    logs.set_up(options.log_level, options.log_json)
    try:
        from stagerd.daemon import run

        run(load_config(options.config))
    except StagerError as error:
        print(f"stager: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  try: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before there was anything to stop
        sys.exit(0)
    except ModuleNotFoundError as error:
        print(f"stager: the service needs {error.name}", file=sys.stderr)
        print("  try: pip install 'stager[service]'", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
