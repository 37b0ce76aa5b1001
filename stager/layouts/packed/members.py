"""The members of a tar, from its headers alone."""

import re
import tarfile
from collections.abc import Iterator
from typing import Final, NamedTuple

from stager.errors import StagerError
from stager.layouts.packed.ranged import RangedFile

# WebDataset's: the name of a sample goes up to the first dot behind the last slash.
_NAME: Final = re.compile(r"((?:.*/)?[^./][^/.]*)\.([^/]+)", re.DOTALL)
_BLOCK: Final = 512


class Member(NamedTuple):
    """A file in a tar: its sample, its ending, and its bytes."""

    sample: str
    ending: str  # without the dot, in lower case: "jpg", "seg.png"
    start: int
    stop: int


class Strange(NamedTuple):
    """What is no sample's: a link, a device, a name that leads out, a file without an ending."""

    name: str
    reason: str  # as LeftOut has it


class Damage(Exception):
    """From where on a tar cannot be read, and why."""


def members_of(file: RangedFile, size_bytes: int) -> Iterator[Member | Strange]:
    """What a tar has, in its order. Raise Damage where it ends too early. Nothing is extracted."""
    opened: tarfile.TarFile | None = None
    at = -1
    try:
        opened = tarfile.TarFile(fileobj=file)
        while (found := opened.next()) is not None:
            vars(opened)["members"].clear()  # it would keep them all
            if found.offset <= at or found.size < 0:
                raise Damage(f"byte {found.offset}: its header makes no sense")
            at = found.offset
            if member := _member(found):
                yield member
            if found.offset_data + found.size > size_bytes:
                raise Damage(f"byte {size_bytes}: it ends within {found.name}")
    except (Damage, StagerError):
        raise
    except Exception as error:  # whatever tarfile makes of damaged headers
        told = f"byte {opened.offset if opened else 0}: {error or type(error).__name__}"
        raise Damage(told) from None
    file.seek(opened.offset)
    if file.read(_BLOCK).strip(b"\0"):
        raise Damage(f"byte {opened.offset}: there is no header")


def _member(found: tarfile.TarInfo) -> Member | Strange | None:
    name = found.name.removeprefix("./")
    base = name.rpartition("/")[2]
    if found.isdir() or (base.startswith(".") and base != ".."):
        return None
    if not found.isreg() or found.issparse() or name.startswith("/") or ".." in name.split("/"):
        return Strange(name, "member")
    split = _NAME.fullmatch(name)
    if split is None:
        return Strange(name, "no_ending")
    return Member(split[1], split[2].lower(), found.offset_data, found.offset_data + found.size)
