"""Layouts: how a source's objects become samples with labels."""

from typing import Final

from stager.layouts.folder import FolderLayout
from stager.model import Layout

LAYOUTS: Final[dict[str, Layout]] = {"folder": FolderLayout()}
