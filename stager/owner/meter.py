"""Hits, misses, waits and reasons: how reports of readers become counts by data set, session and epoch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from stager.catalog.catalog import Catalog
from stager.catalog.counts import FOLDED

# Why a reader had to wait. A closed list: every miss has one of these.
MISS_REASONS: Final = (
    "not_planned",
    "late",
    "over_budget",
    "evicted",
    "source_changed",
    "recipe_changed",
    "corrupt",
    "service_down",
)
EPOCHS_A_REPORT_MAX: Final = 8  # what one report says of more epochs counts for the last of these


@dataclass(slots=True)
class Totals:
    """What one process has read so far in one session. Totals only grow, so a report can be sent twice."""

    requests: int = 0
    hits: int = 0
    misses: int = 0
    wait_s: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    computed_s: float = 0.0

    def since(self, before: "Totals") -> "Totals":
        """What came after an earlier look."""
        reasons = Counter(self.reasons)
        reasons.subtract(before.reasons)
        return Totals(
            self.requests - before.requests,
            self.hits - before.hits,
            self.misses - before.misses,
            self.wait_s - before.wait_s,
            {name: count for name, count in reasons.items() if count},
            self.computed_s - before.computed_s,
        )

    def add(self, more: "Totals") -> None:
        self.requests += more.requests
        self.hits += more.hits
        self.misses += more.misses
        self.wait_s += more.wait_s
        self.computed_s += more.computed_s
        for name, count in more.reasons.items():
            self.reasons[name] = self.reasons.get(name, 0) + count

    def plus(self, more: "Totals") -> "Totals":
        """Both together; neither changes."""
        both = replace(self, reasons=dict(self.reasons))
        both.add(more)
        return both


_TOTALS: Final = tuple(field.name for field in fields(Totals))


@dataclass(frozen=True, slots=True)
class Report:
    """The totals of one process of a session. `epoch`: as the reader says; None: counted from `length`."""

    dataset: str
    session: str
    process: str
    length: int
    epoch: int | None
    totals: Totals


def absorb(catalog: Catalog, report: Report, at: float) -> None:
    """Add what is new in a report to the counts."""
    counts = catalog.counts
    known = counts.reader_totals(report.session, report.process)
    fresh = report.totals.since(Totals(**known) if known else Totals())
    if fresh.requests <= 0:
        return
    if report.epoch is not None:
        parts = [(report.epoch, fresh)]
    else:
        last = counts.last_of(report.dataset, report.session)
        before = last["epoch"] * report.length + last["requests"] if last else 0
        parts = split_by_epoch(before, report.length, fresh)
    with catalog.transaction():
        for epoch, part in parts:
            row = counts.of(report.dataset, report.session, epoch)
            now = Totals(**{name: row[name] for name in _TOTALS} if row else {}).plus(part)
            named = {"dataset": report.dataset, "session": report.session, "epoch": epoch, "at": at}
            counts.put({**named, **asdict(now)})
        counts.put_reader_totals(report.session, report.process, asdict(report.totals))


def split_by_epoch(before: int, length: int, fresh: Totals) -> list[tuple[int, Totals]]:
    """Lay fresh counts over epochs of `length` requests, `before` of which are over. Misses come first."""
    parts: list[tuple[int, Totals]] = []
    length = max(length, 1)
    while fresh.requests > 0:
        epoch, at = divmod(before, length)
        requests = min(fresh.requests, length - at)
        if len(parts) == EPOCHS_A_REPORT_MAX - 1:
            requests = fresh.requests
        if requests == fresh.requests:
            part = fresh
        else:
            misses = min(requests, fresh.misses)
            reasons = _first(fresh.reasons, misses)
            part = Totals(requests, requests - misses, misses, fresh.wait_s, reasons, fresh.computed_s)
        parts.append((epoch, part))
        fresh = fresh.since(part)
        before += requests
    return parts


def stats(catalog: Catalog) -> dict[str, Any]:
    """The counts as `stager stats --json` tells them."""
    datasets: dict[str, Any] = {}
    for dataset in catalog.datasets():
        row = datasets.setdefault(dataset.name, {**_told(Totals()), "origin_reads": 0, "origin_bytes": 0})
        row["origin_reads"] += dataset.origin_reads
        row["origin_bytes"] += dataset.origin_bytes
    sessions: dict[tuple[str, str], dict[str, Any]] = {}
    totals: dict[str, Totals] = {}
    for count in catalog.counts.all():
        part = Totals(*(count[name] for name in _TOTALS))
        name = count["dataset"]
        totals.setdefault(name, Totals()).add(part)
        if count["session"] == FOLDED:
            continue
        session = sessions.setdefault(
            (name, count["session"]), {"dataset": name, "session": count["session"], "at": 0.0, "epochs": []}
        )
        session["at"] = max(session["at"], count["at"])
        session["epochs"].append({"epoch": count["epoch"], **_told(part)})
    for name, total in totals.items():
        datasets.setdefault(name, {"origin_reads": 0, "origin_bytes": 0}).update(_told(total))
    return {"datasets": datasets, "sessions": sorted(sessions.values(), key=lambda session: session["at"])}


def reader_rate(catalog: Catalog, dataset: str) -> float | None:
    """Samples/s of the last reader of a data set while it did not wait; None: there was none that told."""
    return catalog.counts.reader_rate(dataset)


def _told(totals: Totals) -> dict[str, Any]:
    rate = totals.hits / totals.requests if totals.requests else 0.0
    return {
        "requests": totals.requests,
        "hits": totals.hits,
        "misses": totals.misses,
        "hit_rate": round(rate, 6),
        "wait_s": round(totals.wait_s, 3),
        "computed_s": round(totals.computed_s, 3),
        "reasons": totals.reasons,
    }


def _first(reasons: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` of these reasons."""
    taken: dict[str, int] = {}
    for name, many in reasons.items():
        take = min(many, count - sum(taken.values()))
        if take > 0:
            taken[name] = take
    return taken
