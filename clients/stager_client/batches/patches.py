"""Patches of the volumes that a loader reads: which bricks there are, and what is known of them."""

from dataclasses import replace

from stager.errors import UsageError
from stager.reader.cuts.patches.patch import Patches
from stager.reader.cuts.patches.random_patch import RandomPatch
from stager_client.samples import StagedSamples


def patches_of(
    cut: Patches, samples: StagedSamples, length: int | None, has_more: bool
) -> tuple[Patches, StagedSamples]:
    """The patches of these volumes, so many an epoch; and all of their bricks. Raise UsageError."""
    if has_more:
        raise UsageError("patches go with no order, and with no augment", hint="leave both out")
    samples, lost = samples.with_failed()
    rules = list(samples.reader.records.rules(samples.numbers))
    fields = {field.name: field for field in samples.reader.record.fields}
    bound = (cut if length is None else replace(cut, length=length)).on(rules, fields, lost)
    if bound.bricks != len(samples):
        raise UsageError(
            f"patches lie anywhere in a volume, and these are not all bricks of {samples.name}",
            hint="open the whole data set: no fraction",
        )
    if isinstance(bound, RandomPatch) and bound.foreground:
        return _with_foreground(bound, bound.foreground, samples), samples
    return bound, samples


def _with_foreground(cut: RandomPatch, field: str, samples: StagedSamples) -> RandomPatch:
    counts = samples.foreground(field)
    if counts is None:
        raise UsageError(
            f"the foreground of {samples.name} was not counted in {field}",
            hint=f'write foreground = "{field}" in [datasets.{samples.name}], then:'
            f" stager prefetch {samples.name} --plan",
        )
    return cut.knowing(counts)
