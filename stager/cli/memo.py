"""What the verbs say of kept results: stager ls memo, stager why memo NAME, stager evict memo NAME."""

import time
from collections.abc import Iterable
from typing import Any, Final

from stager.cache.budget import say_bytes
from stager.cli.app import print_json, print_table, say
from stager.cli.ask import AnyOwner, Seen
from stager.errors import UsageError
from stager.jobs.plan import say_seconds
from stager.owner.verbs import DATASETS, MEMO_WHY, MEMOS

MEMO: Final = "memo"


def is_memo(owner: AnyOwner | Seen, dataset: str | None) -> bool:
    """Whether results are meant, and not a data set that happens to be called so."""
    return dataset == MEMO and all(row["name"] != MEMO for row in owner.ask(DATASETS))


def list_memos(owner: AnyOwner | Seen, as_json: bool) -> None:
    rows = owner.ask(MEMOS)
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["memo", "results", "size", "last used"], [_row(row) for row in rows])
    else:
        say("no results are kept: docs/MEMO.md")


def say_memos(rows: Iterable[dict[str, Any]]) -> None:
    """One line, beside other things."""
    rows = list(rows)
    if rows:
        results, size = sum(row["results"] for row in rows), sum(row["bytes"] for row in rows)
        functions = f"{len(rows):,} function{'s' * (len(rows) != 1)}"
        say(f"memo: {_results(results)} of {functions}, {say_bytes(size)}: stager ls memo")


def why_memo(owner: AnyOwner, name: str, as_json: bool) -> None:
    value = owner.ask(MEMO_WHY, name)
    if as_json:
        print_json(value)
        return
    kept = sum(result["is_kept"] for result in value["results"])
    say(f"{value['name']}: {_results(kept)} kept")
    for result in value["results"]:
        took = f"computed in {say_seconds(result['took_s'])}, {say_bytes(result['bytes'])}"
        gone = "" if result["is_kept"] else f"; gone at {_clock(result['gone_at'])}, {result['gone_why']}"
        say(f"  {_clock(result['made_at'])}  {took}{gone}")
        for why in result["why"]:
            say(f"    {why}")


def evict_memo(owner: AnyOwner, name: str | None, as_json: bool) -> None:
    if name is None:
        names = ", ".join(row["name"] for row in owner.ask(MEMOS))
        hint = f"name one of {names}" if names else "none are kept"
        raise UsageError("which function's results?", hint)
    value = owner.evict_memo(name)
    told = f"evicted {_results(value['results'])}, {say_bytes(value['bytes'])}"
    print_json(value) if as_json else say(f"{value['name']}: {told}")


def _row(row: dict[str, Any]) -> list[str]:
    return [row["name"], f"{row['results']:,}", say_bytes(row["bytes"]), _clock(row["used_at"])]


def _results(count: int) -> str:
    return f"{count:,} result{'s' * (count != 1)}"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
