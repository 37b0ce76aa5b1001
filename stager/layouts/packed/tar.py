"""WebDataset's tars: members of one name are a sample, and what is behind its first dot says which field."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from stager.errors import SampleError, UsageError, nearest
from stager.interfaces import Entry, Folders, LeftOut, Listing, Needs, Recalled, Recipe
from stager.layouts.packed.columns import (
    SeenAttributes,
    as_class,
    labels_in_order,
    plain_values,
    splits_of,
    values_of,
)
from stager.layouts.packed.members import Damage, Member, Strange, members_of
from stager.layouts.packed.ranged import RangedFile
from stager.layouts.packed.seen import ANY, known_again, needs_of, objects_of, tell_damage
from stager.reader.values import Attribute, ObjectInfo, Part

ENDING: Final = ".tar"
LABEL, TABLE = "cls", "json"  # members that say something of their sample
TOLD_BYTES_MAX: Final = 64 << 10  # of such a member
HINT: Final = 'add the ending that it has in the tars, as path = "jpg", to each recipe'


@dataclass(slots=True)
class TarSample:
    """A sample of a tar: where its members are, and what is said of it."""

    name: str
    members: dict[str, tuple[int, int]] = field(default_factory=dict)  # ending -> first byte, last byte + 1
    values: dict[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(slots=True)
class Tar:
    """What a tar has: as its headers say, or as the last scan found."""

    info: ObjectInfo
    samples: list[TarSample] = field(default_factory=list)
    recalled: Recalled | None = None
    left_out: LeftOut = field(default_factory=LeftOut)
    damage: str = ""


class TarLayout:
    """A sample's key is its tar's, a slash, and its name. Headers of a version of a tar are read once.

    `label` names a value of the json members. Without it, the label is the cls member's, or the folder in the
    tar. Plain values of json members are attributes.
    """

    is_computed: Literal[False] = False
    is_plain = False

    def __init__(self, label: str, recipe: Recipe, left_out: LeftOut) -> None:
        self._label, self._recipe, self._left_out = label, recipe, left_out
        self.attributes: tuple[Attribute, ...] = ()

    def entries(self, listing: Listing) -> Iterator[Entry]:
        infos = objects_of(listing, (ENDING,), self._left_out)
        tars = list(listing.side_by_side(infos, partial(look, listing)))
        for tar in tars:
            self._left_out.add(tar.left_out)
        tell_damage(self._left_out, {tar.info.key: tar.damage for tar in tars})
        columns = SeenAttributes()
        for tar in tars:
            for sample in tar.samples:
                columns.add(sample.values)
            for attribute in tar.recalled.attributes if tar.recalled else ():
                columns.add_type(*attribute)
        self.attributes = columns.attributes(self._left_out)
        if self._label and self._label not in columns.names and not any(tar.recalled for tar in tars):
            raise UsageError(
                f"no json member has {self._label!r} (label)", hint=nearest(self._label, columns.names)
            )
        split_of = splits_of([info.key for info in infos])
        for tar in tars:
            split = split_of[tar.info.key]
            if tar.recalled:
                yield from known_again(tar.recalled, self.attributes, split)
            else:
                takes_default = bool(self._recipe.takes.endings)
                needs = needs_of(self._recipe, columns.names, takes_default, HINT)
                yield from self._found(tar, needs, split)

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        return labels_in_order(paths)

    def _found(self, tar: Tar, needs: Needs, split: str) -> Iterator[Entry]:
        for sample in tar.samples:
            places = [self._place(sample, path) for path in needs.paths]
            if None in places:
                self._left_out.count("no_member")
                continue
            label = as_class(sample.values.get(self._label)) if self._label else sample.label
            yield Entry(
                f"{tar.info.key}/{sample.name}",
                tuple(Part(tar.info, *place) for place in places if place),
                (split, label),
                values_of(sample.values, self.attributes),
                None,
                tuple(given.of(sample.values.get(given.column)) for given in needs.inputs),
            )

    def _place(self, sample: TarSample, path: str) -> tuple[int, int] | None:
        """Where the member is that a path names; of an image, say, any that ends as images do."""
        if path != ANY:
            return sample.members.get(path.lower().removeprefix("."))
        endings = self._recipe.takes.endings
        return next(
            (place for ending, place in sample.members.items() if f".{ending}".endswith(endings)), None
        )


def look(listing: Listing, info: ObjectInfo) -> Tar:
    """Read a tar's headers, and the small members that say something of a sample, unless they are known."""
    tar = Tar(info, recalled=listing.known(info))
    if tar.recalled is not None:
        return tar
    samples: dict[str, TarSample] = {}
    file = RangedFile(info, listing.read)
    try:
        for found in members_of(file, info.size):
            if isinstance(found, Strange):
                tar.left_out.count(found.reason)
                continue
            sample = samples.setdefault(found.sample, TarSample(found.sample, label=_folder(found.sample)))
            if found.ending in sample.members:
                tar.left_out.count("twice")
                continue
            sample.members[found.ending] = found.start, found.stop
            if found.ending in (LABEL, TABLE) and found.stop - found.start <= TOLD_BYTES_MAX:
                _take_told(sample, found, file, tar.left_out)
    except Damage as error:
        tar.damage = str(error)
    except SampleError as error:
        tar.damage = error.message
    tar.samples = list(samples.values())
    return tar


def _take_told(sample: TarSample, member: Member, file: RangedFile, left_out: LeftOut) -> None:
    """What a small member says of its sample."""
    file.seek(member.start)
    data = file.read(member.stop - member.start)
    try:
        text = data.decode("utf-8-sig")
        if member.ending == TABLE:
            told = json.loads(text)
            sample.values |= plain_values(told) if isinstance(told, dict) else {}
            return
        sample.label = text.strip()
        with suppress(ValueError):
            sample.values |= plain_values({LABEL: int(sample.label)})
    except (ValueError, RecursionError):
        left_out.count("no_text")


def _folder(name: str) -> str:
    """The folder right above a sample; nothing, if there is none."""
    return name.rpartition("/")[0].rpartition("/")[2]
