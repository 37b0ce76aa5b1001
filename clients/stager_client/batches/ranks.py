"""How the ranks of a training agree on one version of a data set."""

from collections.abc import Callable
from typing import Final, Protocol

from stager.errors import StagerError, UsageError
from stager.reader.record import SHOWN_DIGITS
from stager_client.samples import StagedSamples

SHOWN: Final = 5  # classes
ONE_VERSION: Final = 'name one for all: refresh(version="..."), as stager ls --versions has it'


class Talk(Protocol):
    """What ranks can say to one another. All of them must say it."""

    def first(self, told: str) -> str:
        """What rank 0 has told."""

    def problem(self, ours: str) -> str:
        """The problem of any rank, once all have told theirs; nothing: none has one."""


Talks = Callable[[str], Talk | None]  # about a data set; None: they cannot


def agreed(samples: StagedSamples, version: str | None, rank: int, talk: Talk | None) -> StagedSamples:
    """These samples of the version that rank 0 takes: the newest that it knows, or the one that is named."""
    if talk is None:
        return samples.at(version)
    found, problem = samples, ""
    try:
        found = samples.at(version) if rank == 0 else samples
    except StagerError as error:
        problem = error.message
    digest = talk.first(found.manifest_digest)
    try:
        found = samples.at(digest) if rank and digest != samples.manifest_digest else found
    except StagerError as error:
        problem = f"rank {rank}: {error.message}"
    if problem := talk.problem(problem):
        raise UsageError(problem, hint="let each machine take it first: stager refresh " + samples.name)
    return found


def check_same(samples: StagedSamples, rank: int, talk: Talk) -> None:
    """Raise UsageError if rank 0 reads another version than we do, or other samples of it."""
    ours = f"{samples.manifest_digest} {samples.digest}"
    theirs = talk.first(ours)
    if theirs != ours:
        (digest, _), name = theirs.split(), samples.name
        what = "other samples" if digest == samples.manifest_digest else f"version {digest[:SHOWN_DIGITS]}"
        raise UsageError(
            f"rank 0 reads {what} of {name},"
            f" rank {rank} reads version {samples.manifest_digest[:SHOWN_DIGITS]}",
            hint="loader.refresh() before the first epoch takes rank 0's version on all",
        )


def labels_differ(before: StagedSamples, after: StagedSamples) -> str:
    """Why labels would mean something else from one version to another; nothing, if they do not."""
    if before.classes == after.classes:
        return ""
    came, went = ({*after.classes} - {*before.classes}), ({*before.classes} - {*after.classes})
    told = [
        f"{what} {', '.join(sorted(names)[:SHOWN])}"
        for what, names in (("new:", came), ("gone:", went))
        if names
    ]
    version = after.manifest_digest[:SHOWN_DIGITS]
    return f"version {version} of {after.name} has other classes ({'; '.join(told)}): labels would change"


def silent_ranks(name: str, world_size: int) -> UsageError:
    """Ranks that were told by number only might take different versions: nobody may begin that."""
    return UsageError(
        f"{world_size} ranks that do not know one another cannot agree on a version of {name}",
        hint=ONE_VERSION + "; ranks of torch.distributed agree by themselves",
    )
