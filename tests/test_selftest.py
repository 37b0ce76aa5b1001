"""Our C is tried before it is used: where it is not right, the libraries do the work, and it is told."""

import ctypes
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from images import IS_SIMD, Pixels, are_same, encode, natural
from stager.recipes.image import native, selftest
from stager.recipes.image.tiny_jpegs import HEIGHT, WIDTH, tiny_jpegs

HERE = Path(native.__file__).parent
ROOT = Path(__file__).parent.parent
SOURCES = ("resize.c", "vnni.c", "trial.c", "png.c", "jpeg.c", "huffman.c")

# As a libjpeg that is not what we were compiled for would have it, and worse.
DAMAGE = {
    "one wrong pixel": ("huffman.c", "block[0] = (JCOEF)value;", "block[0] = (JCOEF)(value ^ 64);"),
    "a crash": ("huffman.c", "    info->client_data = huffman;", "    *(volatile int *)8 = 1;"),
    "no end": ("huffman.c", "    info->client_data = huffman;", "    for (volatile int i = 0;; i = 1);"),
    "wrong rows": ("png.c", "above[i]) / 2", "above[i] + 1) / 2"),
    "wrong weights": ("resize.c", "int32_t)(0.5 + shares", "int32_t)(999.5 + shares"),
}
DECODE = """
import logging, sys
from pathlib import Path
from stager.recipes.image import native
from stager.recipes import open_recipe
logging.basicConfig(stream=sys.stderr, format="%(name)s %(message)s")
data = memoryview(Path(sys.argv[1]).read_bytes())
recipe = open_recipe({"kind": "image", "resize": 64, "crop": 56})
for _ in range(3):
    pixels = recipe.prepare([data], ())["image"]
Path(sys.argv[2]).write_bytes(pixels.tobytes())
print(native.describe())
"""


@pytest.fixture(autouse=True)
def is_compiled() -> None:
    if not native.decodes_jpeg():
        assert not os.environ.get("CI"), "stager/recipes/image/c/jpeg.c was not compiled"
        pytest.skip("stager/recipes/image/c/jpeg.c was not compiled")


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "photo.jpg"
    path.write_bytes(encode(natural(200, 150), "JPEG"))
    return path


def compile_into(folder: Path, names: tuple[str, ...], *options: str) -> Path:
    made = folder / "made.so"
    command = ["cc", "-O1", "-shared", "-fPIC", *options, *(str(folder / name) for name in names)]
    subprocess.run([*command, "-ljpeg", "-lm", "-o", str(made)], check=True)
    return made


def copy_of_stager(tmp_path: Path, *change: str) -> Path:
    """All of stager, with one change in its C, compiled. Return the folder to import it from."""
    shutil.copytree(ROOT / "stager", tmp_path / "stager")
    image = tmp_path / "stager" / "recipes" / "image"
    suffix = next(path.name for path in HERE.glob("_native_jpeg.*")).removeprefix("_native_jpeg")
    if change:
        source, old, new = change
        path = image / "c" / source
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        made = compile_into(image / "c", SOURCES)
        made.rename(image / f"_native_jpeg{suffix}")
        made = compile_into(image / "c", SOURCES[:4])
        made.rename(image / f"_native{suffix}")
    return tmp_path


def decoded(photo: Path, stager: Path, out: Path, **environ: str) -> tuple[Pixels, str, str]:
    """The pixels of a photo, the way that was gone, and what was logged."""
    env = {**os.environ, "PYTHONPATH": str(stager), **environ}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DECODE, str(photo), str(out)],
        env=env,
        cwd=out.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, np.uint8), done.stdout.strip(), done.stderr


def test_what_is_right_is_used_and_nothing_is_logged(photo: Path, tmp_path: Path) -> None:
    _, way, logged = decoded(photo, ROOT, tmp_path / "out")
    assert native.library is not None
    assert way == f"jpeg+resize ({native.CPUS[native.library.stager_cpu()]})"
    assert logged == ""


@pytest.mark.parametrize("damage", DAMAGE)
def test_code_that_is_wrong_or_crashes_or_hangs_is_not_used(damage: str, photo: Path, tmp_path: Path) -> None:
    expected, _, _ = decoded(photo, ROOT, tmp_path / "expected", STAGER_NATIVE="0")
    (tmp_path / "copy").mkdir()
    stager = copy_of_stager(tmp_path / "copy", *DAMAGE[damage])
    pixels, way, logged = decoded(photo, stager, tmp_path / "out")
    assert are_same(pixels, expected)
    assert logged.count("native code refused") == 1
    if damage.startswith("wrong "):
        assert way == f"off: self-test failed: {'PNG' if damage == 'wrong rows' else 'resize'}"
    else:
        assert way.startswith("resize only (")
        assert "self-test failed: JPEG 4:2:0" in way


