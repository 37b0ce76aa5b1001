"""stager, its peers and the limits of the machine, in one run: make bench

    make bench                                       all of it; the peers are installed the first time
    make bench ARGS="--data DIR"                     with real JPEGs, copied as often as needed
    make bench ARGS="--only warm,cold --peers ffcv"  some of it
    make bench-quick                                 two minutes, with the peers that are installed already

It writes bench/RESULTS.md and bench/results.svg, says which targets of bench/targets.toml are missed, and
keeps environments and images in .bench/. Ctrl-C ends it and all it has started.
"""

import argparse
import fcntl
import json
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench import chart, report
from bench.data import lay_out
from bench.environments import BENCH, PEERS, ROOT, Environment, existing, make
from bench.harness import FULL, QUICK, Bench, fresh_work
from bench.process import end_all
from bench.scenarios import SCENARIOS, WEIGHTS
from bench.targets import verdicts


def main() -> int:
    options = parse()
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda *_: sys.exit(1))  # so that all that was started is ended
    try:
        with alone():
            return run(options)
    except KeyboardInterrupt:
        print("\nbench: stopped; nothing of it runs on", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_all()


@contextmanager
def alone() -> Iterator[None]:
    """Two benches at a time would measure each other."""
    BENCH.mkdir(exist_ok=True)
    with (BENCH / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("bench: another one runs in this tree\n  try: again when it is done")
        yield


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a folder of JPEGs; without it, images are made")
    parser.add_argument(
        "--samples", type=int, help="how many, for the warm runs; the others take a part of them"
    )
    parser.add_argument("--quick", action="store_true", help="two minutes, and no peer is installed")
    parser.add_argument("--rounds", type=int, help="how often all run in turn")
    parser.add_argument("--only", type=names(SCENARIOS), default=list(SCENARIOS), help=",".join(SCENARIOS))
    parser.add_argument(
        "--peers", type=names(PEERS), default=None, help="some of " + ",".join(PEERS) + ", or none"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench", help="where RESULTS.md and results.svg go"
    )
    return parser.parse_args()


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


def run(options: argparse.Namespace) -> int:
    scale = QUICK if options.quick else FULL
    if options.samples:
        part = options.samples / scale.warm_samples
        scale = replace(
            scale,
            warm_samples=options.samples,
            cold_samples=max(256, round(scale.cold_samples * min(1, part))),
            augment_samples=max(256, round(scale.augment_samples * min(1, part))),
            budget_samples=max(256, round(scale.budget_samples * min(1, part))),
        )
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    peers, left_out = find_peers(options)
    began = time.monotonic()
    fresh_work()
    most = max(scale.warm_samples, scale.cold_samples, scale.augment_samples, scale.budget_samples)
    bench = Bench(lay_out(BENCH / "data", options.data, most), scale, peers, left_out, began=began)
    for place, name in enumerate(options.only):
        bench.note_load()
        weights = [WEIGHTS[each] for each in options.only]
        share = sum(weights[: place + 1]) / sum(weights)
        bench.peers_until = began + 60 * scale.peer_minutes * share
        try:
            SCENARIOS[name](bench)
        except (OSError, RuntimeError) as error:
            bench.notes.append(f"{name} was broken off: {type(error).__name__}: {error}")
            print(f"bench: {bench.notes[-1]}", file=sys.stderr)
    bench.drop_shards()
    return finish(bench, options)


def find_peers(options: argparse.Namespace) -> tuple[dict[str, Environment], dict[str, str]]:
    """The environments of the peers that take part, and why the others do not."""
    ready: dict[str, Environment] = {}
    left_out: dict[str, str] = {}
    for name, peer in PEERS.items():
        if options.peers is not None and name not in options.peers:
            left_out[name] = "not asked for"
            continue
        found = existing(peer) if options.quick else make(peer)
        if found is None:
            left_out[name] = "not installed: the quick run installs nothing"
        elif found.problem:
            left_out[name] = f"not installed: {found.problem}"
        else:
            ready[name] = found
    return ready, left_out


def finish(bench: Bench, options: argparse.Namespace) -> int:
    judged = verdicts(bench.rows, options.only)
    command = " ".join(["python -m bench", *shown_arguments(sys.argv[1:])])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "RESULTS.md").write_text(report.as_markdown(bench, judged, command))
    (options.out / "results.svg").write_text(chart.chart(bench.rows))
    if options.json:
        print(json.dumps(report.as_json(bench, judged)))
    else:
        for verdict in judged:
            value = "" if verdict.value is None else f"{verdict.value:.3g}"
            print(f"{verdict.word:12} {value:>8}  {verdict.wanted:14} {verdict.name}")
    for name, why in bench.left_out.items():
        print(f"bench: {PEERS[name].title}: {why}", file=sys.stderr)
    return 0


def shown_arguments(words: Sequence[str]) -> Iterator[str]:
    """The arguments without the paths of this machine."""
    rest = iter(words)
    for word in rest:
        name, is_joined, _ = word.partition("=")
        if name in ("--data", "--out") and not is_joined:
            next(rest, None)
        if name != "--out":
            yield f"{name} DIR" if name == "--data" else word


if __name__ == "__main__":
    sys.exit(main())
