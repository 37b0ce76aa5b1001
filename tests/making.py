"""Small things tests make: manifests, configs, image folders."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from stager.interfaces import Asked, Layout, LeftOut, Looked, Recalled
from stager.layouts import open_layout
from stager.reader.samples.manifest import Manifest
from stager.reader.values import ObjectInfo, Part, encode_key
from stager.recipes import open_recipe
from stager.scan.scan import NOTHING_KNOWN, Known, Scan, write_manifest


class Listed:
    """Objects as a layout sees them, and the bytes of those that it may read."""

    def __init__(self, infos: Iterable[ObjectInfo], data: Mapping[str, bytes] | None = None) -> None:
        self._infos, self._data = infos, data or {}
        self.read_parts: list[Part] = []
        self.recall: Callable[[ObjectInfo], Recalled | None] = lambda info: None

    def objects(self, under: str = "") -> Iterator[ObjectInfo]:
        return (info for info in self._infos if info.key.startswith(under))

    def read(self, part: Part) -> memoryview:
        self.read_parts.append(part)
        return memoryview(self._data[part.info.key])[part.start : part.stop]

    def side_by_side(self, objects: Iterable[Asked], look: Callable[[Asked], Looked]) -> Iterator[Looked]:
        return map(look, objects)

    def known(self, info: ObjectInfo) -> Recalled | None:
        return self.recall(info)


def folder_layout(left_out: LeftOut | None = None) -> Layout:
    """The folder layout, for images."""
    recipe = open_recipe({"kind": "image"})
    return open_layout("folder", {}, recipe, left_out or LeftOut(recipe.takes))


def manifest_of(path: Path, keys: Iterable[str], sizes: Mapping[str, int] | None = None) -> Manifest:
    """The manifest of objects with these keys, scanned in key order."""
    ordered = sorted(keys, key=encode_key)
    infos = [ObjectInfo(key, (sizes or {}).get(key, 100), f"v-{key[-4:]!a}") for key in ordered]
    return scanned(path, infos)


def scanned(
    path: Path,
    infos: Iterable[ObjectInfo],
    known: Known = NOTHING_KNOWN,
    layout: Layout | None = None,
) -> Manifest:
    """The manifest of these objects, after what is known, with the records that go with it."""
    write_manifest(path, layout or folder_layout(), Listed(infos), known)
    return Scan(path).open(known.records)


def jpeg(seed: int, width: int = 96, height: int = 72) -> bytes:
    """A small JPEG that differs with the seed."""
    rng = np.random.default_rng(seed)
    rough = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def image_folder(root: Path, classes: int, per_class: int) -> dict[str, bytes]:
    """An ImageFolder on disk; returns its objects by key."""
    objects = {
        f"class{label:03d}/{number:03d}.jpg": jpeg(label * 1000 + number)
        for label in range(classes)
        for number in range(per_class)
    }
    for key, data in objects.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return objects
