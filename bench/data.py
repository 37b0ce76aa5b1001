"""The images all runs share: copies of real ones, or made."""

import base64
import hashlib
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from awscrt.checksums import crc64nvme
from PIL import Image

CLASSES: Final = 100
MADE: Final = 200  # different ones; the others are copies
BUCKET: Final = "bench"
PREFIX: Final = "jpeg"
NO_SUM: Final = "-"


@dataclass(frozen=True, slots=True)
class Item:
    """One image: its key below the prefix, its file, its label, and the sums of its bytes."""

    key: str
    file: Path
    label: int
    etag: str
    sum: str  # CRC64NVME in base64, which S3 keeps of an object
    size: int


@dataclass(frozen=True, slots=True)
class Data:
    """Images in the manifest's order: by class, then by name."""

    root: Path
    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def mean_bytes(self) -> float:
        return sum(item.size for item in self.items) / len(self.items)

    def first(self, count: int) -> "Data":
        """The first so many images by number, from all classes."""
        numbered = sorted(self.items, key=lambda item: item.file.name)[:count]
        return Data(self.root, tuple(sorted(numbered, key=lambda item: item.key)))

    def list_file(self) -> Path:
        """Paths and labels, for the peers."""
        path = self.root / f"list-{len(self)}.tsv"
        path.write_text("".join(f"{item.file}\t{item.label}\n" for item in self.items))
        return path

    def objects(self, has_sums: bool = True) -> list[tuple[str, Path, str, str]]:
        """(bucket/key, file, etag, checksum or -) of each, for the server."""
        return [
            (f"{BUCKET}/{PREFIX}/{item.key}", item.file, item.etag, item.sum if has_sums else NO_SUM)
            for item in self.items
        ]


def lay_out(root: Path, given: Path | None, count: int) -> Data:
    """Lay out `count` images in a folder a class, or use those that are there from an earlier run."""
    about = f"{given} {count} {CLASSES}"
    stamp = root / "made-of"
    if not stamp.exists() or stamp.read_text() != about:
        shutil.rmtree(root, ignore_errors=True)
        images = list(_given(given) if given else (made(seed) for seed in range(min(MADE, count))))
        for number in range(count):
            file = root / "jpeg" / f"class{number % CLASSES:03d}" / f"{number:06d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(images[number % len(images)])
        stamp.write_text(about)
    return Data(root, tuple(_items(root / "jpeg")))


def _items(root: Path) -> Iterator[Item]:
    for file in sorted(root.rglob("*.jpg")):
        raw = file.read_bytes()
        label = int(file.parent.name.removeprefix("class"))
        etag = hashlib.md5(raw, usedforsecurity=False).hexdigest()
        crc = base64.b64encode(crc64nvme(raw).to_bytes(8, "big")).decode()
        yield Item(str(file.relative_to(root)), file, label, etag, crc, len(raw))


def _given(folder: Path) -> Iterator[bytes]:
    """Real JPEGs. A CMYK one is left out: it would test converters, not loaders."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    if not found:
        raise SystemExit(f"bench: there is no JPEG in {folder}")
    for path in found:
        with Image.open(path) as image:
            is_usual = image.mode == "RGB" and image.getexif().get(0x0112, 1) == 1
        if is_usual:
            yield path.read_bytes()


def made(seed: int) -> bytes:
    """A JPEG of 500x375 that costs about as much to decode as a photo, of about as many bytes."""
    rng = np.random.default_rng(seed)
    rough = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    smooth = np.asarray(rough.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = smooth + rng.normal(0, 12, (375, 500, 3)).astype(np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()
