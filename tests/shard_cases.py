"""Fields, rows and shards for the tests, and what it means that two are the same."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from stager.reader.values import Arrays, Field, Prepared, ShardHeader, ShardReader, checksum_of, sample_tag

MANIFEST, RECIPE = "5a" * 16, "c3" * 16
IMAGE = Field("image", "uint8", (6, 5, 3))
VECTOR = Field("vector", "float32", (7,))
PATCH = Field("patch", "float32", (None, 2, None))
JPEG = Field("photo", "uint8", (None, None, 3), "jpeg")
LABEL = Field("label", "int64", ())
NOTHING = Field("nothing", "float64", (0, 4))

CASES = {
    "one fixed field": (IMAGE,),
    "an image and a vector": (IMAGE, VECTOR),
    "an odd size before floats": (Field("odd", "uint8", (3,)), VECTOR),
    "varying shapes": (PATCH,),
    "jpeg": (JPEG,),
    "no sides": (LABEL,),
    "no elements": (NOTHING,),
    "all kinds": (IMAGE, PATCH, NOTHING, JPEG, LABEL, VECTOR),
}
KEYS = ("plain.jpg", "a/b c.png", "nul\0and\nnewline", "not utf-8 \udcff\udc80", "ünï-日本", "", "x" * 3000)


def array_for(field: Field, seed: int) -> np.ndarray[Any, Any]:
    """A stored array that fits a field; sides that vary do, down to zero."""
    draw = np.random.default_rng(seed)
    if field.encoding != "raw":
        return draw.integers(0, 256, seed % 5 * 700, dtype=np.uint8)
    shape = [(seed + at) % 4 if side is None else side for at, side in enumerate(field.shape)]
    size = int(np.prod(shape)) * np.dtype(field.dtype).itemsize
    return np.frombuffer(draw.bytes(size), field.dtype).reshape(shape)


def make_row(fields: Sequence[Field], key: str, version: str, arrays: Arrays) -> Prepared:
    return Prepared(key, version, arrays, checksum_of(sample_tag(key, version), RECIPE, fields, arrays))


def make_rows(fields: Sequence[Field], count: int) -> list[Prepared]:
    return [
        make_row(fields, f"{at:06}.jpg", f"v{at % 3}", {f.name: array_for(f, at + 1) for f in fields})
        for at in range(count)
    ]


def header_for(fields: Sequence[Field]) -> ShardHeader:
    return ShardHeader("pets", MANIFEST, RECIPE, tuple(fields))


def assert_same(reader: ShardReader, header: ShardHeader, rows: Sequence[Prepared]) -> None:
    """The shard holds these rows and says so."""
    assert reader.header == header
    assert len(reader) == len(rows)
    assert reader.identities() == [(row.key, row.version) for row in rows]
    assert reader.checksums.tolist() == [row.checksum for row in rows]
    for at, row in enumerate(rows):
        assert_same_arrays(reader.row(at), row.arrays)


def assert_same_arrays(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()  # bytes: a NaN equals itself


def open_descriptors(below: Path) -> int:
    """How many descriptors of ours are of a file, or of files below a folder."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder itself is gone by now
            found += str(link.readlink()).startswith(str(below))
    return found


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[None]:
    """As on a full disk, a write fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@st.composite
def shards(draw: st.DrawFn) -> tuple[ShardHeader, list[Prepared]]:
    """Any fields, any few rows of them."""
    sides = st.one_of(st.none(), st.integers(0, 4))
    field = st.builds(
        Field,
        st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=8),
        st.sampled_from(["uint8", "int16", "float16", "float32", "float64", "complex64", "bool", ">u4"]),
        st.lists(sides, max_size=3).map(tuple),
        st.sampled_from(["raw", "raw", "jpeg"]),
    )
    reserved = ("key", "version", "checksum")
    fields = draw(st.lists(field, min_size=1, max_size=4, unique_by=lambda f: f.name))
    fields = [f for f in fields if f.name not in reserved] or [IMAGE]
    keys = draw(st.lists(st.binary(max_size=12), min_size=1, max_size=6))
    version = draw(st.text(st.characters(codec="utf-8"), max_size=8))
    rows = [
        make_row(
            fields,
            key.decode("utf-8", "surrogateescape"),
            version,
            {f.name: array_for(f, draw(st.integers(0, 1000))) for f in fields},
        )
        for key in keys
    ]
    return header_for(fields), rows
