"""Workloads of people who came with a slow training: make bench-workloads

    make bench-workloads                            all of them; peers are installed the first time
    make bench-workloads ARGS="--data ../shared/data"   on real files, where a workload has some
    make bench-workloads ARGS="--only audio --quick"    one of them, shortly, and no peer is installed

Each runs the user's own way and stager, cold and warm, in turn. It writes bench/WORKLOADS.md, and says which
targets of bench/workloads/targets.toml are missed.
"""

import argparse
import sys
from pathlib import Path

from bench import report
from bench.command import find_peers, names, run_alone, shown_command, tell_verdicts
from bench.environments import ROOT
from bench.rounds import fresh_work, tell
from bench.targets import verdicts
from bench.workloads.known import WORKLOADS
from bench.workloads.workload import Place

TARGETS = Path(__file__).with_name("targets.toml")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "bench.workloads", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=names(WORKLOADS), default=list(WORKLOADS), help=",".join(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="one short round, and no peer is installed")
    parser.add_argument("--rounds", type=int, help="how often all run in turn")
    parser.add_argument("--data", type=Path, help="a folder of real data; without it, files are made")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--out", type=Path, default=ROOT / "bench", help="where WORKLOADS.md goes")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    chosen = [WORKLOADS[name] for name in options.only]
    known = {peer.name: peer for workload in chosen for peer in workload.peers}
    peers, left_out = find_peers(known, None, options.quick)
    fresh_work()
    place = Place(
        rounds=options.rounds or (1 if options.quick else 3), is_quick=options.quick, environments=peers,
        left_out=left_out, data=options.data and options.data.resolve(), peers_until=float("inf"),
    )  # fmt: skip
    for workload in chosen:
        place.note_load()
        try:
            workload.measure(place)
        except (OSError, RuntimeError) as error:
            place.notes.append(f"{workload.section.name} was broken off: {type(error).__name__}: {error}")
            tell(place.notes[-1])
    judged = verdicts(place.rows, options.only, TARGETS)
    data = "real data where a workload has some" if options.data else "data that are made"
    sections = [workload.section for workload in chosen]
    page = report.as_markdown(
        place, data, sections, judged, shown_command("bench.workloads"), "bench/workloads/targets.toml"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "WORKLOADS.md").write_text(page)
    tell_verdicts(place, judged, report.as_json(place, data, judged) if options.json else None)
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(lambda: run(parse())))
