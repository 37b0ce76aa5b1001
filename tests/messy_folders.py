"""Folders and tables as people have them: what lies there, and what a scan makes of it."""

import unicodedata
from typing import Final, NamedTuple

from messy import GOOD, Files, Link

JPEG: Final = GOOD["jpeg"]

# What a scan finds, in its order: (split, class, key).
Found = list[tuple[str, str, str]]


class Folder(NamedTuple):
    files: Files
    found: Found
    line: str = ""


def of(*keys: str) -> dict[str, bytes]:
    return dict.fromkeys(keys, JPEG)


def found(*samples: str) -> Found:
    """`CLASS KEY` each; a split before them, if there are any."""
    parts = [sample.rsplit(" ", 2) for sample in samples]
    return [(split[0] if split else "", name, key) for *split, name, key in parts]


ONE: Final = of("a/1.jpg")
ONE_FOUND: Final = found("a a/1.jpg")
NO_SPLITS: Final = "train and val are no splits here: "

FOLDERS: Final = {
    # What is no sample
    "hidden-file": Folder(ONE | of("a/.hidden.jpg"), ONE_FOUND),
    "apple-double": Folder(ONE | of("a/._1.jpg", "__MACOSX/a/._1.jpg") | {".DS_Store": b""}, ONE_FOUND),
    "hidden-class": Folder(ONE | of(".thumbs/1.jpg"), ONE_FOUND),
    "checkpoints": Folder(ONE | of("a/.ipynb_checkpoints/1-checkpoint.jpg"), ONE_FOUND),
    "thumbs-db": Folder(ONE | {"a/Thumbs.db": b""}, ONE_FOUND, "left out: 1 file that is no image: 1 .db"),
    "at-the-top": Folder(ONE | of("logo.png"), ONE_FOUND, "left out: 1 image in no folder"),
    "empty-class": Folder({**ONE, "b/": b""}, ONE_FOUND),
    "class-of-texts": Folder(
        {**ONE, "b/readme.txt": b""}, ONE_FOUND, "left out: 1 file that is no image: 1 .txt"
    ),
    "heic": Folder(
        {**ONE, "a/2.HEIC": b"", "a/3.heic": b""},
        ONE_FOUND,
        "left out: 2 files that are no images: 2 .heic",
    ),
    "rare-endings": Folder(
        ONE | of("a/2.jfif", "a/3.avif", "a/4.jp2"),
        ONE_FOUND,
        "left out: 3 files that are no images: 1 .avif, 1 .jfif, 1 .jp2",
    ),
    "no-ending": Folder(ONE | of("a/2"), ONE_FOUND, "left out: 1 file that is no image: 1 other"),
    "downloads": Folder(
        ONE | of("a/2.jpg.crdownload", "a/3.jpg~"),
        ONE_FOUND,
        "left out: 2 files that are no images: 1 .crdownload, 1 other",
    ),
    "pipe": Folder({**ONE, "a/2.jpg": None}, ONE_FOUND),
    # Links
    "link-to-file": Folder({**ONE, "a/2.jpg": Link("1.jpg")}, found("a a/1.jpg", "a a/2.jpg")),
    "link-to-class": Folder({**ONE, "b": Link("a")}, found("a a/1.jpg", "b b/1.jpg")),
    "link-out": Folder({**ONE, "b": Link("../outside")}, ONE_FOUND, "left out: 1 link that leads out"),
    "link-nowhere": Folder(
        {**ONE, "a/2.jpg": Link("gone.jpg")}, ONE_FOUND, "left out: 1 link that leads nowhere"
    ),
    "link-in-circle": Folder({**ONE, "a/up": Link("..")}, ONE_FOUND, "left out: 1 link in a circle"),
    # Names and order
    "numbers-as-names": Folder(
        of("1/1.jpg", "2/1.jpg", "10/1.jpg"), found("1 1/1.jpg", "10 10/1.jpg", "2 2/1.jpg")
    ),
    "case-of-classes": Folder(of("cat/1.jpg", "Cat/1.jpg"), found("Cat Cat/1.jpg", "cat cat/1.jpg")),
    "two-spellings": Folder(
        of(*(f"{unicodedata.normalize(form, 'é')}/1.jpg" for form in ("NFC", "NFD"))),
        found(*(f"{name} {name}/1.jpg" for name in ("e\u0301", "\u00e9"))),
    ),
    "order": Folder(
        of("a/z.jpg", "a/b/1.jpg", "a/9.jpg", "a/10.jpg"),
        found("a a/10.jpg", "a a/9.jpg", "a a/b/1.jpg", "a a/z.jpg"),
    ),
    "gif-beside": Folder(ONE | of("a/2.gif"), found("a a/1.jpg", "a a/2.gif")),
    # Splits
    "train-val-test": Folder(
        of("train/a/1.jpg", "val/a/1.jpg", "test/a/1.jpg"),
        found("test a test/a/1.jpg", "train a train/a/1.jpg", "val a val/a/1.jpg"),
    ),
    "Train-Val": Folder(
        of("Train/a/1.jpg", "Val/a/1.jpg"), found("train a Train/a/1.jpg", "val a Val/a/1.jpg")
    ),
    "training-validation": Folder(
        of("training/a/1.jpg", "validation/a/1.jpg", "TESTING/a/1.jpg"),
        found("test a TESTING/a/1.jpg", "train a training/a/1.jpg", "validation a validation/a/1.jpg"),
    ),
    "valid-dev": Folder(
        of("train/a/1.jpg", "valid/a/1.jpg", "dev/a/1.jpg"),
        found("dev a dev/a/1.jpg", "train a train/a/1.jpg", "valid a valid/a/1.jpg"),
    ),
    "two-trains": Folder(
        of("Train/a/1.jpg", "train/a/2.jpg"), found("train a Train/a/1.jpg", "train a train/a/2.jpg")
    ),
    "only-train": Folder(
        of("train/a/1.jpg", "train/b/1.jpg"), found("train a train/a/1.jpg", "train b train/b/1.jpg")
    ),
    "flat-test": Folder(
        of("train/a/1.jpg", "test/1.jpg", "test/2.jpg"),
        found("train a train/a/1.jpg"),
        "left out: 2 images of a split that are in no class folder",
    ),
    "all-flat": Folder(of("train/1.jpg", "test/1.jpg"), found("test test/1.jpg", "train train/1.jpg")),
    "class-called-test": Folder(
        of("train/test/1.jpg", "val/a/1.jpg"), found("train test train/test/1.jpg", "val a val/a/1.jpg")
    ),
    "classes-in-classes": Folder(
        of("train/dog/husky/1.jpg", "val/dog/pug/1.jpg"),
        found("train dog train/dog/husky/1.jpg", "val dog val/dog/pug/1.jpg"),
    ),
    "annotations-beside": Folder(
        {**of("train/a/1.jpg", "val/a/1.jpg"), "annotations/all.json": b"{}"},
        found("train a train/a/1.jpg", "val a val/a/1.jpg"),
        "left out: 1 file that is no image: 1 .json",
    ),
    "extra-beside": Folder(
        of("train/a/1.jpg", "val/a/1.jpg", "extra/a/1.jpg"),
        found("extra extra/a/1.jpg", "train train/a/1.jpg", "val val/a/1.jpg"),
        NO_SPLITS + "other folders beside them have samples",
    ),
    "folder-around": Folder(
        of("pets/train/a/1.jpg", "pets/val/a/1.jpg"),
        found("pets pets/train/a/1.jpg", "pets pets/val/a/1.jpg"),
        NO_SPLITS + "they are not at the top of the source",
    ),
    "classes-first": Folder(
        of("a/train/1.jpg", "a/val/1.jpg", "b/train/1.jpg"),
        found("a a/train/1.jpg", "a a/val/1.jpg", "b b/train/1.jpg"),
        NO_SPLITS + "they are not at the top of the source",
    ),
    "imagenet": Folder(
        of("train/n01440764/n01440764_18.JPEG", "val/ILSVRC2012_val_1.JPEG", "test/ILSVRC2012_test_1.JPEG"),
        found("train n01440764 train/n01440764/n01440764_18.JPEG"),
        "left out: 2 images of a split that are in no class folder",
    ),
    "imagenet-root": Folder(
        {
            **of("Data/CLS-LOC/train/n01440764/n01440764_18.JPEG", "Data/CLS-LOC/val/ILSVRC2012_val_1.JPEG"),
            "Annotations/CLS-LOC/val/ILSVRC2012_val_1.xml": b"",
        },
        found(
            "Data Data/CLS-LOC/train/n01440764/n01440764_18.JPEG",
            "Data Data/CLS-LOC/val/ILSVRC2012_val_1.JPEG",
        ),
        "left out: 1 file that is no image: 1 .xml",
    ),
}