def test_switched_off_gives_the_same_pixels_without_any_of_our_c(photo: Path, tmp_path: Path) -> None:
    with_it, _, _ = decoded(photo, ROOT, tmp_path / "with")
    without, way, _ = decoded(photo, ROOT, tmp_path / "without", STAGER_NATIVE="0")
    assert way == "off (STAGER_NATIVE=0)"
    assert are_same(with_it, without)


def test_the_tiny_jpegs_are_what_they_are_called() -> None:
    jpegs = tiny_jpegs()
    for kind, data in jpegs.items():
        assert native.look_at_jpeg(memoryview(data)) == (HEIGHT, WIDTH, False)
        assert (b"\xff\xc2" in data) == (kind == "progressive")
        assert (b"\xff\xdd" in data) == (kind == "restarts")
    for kind, sampling in {"4:2:0": 0x22, "4:2:2": 0x21, "4:4:4, long codes": 0x11, "restarts": 0x22}.items():
        frame = jpegs[kind].index(b"\xff\xc0")
        assert jpegs[kind][frame + 9] == 3
        assert jpegs[kind][frame + 11] == sampling
    grey = jpegs["grey"]
    assert grey[grey.index(b"\xff\xc0") + 9] == 1


@pytest.mark.skipif(IS_SIMD, reason="wants Pillow itself")
def test_the_resize_that_is_expected_is_that_of_pillow() -> None:
    from PIL import Image

    pattern = np.frombuffer(selftest._pattern(), np.uint8).reshape(HEIGHT, WIDTH, 3)
    top, left, height, width = selftest.WINDOW

    def across(pixels: Pixels) -> Pixels:
        to = selftest.TO[1], len(pixels)
        return np.asarray(Image.fromarray(pixels).resize(to, Image.Resampling.BILINEAR))

    def down(pixels: Pixels) -> Pixels:
        to = pixels.shape[1], selftest.TO[0]
        return np.asarray(Image.fromarray(pixels).resize(to, Image.Resampling.BILINEAR))

    for resized, crc32 in zip(
        (down(across(pattern)), across(down(pattern))), selftest.RESIZED_CRC32, strict=True
    ):
        window = resized[top : top + height, left : left + width]
        assert zlib.crc32(window.tobytes()) == crc32


@pytest.mark.parametrize(("version", "is_known"), [(2001005, True), (3002000, True), (3003000, False)])
def test_a_libjpeg_that_nobody_looked_at_keeps_its_own_huffman_decoder(
    version: int, is_known: bool, tmp_path: Path
) -> None:
    says = tmp_path / "says.h"
    says.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <jpeglib.h>\n"
        f"#undef LIBJPEG_TURBO_VERSION_NUMBER\n#define LIBJPEG_TURBO_VERSION_NUMBER {version}\n"
    )
    for source in (HERE / "c").glob("*.[ch]"):
        shutil.copy(source, tmp_path)
    library = native.declare(ctypes.CDLL(str(compile_into(tmp_path, SOURCES, "-include", str(says)))))
    assert library.stager_has_huffman() == is_known
    data = tiny_jpegs()["4:2:0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", library)
        assert selftest._find_fault() is None
        assert ("Huffman" in native.describe()) == (not is_known)
        about = (HEIGHT, WIDTH), (0, 0, HEIGHT, WIDTH), selftest.TO, selftest.WINDOW
        assert native.decode_resized(memoryview(data), *about) is not None


def test_the_decoder_needs_little_of_a_threads_stack(photo: Path) -> None:
    code = (
        "import sys, threading; from stager.recipes import open_recipe\n"
        "recipe = open_recipe({'kind': 'image'}); data = memoryview(open(sys.argv[1], 'rb').read())\n"
        "recipe.prepare([data], ()); threading.stack_size(96 * 1024)\n"
        "thread = threading.Thread(target=recipe.prepare, args=(data,)); thread.start(); thread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(photo)], timeout=60, check=False)
    assert done.returncode == 0


def test_the_function_that_is_replaced_is_where_libjpegs_own_header_has_it(tmp_path: Path) -> None:
    source = tmp_path / "place.c"
    source.write_text(
        "#define JPEG_INTERNALS\n#include <stddef.h>\n#include <stdio.h>\n#include <jpeglib.h>\n"
        "struct jpeg_entropy_decoder_as_we_have_it { void (*start_pass)(void); void (*decode_mcu)(void); };\n"
        "_Static_assert(offsetof(struct jpeg_entropy_decoder, decode_mcu) ==\n"
        '    offsetof(struct jpeg_entropy_decoder_as_we_have_it, decode_mcu), "it has another place");\n'
    )
    command = ["cc", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No such file" in done.stderr:
        pytest.skip("libjpeg's private headers, which Debian installs, are not there")
    assert done.returncode == 0, done.stderr
