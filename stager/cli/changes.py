"""How the difference of two versions is shown."""

from typing import Any, Final

from stager.cache.budget import say_bytes
from stager.cli.app import print_json, say
from stager.reader.samples.changes import KINDS, say_counts

SIGNS: Final = {"added": "+", "changed": "~", "removed": "-", "moved": ">"}
KEYS_SHOWN: Final = 20  # of each kind; --json has more


def tell_changes(name: str, diff: dict[str, Any], as_json: bool) -> None:
    """What came, changed, went and moved: the keys, then the counts."""
    if as_json:
        print_json({"dataset": name, **diff})
        return
    for kind in KINDS:
        keys = diff["keys"].get(kind, [])[:KEYS_SHOWN]
        for key in keys:
            say(f"{SIGNS[kind]} {key}")
        if keys and len(keys) < diff[kind]:
            say(f"{SIGNS[kind]} and {diff[kind] - len(keys):,} more")
    say(f"{name}: {say_counts(diff)}")


def tell_refreshed(job: dict[str, Any], as_json: bool) -> None:
    """A refresh that has ended: what it found, and what it did."""
    if job["refresh"] == "look":
        tell_changes(job["dataset"], job["diff"], as_json)
    elif as_json:
        names = ("dataset", "diff", "staged", "failed", "bytes", "seconds")
        print_json({name: job[name] for name in names})
    else:
        say(f"{job['dataset']}: {say_counts(job['diff'])}")
        if job["wanted"]:
            say(f"  {job['staged']:,} staged anew, {job['failed']:,} failed, {say_bytes(job['bytes'])}")
