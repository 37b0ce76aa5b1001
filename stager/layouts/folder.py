"""ImageFolder's layout: the first folder is the class; train/, val/ and test/ above it are splits."""

from collections.abc import Iterable, Iterator
from typing import Final

from stager.model import Entry, ObjectInfo

IMAGES: Final = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
SPLITS: Final = frozenset({"train", "val", "valid", "validation", "test"})


class FolderLayout:
    """Class = first folder. Objects at the top, and those that are no images by name, are left out.

    Where every top folder is one of SPLITS and has folders in it, the top folder is the split and the
    second one the class.
    """

    def entries(self, objects: Iterable[ObjectInfo]) -> Iterator[Entry]:
        for info in objects:
            folders = info.key.split("/")[:-1]
            if folders and info.key.lower().endswith(IMAGES):
                yield Entry(info, tuple(folders[:2]))

    def label(self, paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, str]]:
        """Say (split, class) for each path; only all of them together tell whether there are splits."""
        known = set(paths)
        if known and all(path[0] in SPLITS and len(path) == 2 for path in known):
            return {path: (path[0], path[1]) for path in known}
        return {path: ("", path[0]) for path in known}
