"""ImageFolder's layout: the first folder is the class; train/, val/ and test/ above it are splits."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Literal

from stager.interfaces import Entry, Folders, Kind, LeftOut, Listing
from stager.layouts.kind import Guess, LayoutKind
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
                yield Entry(info.key, (Part(info),), self._path(folders, 1))

    def again(self, folder: str, samples: int) -> Folders:
        return self._path(folder.split("/"), samples)

    def _path(self, folders: list[str], samples: int) -> Folders:
        """What labels so many samples in a folder."""
        path = tuple(folders[:2])
        if len(path) == 1:
            self._flat[path] += samples
        return path

    def label(self, paths: Iterable[Folders]) -> dict[Folders, tuple[str, str]]:
        """Say (split, class) for each path; only all of them together tell whether there are splits."""
        known = set(paths)
        splits = {path: SPLITS.get(path[0].lower(), "") for path in known}
        if not all(splits.values()) or all(len(path) == 1 for path in known):
            if remark := _doubt(known):
                self._left_out.remark(remark)
            return {path: ("", path[0]) for path in known}
        flat = sum(self._flat[path] for path in known if len(path) == 1)
        if flat:
            self._left_out.count("no_class", flat)
        return {path: (splits[path], path[1]) for path in known if len(path) == 2}


def _doubt(paths: set[Folders]) -> str:
    """What to tell of folders that are called as splits are, and are none here; nothing, if that is plain.

    A folder called `train` alone may have pictures of trains. Two such names are hardly classes.
    """
    above = {path[0].lower() for path in paths if len(path) == 2} & SPLITS.keys()
    below = {path[1].lower() for path in paths if len(path) == 2}
    if len(above) > 1:
        return f"{' and '.join(sorted(above))} are no splits here: other folders beside them have samples"
    if len(below) > 1 and below <= SPLITS.keys():
        return f"{' and '.join(sorted(below))} are no splits here: they are not at the top of the source"
    return ""


FOLDER: Final = LayoutKind(
    (),
    lambda options: {},
    lambda options, recipe, left_out: FolderLayout(recipe.takes, left_out),
    guesses=lambda objects, listing: [Guess({}, "", objects)],
)
