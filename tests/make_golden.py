"""Golden files: shards and an index as we write them today. To add those of a new version, bump it:

.venv/bin/python tests/make_golden.py
"""

from pathlib import Path

import numpy as np

from stager.cache.index_writer import IndexWriter
from stager.reader.index import FAILED, Words, pack_words
from stager.reader.values import Field, Prepared, ShardHeader, checksum_of, sample_tag
from stager.shards import FORMATS

SHARD_VERSION, INDEX_VERSION = 1, 2
GOLDEN = Path(__file__).with_name("golden")
MANIFEST, RECIPE = "00112233445566778899aabbccddeeff", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
LINEAGE = "fedcba98765432100123456789abcdef"
FIELDS = (
    Field("image", "uint8", (2, 3, 3)),
    Field("patch", "float32", (None, 2)),
    Field("photo", "uint8", (None, None, 3), "jpeg"),
    Field("label", "int64", ()),
)
KEYS = (("cats/1.jpg", "etag-1"), ("nul\0newline\n", "etag-2"), ("not utf-8 \udcff", ""))


def golden_header() -> ShardHeader:
    return ShardHeader("golden", MANIFEST, RECIPE, FIELDS)


def golden_rows() -> list[Prepared]:
    """Three samples without any randomness; the last is too large for a leaf of LMDB."""
    rows = []
    for at, (key, version) in enumerate(KEYS):
        arrays = {
            "image": np.arange(18, dtype=np.uint8).reshape(2, 3, 3) + np.uint8(at),
            "patch": np.arange(2 * at, dtype=np.float32).reshape(at, 2) / np.float32(8),
            "photo": np.arange(at * at * 700, dtype=np.uint8),
            "label": np.array(-at, dtype=np.int64),
        }
        checksum = checksum_of(sample_tag(key, version), RECIPE, FIELDS, arrays)
        rows.append(Prepared(key, version, arrays, checksum))
    return rows


def golden_words() -> Words:
    arrow = pack_words(0xFEDCBA98, np.array([0, 1, 0xFFFFFF]), "arrow")
    lmdb = pack_words(3, np.array([7]), "lmdb")
    return np.concatenate([arrow, np.zeros(1, np.uint64), lmdb, [FAILED]])


def write_shard(directory: Path, name: str) -> Path:
    path = directory / f"shard-v{SHARD_VERSION}{FORMATS[name].suffix}"
    FORMATS[name].write(path, golden_header(), golden_rows())
    return path


def write_index(directory: Path) -> Path:
    path = directory / f"index-v{INDEX_VERSION}.index"
    words = golden_words()
    index = IndexWriter.open(path, len(words), LINEAGE, RECIPE, directory)
    index.publish(np.arange(len(words)), words)
    index.clear(np.array([3]))
    index.tell_gone()
    return path


if __name__ == "__main__":
    for name in FORMATS:
        print(write_shard(GOLDEN, name))
    print(write_index(GOLDEN))
