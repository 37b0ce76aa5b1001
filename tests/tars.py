"""Tars of samples, as WebDataset writes them: made by tarfile, or by hand where it would refuse."""

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

from making import jpeg

Member = tuple[str, bytes]


def tar_of(members: Iterable[Member], links: Mapping[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return file.getvalue()


def sample(number: int, **told: Any) -> list[Member]:
    """A photo, its class, and what JSON says of it."""
    name = f"{number:06d}"
    return [
        (f"{name}.jpg", jpeg(number)),
        (f"{name}.cls", str(number % 3).encode()),
        (f"{name}.json", json.dumps({"fold": number % 4, "number": number, **told}).encode()),
    ]


def shard(first: int, count: int) -> bytes:
    return tar_of(member for number in range(first, first + count) for member in sample(number))
