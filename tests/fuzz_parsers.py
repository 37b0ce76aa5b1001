"""What is fuzzed of layouts, recipes and kept files: whatever lies there, an error of ours or a value."""

import io
import json
import logging
import os
import random
import signal
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from fuzzing import Target
from stager.errors import CacheError, SampleError, StagerError
from stager.interfaces import LeftOut, Made
from stager.layouts import check_layout, open_layout, open_opener
from stager.reader.values import Field, ObjectInfo, Part, Unlisted
from stager.recipes import open_recipe
from stager.scan.scan import NOTHING_KNOWN, Scan, write_manifest

OBJECTS: Final = {f"{number}.npy": 64 for number in range(4)}  # what rows of tables name, and their bytes
PIXELS_MOST: Final = 1 << 24  # of a chunk: larger ones are allocated, and nothing is learned


def forked(check: Callable[[], str]) -> str:
    """In a process of its own, as a worker is: pyarrow ends it over some damaged footers. What it said."""
    told, tell = os.pipe()
    if not (pid := os.fork()):
        said = "!"
        try:
            said = check()
        except BaseException:
            traceback.print_exc()
        finally:
            os.write(tell, said.encode())
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert said != "!", "see above"
    return said or f"Arrow ended it by {signal.Signals(-os.waitstatus_to_exitcode(status)).name}"


def call(check: Callable[[], str]) -> str:
    return check()


class Layouts(Target):
    """One object of a source is as it likes: it is scanned, with what else lies there, or it is told of."""

    layout: str
    recipe: Mapping[str, Any]
    options: Mapping[str, str] = {}

    def __init__(self) -> None:
        from fuzz_targets import folder_for

        self._folder = folder_for(self)

    def name_of(self, data: bytes) -> str:
        """The key of the object, by which the layout knows what it is."""
        return f"0.{self.layout}"

    def check(self, data: bytes) -> str:
        from making import Listed

        name = self.name_of(data)
        infos = [ObjectInfo(key, size, "v") for key, size in {name: len(data), **OBJECTS}.items()]
        recipe = open_recipe(self.recipe)
        options = check_layout(self.layout, self.options_for(name))
        opened = self.layout, options, recipe, LeftOut(recipe.takes)
        layout = open_layout(*opened)
        assert not layout.is_computed
        listed = Listed(sorted(infos, key=lambda info: info.key), {name: data})
        try:
            entries = list(layout.entries(listed))
            for entry in entries:
                assert all(0 <= part.start <= part.start + part.size for part in entry.parts)
            for path in self._folder.iterdir():
                path.unlink()
            write_manifest(self._folder / "manifest", open_layout(*opened), listed)
            manifest = Scan(self._folder / "manifest").open(NOTHING_KNOWN.records)
        except StagerError as error:
            return type(error).__name__
        assert len(manifest) <= len(entries)
        for entry in entries[:3]:
            self.take(options, entry, data)
        return "scanned" if entries else "left out"

    def options_for(self, name: str) -> Mapping[str, str]:
        return self.options

    def take(self, options: Mapping[str, Any], entry: Any, data: bytes) -> None:
        """What a worker would do."""


class Tars(Layouts):
    layout = "tar"
    recipe = {"kind": "bytes", "path": "txt"}
    words = (
        *Target.words,
        b"ustar",
        b"0000644\0",
        b"L",
        b"x",
        b"S",
        b"5",
        b"2",
        b"\0" * 512,
        b"..",
        b".json",
    )

    def __init__(self) -> None:
        from tars import tar_of

        super().__init__()
        members = [
            *(("a/1.txt", b"one"), ("a/1.cls", b"7"), ("a/1.json", b'{"fold": 1, "note": "\\ud83d"}')),
            *(("b/2.txt", b"two" * 200), ("b/2.json", b'{"fold": 2.5}'), ("./c." + "y" * 120 + ".txt", b"3")),
        ]
        self.corpus = [tar_of(members), tar_of(members[:2], {"link.txt": "/etc/passwd"})]

    def mend(self, data: bytes, rng: random.Random) -> bytes:
        """With sums of its headers that fit."""
        made = bytearray(data)
        for at in range(0, len(made) - 511, 512):
            if made[at + 257 : at + 262] == b"ustar" and rng.random() < 0.9:
                made[at + 148 : at + 156] = b" " * 8
                made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])
        return bytes(made)


