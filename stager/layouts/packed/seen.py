"""What layouts of packed objects share: which objects are theirs, were known before, or are damaged."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from stager.errors import UsageError
from stager.interfaces import Entry, LeftOut, Listing, Needs, Recalled, Recipe
from stager.layouts.packed.columns import values_of
from stager.reader.values import Attribute, ObjectInfo

DAMAGED_SHOWN: Final = 3
ANY: Final = "{file}"  # what a recipe asks for if it does not say what it takes
_MEANT_OTHERWISE: Final = ("file_name", "path")  # with these columns it would ask for one of them


def objects_of(listing: Listing, endings: tuple[str, ...], left_out: LeftOut) -> list[ObjectInfo]:
    """The objects that end so; the others are counted."""
    infos = []
    for info in listing.objects():
        if info.key.lower().endswith(endings):
            infos.append(info)
        else:
            left_out.count_file(info.key)
    return infos


def needs_of(recipe: Recipe, columns: Sequence[str], takes_default: bool, hint: str) -> Needs:
    """What a recipe takes. `takes_default`: it is clear what a field takes whose recipe does not say it."""
    needs = recipe.needs([*(name for name in columns if name not in _MEANT_OTHERWISE), ANY[1:-1]])
    if ANY in needs.paths and (len(needs.paths) > 1 or not takes_default):
        raise UsageError("a recipe does not say what it takes of a sample", hint=hint)
    return needs


def known_again(recalled: Recalled, attributes: Sequence[Attribute], split: str) -> Iterator[Entry]:
    """The entries of the last scan, as this one has them."""
    names = [attribute.name for attribute in recalled.attributes]
    for entry in recalled.entries:
        values = values_of(dict(zip(names, entry.values, strict=True)), attributes)
        yield entry._replace(path=(split, entry.path[1]), values=values)


def tell_damage(left_out: LeftOut, damage: Mapping[str, str]) -> None:
    """One line for what is wrong with objects, by their keys."""
    told = [f"{key}: {what}" for key, what in damage.items() if what]
    more = [f"{len(told) - DAMAGED_SHOWN} more like these"] if len(told) > DAMAGED_SHOWN else []
    if told:
        left_out.remark("; ".join([*told[:DAMAGED_SHOWN], *more]), has_damage=True)