class Table(NamedTuple):
    csv: bytes
    found: Found
    line: str = ""
    path: str = ""  # of the recipe
    split: str = ""


IMAGES: Final = of("val/1.jpg", "val/2.jpg")
BOTH: Final = found("cat val/1.jpg", "dog val/2.jpg")
TABLES: Final = {
    "flat-val": Table(b"file,label\nval/1.jpg,cat\nval/2.jpg,dog\n", BOTH),
    "names-without-ending": Table(b"id,label\n1,cat\n2,dog\n", BOTH, path="val/{id}.jpg"),
    "from-excel": Table(b"\xef\xbb\xbffile,label\r\nval/1.jpg,cat\r\nval/2.jpg,dog\r\n\r\n", BOTH),
    "comma-in-a-class": Table(b'file,label\nval/1.jpg,"cat, tabby"\n', [("", "cat, tabby", "val/1.jpg")]),
    "split-column": Table(
        b"file,label,part\nval/1.jpg,cat,Train\nval/2.jpg,dog,val\n",
        found("Train cat val/1.jpg", "val dog val/2.jpg"),
        split="part",
    ),
    "numbers-as-labels": Table(
        b"file,label\nval/1.jpg,10\nval/2.jpg,2\n", found("10 val/1.jpg", "2 val/2.jpg")
    ),
    "space-behind-a-label": Table(
        b"file,label\nval/1.jpg,cat\nval/2.jpg,cat \n", [("", "cat", "val/1.jpg"), ("", "cat ", "val/2.jpg")]
    ),
    "two-labels": Table(
        b"file,label\nval/1.jpg,cat\nval/1.jpg,dog\n", found("cat val/1.jpg", "dog val/1.jpg#1")
    ),
    "no-label-no-file": Table(
        b"file,label\nval/1.jpg,cat\nval/2.jpg,\nval/3.jpg,dog\n",
        found("cat val/1.jpg"),
        "left out: 1 row of the table whose object is not there (line 4: val/3.jpg),"
        " 1 row of the table without a label (line 3)",
    ),
    "paths-of-elsewhere": Table(
        b"file,label\n./val/1.jpg,cat\nval\\2.jpg,dog\n/data/val/2.jpg,dog\nval/1.jpg,cat\n",
        found("cat val/1.jpg"),
        "left out: 3 rows of the table whose objects are not there (first: line 2: ./val/1.jpg)",
    ),
}
REFUSED: Final = {
    "semicolons": (
        b"file;label\nval/1.jpg;cat\n",
        "nothing says which column of the table names the objects",
    ),
    "no-names": (
        b"val/1.jpg,cat\nval/2.jpg,dog\n",
        "nothing says which column of the table names the objects",
    ),
    "pandas-index": (b",file,label\n0,val/1.jpg,cat\n", "two columns have one name, or one has none"),
    "no-rows": (b"file,label\n", "has no rows"),
    "utf-16": ("file,label\nval/1.jpg,cat\n".encode("utf-16"), "cannot be read as CSV"),
}
