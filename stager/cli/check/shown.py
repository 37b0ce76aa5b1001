"""How a finding of `stager check` is shown."""

from pathlib import Path
from typing import Any

from stager.cache.budget import say_bytes
from stager.check.place import OBJECTS_MAX, Finding, problem_of
from stager.check.trial import ANYTHING, Trial, TriedSample
from stager.cli.app import print_table, say, warn


def tell(finding: Finding) -> None:
    """What a place has; and, if nothing fits, what each guess lacks."""
    counted = [f"{count:,} {ending or 'without an ending'}" for ending, count in finding.endings.items()]
    first = "" if finding.is_all else f" (the first {OBJECTS_MAX:,} of more)"
    size = say_bytes(finding.bytes)
    say(f"{finding.source.url}: {finding.objects:,} objects{first}, {size}: {', '.join(counted)}")
    if finding.fits is None:
        warn("nothing fits:" if finding.trials else "nothing is there that a layout knows")
        for trial in finding.trials:
            warn(f"  {_words(trial)}: {problem_of(trial)}")
        warn("  try: another folder of it; or a table (a CSV) that says which objects are samples")


def tell_fit(best: Trial, config: str, name: str, write: Path | None) -> None:
    """What fits, its samples, and the config to start from."""
    say(f"{_words(best)}: {best.good} of {len(best.samples)} samples are good")
    for line in best.about:
        say(f"  {line}")
    if best.kind == ANYTHING:
        warn("note: no recipe decodes these; bytes hands them out as they are")
    print_table(
        ["sample", "split", "label", "fields", "attributes"], [_row(sample) for sample in best.samples]
    )
    if best.left_out:
        warn(f"note: {best.left_out}")
    if write is not None:
        say(f"written to {write}; then: stager prefetch {name} --plan --config {write}")
        return
    for line in ("", f"for stager.toml (then: stager prefetch {name} --plan):", "", *config.splitlines()):
        say(line)


def _words(trial: Trial) -> str:
    options = "".join(f" {key} {_told(value)}" for key, value in trial.options.items())
    path = f" of {trial.recipe['path']}" if trial.recipe.get("path") else ""
    return f"layout {trial.layout}{options}, recipe {trial.kind or 'any'}{path}"


def _told(value: Any) -> str:
    """An option's value: of a table what it names."""
    tables = value if isinstance(value, list) else [value]
    if not tables or not all(isinstance(table, dict) for table in tables):
        return str(value)
    return ", ".join(" and ".join(map(str, table.values())) for table in tables)


def _row(sample: TriedSample) -> list[str]:
    fields = ", ".join(f"{name} {shape}" for name, shape in sample.fields.items())
    return [sample.key, sample.split, sample.label, sample.error or fields, _pairs(sample.attributes)]


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
