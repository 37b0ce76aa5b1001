"""ImageFolder's layout: the first folder is the class; train/, val/ and test/ above it are splits."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from stager.interfaces import Entry, Folders, Kind, LeftOut, Listing
from stager.layouts.kind import LayoutKind
from stager.reader.values import Attribute, Part

# How people call the folders of splits, in any case, and what the split is called then.
SPLITS: Final = {name: name for name in ("train", "val", "valid", "validation", "dev", "test")} | {
    "training": "train",
    "testing": "test",
}


class FolderLayout:
    """Class = first folder. Objects at the top, and those that the recipe does not take, are left out.

    Where every top folder is called as one of SPLITS, and at least one has folders in it, the top folder is
    the split and the second one the class. Samples right in a split have no class then, and are left out.
    """

    is_computed: Literal[False] = False
    is_plain = True
    attributes: tuple[Attribute, ...] = ()

    def __init__(self, takes: Kind, left_out: LeftOut) -> None:
        self._takes, self._left_out = takes, left_out
        self._flat: Counter[Folders] = Counter()  # samples right in what may be a split

    def entries(self, listing: Listing) -> Iterator[Entry]:
        endings = self._takes.endings
        for info in listing.objects():
            folders = info.key.split("/")[:-1]
            if endings and not info.key.lower().endswith(endings):
                self._left_out.count_file(info.key)
            elif not folders:
                self._left_out.count("no_folder")
            else:
                path = tuple(folders[:2])
                if len(path) == 1:
                    self._flat[path] += 1
                yield Entry(info.key, (Part(info),), path)

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        """Say (split, class) for each path; only all of them together tell whether there are splits."""
        known = set(paths)
        splits = {path: SPLITS.get(path[0].lower(), "") for path in known}
        if not all(splits.values()) or all(len(path) == 1 for path in known):
            return {path: ("", path[0]) for path in known}
        flat = sum(self._flat[path] for path in known if len(path) == 1)
        if flat:
            self._left_out.count("no_class", flat)
        return {path: (splits[path], path[1]) for path in known if len(path) == 2}


FOLDER: Final = LayoutKind(
    (), lambda options: {}, lambda options, recipe, left_out: FolderLayout(recipe.takes, left_out)
)
