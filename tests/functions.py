"""Functions of a person's, as tests write them: a module beside stager.toml, and a helper that it uses."""

from pathlib import Path
from typing import Any

HELPER = """
FACTOR = 2.0


def scaled(values, scale):
    return values * (scale * FACTOR)
"""
# What each index above 10 does is in the name of a test of test_generated.py.
SIMULATOR = """
import os
import signal
import sys
import time

import numpy as np

from simhelper import scaled

CALLS = os.environ.get("SIM_CALLS", "")
CHILD = os.environ.get("SIM_IMPORTS", "")


def note(path, text):
    if path:
        with open(path, "a") as file:
            file.write(f"{text}\\\\n")


note(CHILD, os.getpid())


def sequence(index, seed, variant=0, scale=1.0, wait_s=0.0, bad=True):
    note(CALLS, index)
    print("simulating", index)
    time.sleep(wait_s)
    rng = np.random.default_rng([seed, index, variant])
    pose = scaled(rng.standard_normal((25, 6)), scale).astype("float32")
    if bad and index in BAD:
        return BAD[index](pose)
    return {"pose": pose, "index": np.int64(index)}


def raises(pose):
    raise ValueError("the angle is 400")


def in_a_helper(pose):
    return np.stack([pose, pose[:3]])


def forks_and_hangs(pose):
    os.fork()
    time.sleep(1000)


BAD = {
    17: raises,
    18: lambda pose: {"pose": pose[:3], "index": np.int64(0)},
    19: lambda pose: {"pose": pose.astype("float64"), "index": np.int64(0)},
    20: lambda pose: {"pose": pose},
    21: lambda pose: sys.exit("enough"),
    22: lambda pose: os._exit(3),
    23: forks_and_hangs,
    24: lambda pose: np.ones(10**11),
    25: lambda pose: os.kill(os.getpid(), signal.SIGKILL),
    26: lambda pose: {"pose": pose, "index": object()},
    27: in_a_helper,
}


def doubled(data, *more):
    return {"values": np.frombuffer(data, np.uint8)[:4].astype("int32") * 2, "more": np.int64(len(more))}


def picky(data, *more):
    if len(data) < 4:
        raise ValueError("too short")
    return doubled(data, *more)
"""
FIELDS = {"pose": {"dtype": "float32", "shape": [25, 6]}, "index": {"dtype": "int64", "shape": []}}


def write_functions(folder: Path) -> None:
    (folder / "simulator.py").write_text(SIMULATOR.replace("\\\\", "\\"))
    (folder / "simhelper.py").write_text(HELPER)


def generated(name: str = "motion", recipe: str = "", **keys: Any) -> str:
    """The tables of a data set of generated samples."""
    told = {"source": '"python:simulator:sequence"', "count": 10, **keys}
    lines = "".join(f"{key} = {value}\n" for key, value in told.items())
    fields = 'pose = { dtype = "float32", shape = [25, 6] }, index = { dtype = "int64", shape = [] }'
    return f"\n[datasets.{name}]\n{lines}[datasets.{name}.recipe]\nfields = {{ {fields} }}\n{recipe}\n"
