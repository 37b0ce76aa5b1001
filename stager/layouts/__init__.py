"""Layouts: how a source's objects become samples with labels."""

from typing import Final

from stager.interfaces import Layout, LeftOut
from stager.layouts.folder import FolderLayout

_KINDS: Final = {"folder": FolderLayout}
LAYOUTS: Final[dict[str, Layout]] = {name: kind() for name, kind in _KINDS.items()}


def open_layout(name: str, left_out: LeftOut) -> Layout:
    """A layout for one scan, which counts what it leaves out."""
    return _KINDS[name](left_out)
