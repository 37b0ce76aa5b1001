"""The `stager` command. A Ctrl-C leaves no trace from its first moment on: imports take a while."""

import signal
import sys

DONE_IN_PART = 3


def main() -> None:
    try:
        from stager.cli import main as run

        run()
    except (KeyboardInterrupt, RuntimeError) as error:
        if not _is_ctrl_c(error):
            raise
        print("stager: stopped", file=sys.stderr)
        sys.exit(DONE_IN_PART)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing left to stop


def _is_ctrl_c(error: BaseException) -> bool:
    """Python 3.11 makes a RuntimeError of what is raised while a class is being made, as in an import."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


if __name__ == "__main__":
    main()
