"""The layouts of packed objects, as a config names them. What reads Parquet is loaded by who needs it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from stager.errors import UsageError
from stager.interfaces import Layout, LeftOut, Listing, Opener, Recipe
from stager.layouts.kind import Guess, LayoutKind, Options
from stager.layouts.packed.tar import ENDING, LABEL, TarLayout, look
from stager.reader.values import ObjectInfo

OPTIONS: Final = {"label": ""}
LOOK_INTO: Final = 3  # objects of a place that is checked


def check_packed(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options, checked."""
    for name, value in options.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"{name} must be a text, not {value!r}", hint="put it in quotes")
    return {**OPTIONS, **options}


def _open_parquet(options: Options, recipe: Recipe, left_out: LeftOut) -> Layout:
    from stager.layouts.packed.parquet import ParquetLayout

    return ParquetLayout(options["label"], recipe, left_out)


def _row_groups(options: Options) -> Opener:
    from stager.layouts.packed.row_groups import RowGroups

    return RowGroups()


def _open_tar(options: Options, recipe: Recipe, left_out: LeftOut) -> Layout:
    return TarLayout(options["label"], recipe, left_out)


def _guess_tar(objects: Sequence[ObjectInfo], listing: Listing) -> Iterator[Guess]:
    """The endings of members, the commonest first."""
    few = [info for info in objects if info.key.lower().endswith(ENDING)][:LOOK_INTO]
    tars = list(listing.side_by_side(few, partial(look, listing)))
    counts = Counter(ending for tar in tars for sample in tar.samples for ending in sample.members)
    return (Guess({}, ending, few) for ending, _ in counts.most_common() if ending != LABEL)


def _guess_parquet(objects: Sequence[ObjectInfo], listing: Listing) -> Iterator[Guess]:
    """Columns of bytes, then those of texts."""
    from stager.layouts.packed import parquet

    few = [info for info in objects if info.key.lower().endswith(parquet.ENDINGS)][:LOOK_INTO]
    files = list(listing.side_by_side(few, partial(parquet.look, listing)))
    columns = dict.fromkeys(name for file in files for name in file.with_bytes())
    texts = dict.fromkeys(name for file in files for name in file.with_texts() if name != parquet.LABEL)
    return (Guess({}, name, few) for name in {**columns, **texts})


TAR: Final = LayoutKind(tuple(OPTIONS), check_packed, _open_tar, guesses=_guess_tar)
PARQUET: Final = LayoutKind(tuple(OPTIONS), check_packed, _open_parquet, _row_groups, guesses=_guess_parquet)
