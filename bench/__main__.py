"""stager, its peers and the limits of the machine, in one run: make bench

    make bench                                       all of it; the peers are installed the first time
    make bench ARGS="--data DIR"                     with real JPEGs, copied as often as needed
    make bench ARGS="--only warm,cold --peers ffcv"  some of it
    make bench-quick                                 two minutes, with the peers that are installed already

It writes bench/RESULTS.md and bench/results.svg, says which targets of bench/targets.toml are missed, and
keeps environments and images in .bench/. Ctrl-C ends it and all it has started.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench import chart, report
from bench.command import find_peers, names, run_alone, shown_command, tell_verdicts
from bench.data import lay_out
from bench.environments import BENCH, PEERS, ROOT
from bench.harness import FULL, QUICK, Bench
from bench.rounds import fresh_work
from bench.scenarios import SCENARIOS, WEIGHTS
from bench.targets import verdicts


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
    peers, left_out = find_peers(PEERS, options.peers, options.quick)
    began = time.monotonic()
    fresh_work()
    most = max(scale.warm_samples, scale.cold_samples, scale.augment_samples, scale.budget_samples)
    bench = Bench(
        rounds=scale.rounds, is_quick=options.quick, environments=peers, left_out=left_out, began=began,
        data=lay_out(BENCH / "data", options.data, most), scale=scale,
    )  # fmt: skip
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


def finish(bench: Bench, options: argparse.Namespace) -> int:
    judged = verdicts(bench.rows, options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    data = f"{len(bench.data):,} JPEGs, {bench.data.mean_bytes / 1e3:.0f} KB on average"
    page = report.as_markdown(
        bench, data, report.SCENARIOS, judged, shown_command("bench"), "bench/targets.toml",
        "![samples/s of stager and the peers](results.svg)",
    )  # fmt: skip
    (options.out / "RESULTS.md").write_text(page)
    (options.out / "results.svg").write_text(chart.chart(bench.rows))
    tell_verdicts(bench, judged, report.as_json(bench, data, judged) if options.json else None)
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(lambda: run(parse())))
