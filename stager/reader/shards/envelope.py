"""What both formats say of a shard beside its arrays: header, keys, versions, checksums, and one digest."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stager.errors import ShardCorrupt
from stager.reader.shards.trailer import FORMAT_VERSION
from stager.reader.values import Prepared, ShardHeader, canonical_json, decode_key, digest_of, encode_key

COLUMN_NAMES = ("key", "version", "checksum")
ENVELOPE_PARTS = 5  # offsets and bytes of the keys, the same of the versions, checksums


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts one after the other, as Arrow keeps them: text i is data[offsets[i] : offsets[i + 1]]."""

    offsets: npt.NDArray[np.int32]
    data: memoryview

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Self:
        offsets = np.cumsum([0, *map(len, texts)], dtype="<i4")
        return cls(offsets, memoryview(b"".join(texts)))

    def __iter__(self) -> Iterator[bytes]:
        return (self.data[start:end].tobytes() for start, end in pairwise(self.offsets.tolist()))


@dataclass(frozen=True, slots=True)
class Envelope:
    """The header, and for each row which sample it is and what its bytes must hash to."""

    header: ShardHeader
    header_text: str
    keys: Texts
    versions: Texts
    checksums: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, header: ShardHeader, rows: Sequence[Prepared]) -> Self:
        """Raise ValueError if these cannot be a shard."""
        if not rows:
            raise ValueError("a shard has at least one row")
        names = [*(field.name for field in header.fields), *COLUMN_NAMES]
        if len(set(names)) < len(names) or any("." in name for name in names):
            raise ValueError(f"two columns of one name, or one with a dot: {', '.join(names)}")
        keys = Texts.of([encode_key(row.key) for row in rows])
        versions = Texts.of([row.version.encode() for row in rows])
        checksums = np.fromiter((row.checksum for row in rows), "<u8", len(rows))
        return cls(header, header.to_json(), keys, versions, checksums)

    @classmethod
    def read(cls, path: Path, metadata: dict[str, Any], parts: Iterable[bytes]) -> Self:
        """Take it from a shard's metadata and first parts. Raise ShardCorrupt if a bit of it is wrong."""
        header_text = canonical_json(metadata["header"])
        key_offsets, key_data, version_offsets, version_data, checksums = parts
        envelope = cls(
            ShardHeader.from_json(header_text),
            header_text,
            Texts(np.frombuffer(key_offsets, "<i4"), memoryview(key_data)),
            Texts(np.frombuffer(version_offsets, "<i4"), memoryview(version_data)),
            np.frombuffer(checksums, "<u8"),
        )
        if envelope.digest() != metadata["digest"]:
            raise ShardCorrupt(f"{path}: keys, versions or checksums do not match the shard's digest")
        return envelope

    def metadata(self) -> dict[str, Any]:
        """What is written beside the rows, in every format alike."""
        return {
            "format": FORMAT_VERSION,
            "header": json.loads(self.header_text),
            "samples": len(self.checksums),
            "digest": self.digest(),
        }

    def digest(self) -> str:
        """Over the header, the checksums, and the offsets and bytes of the keys and of the versions."""
        texts = (self.keys.offsets.data, self.keys.data, self.versions.offsets.data, self.versions.data)
        return digest_of(self.header_text.encode(), self.checksums.data, *texts)

    def identities(self) -> list[tuple[str, str]]:
        keys = (decode_key(key) for key in self.keys)
        versions = (version.decode() for version in self.versions)
        return list(zip(keys, versions, strict=True))
