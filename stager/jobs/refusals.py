"""Why a job is not done, said to a person, with a way out."""

from stager.errors import StagerError, UsageError
from stager.reader.record import DatasetSpec
from stager.reader.samples.changes import Changes
from stager.recipes import kind_for, open_recipe
from stager.worker.messages import Scanned


def deadly(job_id: int, ends: int) -> StagerError:
    """A job that took the service down each time it was resumed."""
    return StagerError(
        f"job {job_id} crashed the service {ends} times, and is not resumed",
        hint="ask for less, or run it again; and report it, with the service's log",
    )


def nothing_there(spec: DatasetSpec, told: Scanned) -> UsageError:
    """What to say of a source that has nothing for the recipe: what lies there, and who would take it."""
    takes = open_recipe(spec.recipe).takes
    if spec.layout == "folder" and not told.left_out:
        hint = "check the path: it has no files that count; if it is a mount, is it mounted?"
        return UsageError(f"{spec.source.url}: nothing is there", hint=hint)
    found = f" ({told.left_out})" if told.left_out else ""
    if kind := kind_for(told.ending):
        hint = (
            f'for {told.ending} write kind = "{kind}" in [datasets.{spec.name}.recipe];'
            f" stager check {spec.source.url} shows the whole config"
        )
    elif spec.layout == "folder":
        ending = (*takes.endings, "")[0]
        hint = f'the folder layout wants CLASS/NAME{ending} below the source, layout = "table" a CSV'
    else:
        hint = f"the layout {spec.layout} found none"
    return UsageError(f"{spec.source.url}: no {takes.many} there{found}", hint=hint)


def too_much_gone(name: str, diff: Changes) -> UsageError:
    """A source that lacks so much may be a mount that is half there."""
    part = 100 * diff.removed / diff.before
    return UsageError(
        f"{name}: {diff.removed:,} of {diff.before:,} samples are gone from the source ({part:.0f} %):"
        " nothing was changed here",
        hint="look whether the source is whole; if they are meant to be gone:"
        f" stager refresh {name} --accept-removals",
    )
