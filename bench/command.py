"""What the commands of all benches have: one runs at a time, arguments, peers, and the last lines."""

import argparse
import fcntl
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.environments import BENCH, Environment, Peer, existing, make
from bench.process import end_all
from bench.rounds import Rounds
from bench.targets import Verdict


def run_alone(run: Callable[[], int]) -> int:
    """Run it; whatever ends it, nothing of it runs on."""
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit(1))  # so that all that was started is ended
    try:
        with _alone():
            return run()
    except KeyboardInterrupt:
        print("\nbench: stopped; nothing of it runs on", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_all()


@contextmanager
def _alone() -> Iterator[None]:
    """Two benches at a time would measure each other."""
    BENCH.mkdir(exist_ok=True)
    with (BENCH / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("bench: another one runs in this tree\n  try: again when it is done")
        yield


class names:
    """A list of known names, with commas; `none` is an empty one."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = list(known)

    def __call__(self, text: str) -> list[str]:
        chosen = [] if text == "none" else text.split(",")
        for name in chosen:
            if name not in self.known:
                raise argparse.ArgumentTypeError(f"{name}: not one of {', '.join(self.known)}")
        return chosen


def find_peers(
    known: Mapping[str, Peer], wanted: Sequence[str] | None, is_quick: bool
) -> tuple[dict[str, Environment], dict[str, str]]:
    """The environments of the peers that take part, by name, and why the others do not, by title."""
    ready: dict[str, Environment] = {}
    left_out: dict[str, str] = {}
    for name, peer in known.items():
        if wanted is not None and name not in wanted:
            left_out[peer.title] = "not asked for"
            continue
        found = existing(peer) if is_quick else make(peer)
        if found is None:
            left_out[peer.title] = "not installed: the quick run installs nothing"
        elif found.problem:
            left_out[peer.title] = f"not installed: {found.problem}"
        else:
            ready[name] = found
    return ready, left_out


def tell_verdicts(run: Rounds, judged: Sequence[Verdict], figures: Mapping[str, Any] | None) -> None:
    """The last lines: a line a target, or all figures as JSON; and who was left out."""
    if figures is not None:
        print(json.dumps(figures))
    else:
        for verdict in judged:
            value = "" if verdict.value is None else f"{verdict.value:.3g}"
            spread = f"({verdict.spread[0]:.3g}-{verdict.spread[1]:.3g})" if verdict.spread else ""
            print(f"{verdict.word:12} {value:>8} {spread:19} {verdict.wanted:14} {verdict.name}")
    for title, why in run.left_out.items():
        print(f"bench: {title}: {why}", file=sys.stderr)


def shown_command(module: str) -> str:
    """The command that was given, without the paths of this machine."""
    return " ".join([f"python -m {module}", *_shown_arguments(sys.argv[1:])])


def _shown_arguments(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        name, is_joined, _ = word.partition("=")
        if name in ("--data", "--out") and not is_joined:
            next(rest, None)
        if name != "--out":
            yield f"{name} DIR" if name == "--data" else word
