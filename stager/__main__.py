"""The `stager` command. A Ctrl-C leaves no trace from its first moment on: imports take a while."""

import signal
import sys

DONE_IN_PART = 3


def main() -> None:
    try:
        from stager.cli import main as run

        run()
    except KeyboardInterrupt:
        print("stager: stopped", file=sys.stderr)
        sys.exit(DONE_IN_PART)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing left to stop


if __name__ == "__main__":
    main()
