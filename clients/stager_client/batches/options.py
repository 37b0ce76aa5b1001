"""What StagedLoader, StagedArrays and staged_dataset take, and hand on to the BatchLoader."""

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypedDict

from stager.errors import nearest
from stager.reader.cuts.cut import Cut
from stager.reader.values import Numbers
from stager_client.augment.transforms import Augment

Order = Callable[[int], Numbers | Sequence[int]]  # the positions that an epoch reads, one by one
VERSIONS: Final = ("opened", "latest")  # which version an epoch reads: the one that was opened, or the newest


class LoaderOptions(TypedDict, total=False):
    """What StagedLoader and StagedArrays hand on to the BatchLoader."""

    shuffle: bool
    seed: int
    drop_last: bool
    prefetch: int
    threads: int
    augment: Augment | Sequence[Augment]
    augment_fields: Sequence[str] | None
    order: Order | None
    columns: Sequence[str] | None
    cut: Cut | None
    length: int | None
    versions: str


def check_options(caller: str, options: Collection[str], more: Collection[str] = ()) -> None:
    """Refuse options that there are not, in the name of what the user called. `more`: the caller's own."""
    known = {*LoaderOptions.__annotations__, *more}
    for option in options:
        if option not in known:
            error = TypeError(f"{caller}() got an unexpected keyword argument {option!r}")
            error.add_note(f"hint: {nearest(option, known)}")
            raise error
