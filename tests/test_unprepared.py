"""What the machine lacks is never a sample's fault: a package, memory. And failures can be tried again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images import IS_SIMD
from making import image_folder, jpeg
from running import Place
from sets import complaint, ended, staged, table
from stager.errors import REASONS
from stager.reader.service import Service

# Found before all else, in every process: as if the package had not been installed.
WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "simplejpeg":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    image_folder(tmp_path / "source", 2, 3)
    return Place(tmp_path).configure(table("pets", tmp_path / "source"))


def broken(place: Place, name: str, text: str) -> dict[str, str]:
    """The environment with a module before all others."""
    (place.root / "before").mkdir(exist_ok=True)
    (place.root / "before" / name).write_text(text)
    return {"PYTHONPATH": f"{place.root / 'before'}:{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.parametrize("owner", ["alone", "service"])
def test_a_missing_decoder_is_told_with_its_pip_command_before_anything_is_staged(
    owner: str, place: Place
) -> None:
    place.environ = broken(place, "sitecustomize.py", WITHOUT)
    if owner == "service":
        with place.service():
            done = place.run("prefetch")
    else:
        done = place.run("prefetch")
    told = complaint(done, 1)
    assert "simplejpeg" in told
    assert "pip install 'stager[service]'" in told
    place.environ = {}
    assert place.json("prefetch")["staged"] == 6  # nothing was marked as failed


def test_a_decoder_that_cannot_be_loaded_fails_the_job_and_no_sample(place: Place) -> None:
    place.environ = broken(place, "simplejpeg.py", "raise ImportError('libturbojpeg.so.0: no such file')")
    done = place.run("prefetch")
    told = complaint(done, 1)
    assert "libturbojpeg.so.0" in told
    assert "pip install" in told
    place.environ = {}
    assert place.json("prefetch")["staged"] == 6


UNDER_A_LIMIT = """
import json, resource, sys
from collections import Counter
from pathlib import Path
from stager.errors import SampleError
from stager.recipes import open_recipe
files = [Path(name).read_bytes() for name in sys.argv[2:]]
recipe = open_recipe({"resize": 256, "crop": 224, "encode": "raw"})
for data in files:
    recipe.prepare([memoryview(data)], ())
have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
seen = Counter()
for more in range(0, int(sys.argv[1]), 1 << 19):
    resource.setrlimit(resource.RLIMIT_AS, (have + more, resource.RLIM_INFINITY))
    for data in files:
        try:
            recipe.prepare([memoryview(data)], ())
            seen["good"] += 1
        except SampleError as error:
            seen[error.reason] += 1
            if error.reason != "unprepared":
                print(error, repr(error.__cause__), file=sys.stderr)
        except MemoryError:
            seen["unprepared"] += 1
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(seen))
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_shortage_of_memory_is_never_the_images_fault(native: str, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "large.jpg").write_bytes(jpeg(1, 3000, 2000))
    for name in ("large.png", "large.gif", "large.tif", "large.bmp", *(() if IS_SIMD else ("large.webp",))):
        Image.open(tmp_path / "large.jpg").save(tmp_path / name)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT, str(64 << 20), *names],
        env={**os.environ, "STAGER_NATIVE": native},
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert set(seen) <= {"good", "unprepared"}, (seen, done.stderr)
    assert seen["unprepared"]
    assert REASONS["unprepared"]  # the next prefetch tries it again


def test_retry_failed_tries_also_what_had_failed_for_good(place: Place) -> None:
    bad = place.root / "source" / "class000" / "000.jpg"
    good = bad.read_bytes()
    before = bad.stat()
    bad.write_bytes(b"\xff\xd8\xff" + b"x" * (len(good) - 3))
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert place.json("prefetch", code=3)["failed"] == 1
    bad.write_bytes(good)  # as if the decoder had been at fault: the object is the same version
    os.utime(bad, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert place.json("prefetch", code=3)["failed"] == 1
    with place.service():
        told = place.json("prefetch", "--retry-failed")
        assert (told["failed"], told["staged"]) == (0, 1)
        assert len(staged(place, "pets")) == 6
        service = Service(place.socket)
        job = ended(service, service.post("/jobs", {"dataset": "pets", "retry_failed": True})["id"])
        assert job["already"] == 6