class Parquets(Layouts):
    layout = "parquet"
    recipe = {"kind": "bytes"}
    words = (*Target.words, b"PAR1", b"huggingface", b'{"info":{"features":{"label":{"names":3}}}}')

    def __init__(self) -> None:
        from parquets import parquet_of, photos

        super().__init__()
        small = photos(range(4)).drop_columns(["image"])
        texts = [b"one", b"two" * 9, b"", b"four"]
        self.corpus = [
            parquet_of(small.append_column("image", [texts]), 2),
            parquet_of(small.append_column("image", [texts]), 2, use_dictionary=False, compression="none"),
        ]

    def check(self, data: bytes) -> str:
        return forked(lambda: super(Parquets, self).check(data))

    def take(self, options: Mapping[str, Any], entry: Any, data: bytes) -> None:
        opener = open_opener(self.layout, options)
        assert opener is not None
        parts = [memoryview(data)[part.start : part.stop] for part in entry.parts]
        try:
            opener.take([opener.open(number, part) for number, part in enumerate(parts)], entry.at)
        except SampleError:
            return


class Tables(Layouts):
    """CSV, JSON lines, COCO, VOC and Parquet: which of them, its first bytes say."""

    layout = "table"
    recipe = {"kind": "bytes", "path": "{file_name}"}
    words = (
        *(
            b",",
            b'"',
            b'""',
            b"\n",
            b"\r",
            b"\xef\xbb\xbf",
            b"9" * 400,
            b"1e999",
            b"NaN",
            b"\\ud800",
            b"\xff",
        ),
        *(b"null", b"[", b"{", b"]", b"}", b"[" * 3000, b'"bbox":', b'"images":', b'"annotations":', b"true"),
        *(b"<object>", b"<bndbox>", b"<xmin>", b"</xmin>", b"&#0;", b"&#xD800;", b'encoding="utf-7"?>', b"-"),
    )

    def __init__(self) -> None:
        from parquets import parquet_of, photos

        super().__init__()
        pictures = [{"id": n, "file_name": f"{n}.npy", "width": 9} for n in range(3)]
        boxes = [{"image_id": n % 3, "category_id": 1, "bbox": [n, 1, 2, 3.5], "area": 7} for n in range(4)]
        coco = {"images": pictures, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
        things = "".join(
            f"<object><name>cat</name><bndbox><xmin>{n}</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax>"
            "</bndbox></object>"
            for n in range(2)
        )
        voc = f'<?xml version="1.0" encoding="utf-8"?><annotation><file_name>1.npy</file_name>{things}'
        rows = photos(range(4)).drop_columns(["image"])
        self.corpus = [
            b'file_name,fold,note\n0.npy,1,"a ""b"""\n1.npy,2.5,\n2.npy,true,x\n',
            b"\n".join(
                json.dumps({**picture, "objects": {"bbox": [[1, 2, 3, 4]]}}).encode() for picture in pictures
            ),
            json.dumps(coco).encode(),
            f"{voc}<size><width>9</width></size></annotation>".encode(),
            parquet_of(rows.append_column("file_name", [[f"{n}.npy" for n in range(4)]]), 4),
        ]

    def check(self, data: bytes) -> str:
        return (forked if data[:1] == b"P" else call)(lambda: super(Tables, self).check(data))

    def name_of(self, data: bytes) -> str:
        first = {b"P": "parquet", b"<": "xml", b"{": "jsonl"}.get(data[:1], "csv")
        return "t.json" if data[:9] == b'{"images"' else f"t.{first}"

    def options_for(self, name: str) -> Mapping[str, str]:
        per = {} if name.endswith(("csv", "parquet")) else {"per": "box"}
        return {"table": name, **per}


class Volumes(Target):
    """Whatever a Zarr array says of itself, it is bricks, or a UsageError; and its chunks can be decoded."""

    words = (
        *(
            b"null",
            b"[]",
            b"{}",
            b'""',
            b"-1",
            b"0",
            b"9" * 30,
            b"1e9",
            b"true",
            b"[" * 3000,
            b'"NaN"',
            b'">f2"',
        ),
        *(
            b'"sharding_indexed"',
            b'"bytes"',
            b'"blosc"',
            b'"zstd"',
            b'"gzip"',
            b'"v2"',
            b'"dimension_separator"',
        ),
    )

    def __init__(self) -> None:
        import tempfile

        from volumes import voxels, write_zarr

        self.corpus = []
        array = voxels((8, 8))
        about: list[dict[str, Any]] = [
            *({"zarr_format": 3}, {"zarr_format": 2}, {"zarr_format": 3, "shards": (8, 8)}),
            {"zarr_format": 3, "fill_value": 7},
        ]
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            for number, more in enumerate(about):
                path = Path(folder) / str(number)
                write_zarr(path, array, (4, 4), **more)
                self.corpus += [
                    file.read_bytes() for file in path.iterdir() if file.name in ("zarr.json", ".zarray")
                ]

    def check(self, data: bytes) -> str:
        recipe = open_recipe({"kind": "volume", "fields": {"scan": "uint8"}, "brick": [4, 4]})
        options = check_layout("volume", {"volumes": {"scan": ""}, "level": 0})
        layout = open_layout("volume", options, recipe, LeftOut())
        assert layout.is_computed
        name = ".zarray" if b'"zarr_format": 2' in data or b'"zarr_format":2' in data else "zarr.json"
        try:
            (rule,) = layout.rules(_Metadata({name: data}))
        except StagerError as error:
            return type(error).__name__
        if rule.cost(1)[1] > PIXELS_MOST:
            return "large"
        opener = open_opener("volume", options)
        assert opener is not None
        for info in rule.infos(np.arange(min(rule.count, 2))):
            for bytes_there in (b"", b"\1" * 16, b"\xff" * 40):
                opened = [opener.open(0, memoryview(bytes_there)) for _ in info.parts]
                try:
                    recipe.prepare(opener.take(opened, info.at), info.inputs)
                except SampleError:
                    continue
        return "bricks"


class _Metadata:
    """A source of which only some metadata are there."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def objects(self, under: str = "") -> Any:
        names = [name for name in self._files if name.startswith(under)]
        return (ObjectInfo(name, len(self._files[name]), "1") for name in names)

    def read(self, part: Part) -> memoryview:
        assert isinstance(part.info, Unlisted)
        if part.info.key not in self._files:
            raise SampleError("missing", "no such file")
        return memoryview(self._files[part.info.key])

    def side_by_side(self, objects: Any, look: Any) -> Any:
        return map(look, objects)

    def known(self, info: ObjectInfo) -> None:
        return None


class Recipes(Target):
    """A recipe makes arrays as its fields say, or a SampleError."""

    recipe: Mapping[str, Any]

    def __init__(self) -> None:
        self._opened = open_recipe(self.recipe)

    def check(self, data: bytes) -> str:
        try:
            made = self._opened.prepare([memoryview(data)], ())
        except SampleError as error:
            return error.reason
        for field in self._opened.fields:
            assert made[field.name].dtype == np.dtype(field.dtype)
        return "prepared"


class Sounds(Recipes):
    recipe = {"kind": "audio", "rate": 8000, "trim": 40}
    words = (
        *(b"RIFF", b"RIFX", b"RF64", b"WAVE", b"fmt ", b"data", b"ds64", b"LIST", b"OggS", b"fLaC", b"ID3"),
        *(b"Xing", b"\xff\xfb", *Target.words, b"\1\0\1\0", b"\3\0\1\0", b"\0\0"),
    )

    def __init__(self) -> None:
        from sounds import clip, encoded

        super().__init__()
        sound = clip(0.05)
        self.corpus = [encoded(sound), *(encoded(sound, kind) for kind in ("FLAC", "OGG", "MP3"))]
        self.corpus.append(encoded(clip(0.02, channels=2), subtype="FLOAT"))


class ArrayFiles(Recipes):
    recipe = {"kind": "array", "dtype": "int16", "shape": [-1, 3], "batch": "pad"}
    words = (
        *(*Target.words, b"\x93NUMPY", b"'descr'", b"'<i2'", b"'|O'", b"(-1, 3)", b"(9" + b"9" * 30 + b",)"),
        *(b"PK\x03\x04", b"PK\x01\x02", b"True", b"None", b"(" * 300),
    )

    def __init__(self) -> None:
        super().__init__()
        array = np.arange(12, dtype=np.int16).reshape(4, 3)
        plain, archive, packed = io.BytesIO(), io.BytesIO(), io.BytesIO()
        np.save(plain, array)
        np.savez(archive, a=array)
        np.savez_compressed(packed, a=array)
        self.corpus = [plain.getvalue(), archive.getvalue(), packed.getvalue()]


class Kept(Target):
    """A file that stager has written, and somebody else since: what it holds, or that there is nothing."""

    words = (
        *Target.words,
        b"null",
        b"[]",
        b"{}",
        b'""',
        b"-1",
        b"9" * 30,
        b'"sum"',
        b'"format"',
        b"[" * 3000,
    )

    def __init__(self) -> None:
        from fuzz_targets import folder_for

        logging.getLogger("stager").setLevel(logging.CRITICAL)
        self.folder = folder_for(self)
        self._ways: tuple[tuple[bytes, Callable[[], str]], ...] = (
            *(
                (self._of_function(), self._made),
                (self._of_memo(), self._record),
                (self._of_heat(), self._heat),
            ),
        )
        self.corpus = [bytes([way]) + data for way, (data, _) in enumerate(self._ways)]

    def check(self, data: bytes) -> str:
        way = data[0] % len(self._ways) if data else 0
        (self.folder / "kept").write_bytes(data[1:])
        return self._ways[way][1]()

    def _of_function(self) -> bytes:
        from stager.functions.made import MadeSamples, made_path

        self._of = MadeSamples(self.folder, "5" * 32, [Field("x", "int16", (4,)), Field("y", "float32", ())])
        self._of.keep(1, Made({"x": np.arange(4, dtype=np.int16), "y": np.float32(2)}, 0.5))
        path = made_path(self.folder, "5" * 32, 1)
        data = path.read_bytes()
        path.unlink()
        path.symlink_to(self.folder / "kept")
        return data

    def _made(self) -> str:
        found = self._of.find(1)
        if found is None:
            return "made: nothing"
        assert found["x"].tolist() == [0, 1, 2, 3]
        assert found["y"] == 2
        assert isinstance(found.seconds, float)
        return "made: the sample"

    def _of_memo(self) -> bytes:
        from stager.reader.code.key import CodeKey
        from stager.reader.memo.key import ArgumentKey, CallKey
        from stager.reader.memo.record import MemoRecord

        key = CallKey(
            CodeKey("f", {"f": "code " + "1" * 32}, {"f": 3}),
            {"seed": ArgumentKey("a number", {"value": "1"})},
        )
        record = MemoRecord(
            "folds", key, {"kind": "list"}, {"0.npy": (3, "a" * 32)}, 1.5, 2.5, ("no result",)
        )
        return record.to_text().encode()

    def _record(self) -> str:
        from stager.reader.memo.record import MemoRecord

        try:
            record = MemoRecord.read(self.folder / "kept")
        except CacheError:
            return "memo: CacheError"
        assert record is not None
        assert record.files == {"0.npy": (3, "a" * 32)}
        return "memo: the record"

    def _of_heat(self) -> bytes:
        from stager.heat.file import write_heat
        from stager.heat.heat import Warm

        warm = Warm(5.0, np.array([1, 4, 6]), np.array([0.5, 2.0, 1.0]))
        write_heat(self.folder / "heat", self.folder, "one", warm)
        return (self.folder / "heat").read_bytes()

    def _heat(self) -> str:
        from stager.heat.file import read_heat

        found = read_heat(self.folder / "kept", "one", 9)
        assert found.samples.tolist() in ([], [1, 4, 6])
        return f"heat of {len(found.samples)}"


PARSERS: Final[dict[str, type[Target]]] = {
    "tar": Tars,
    "parquet": Parquets,
    "table": Tables,
    "volume": Volumes,
    "sound": Sounds,
    "array": ArrayFiles,
    "kept": Kept,
}
