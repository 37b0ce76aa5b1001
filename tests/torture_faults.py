"""A prefetch from an S3 server under each of its faults: right bytes or a clear error, and an exit code.

The faults are all that faultserver.py has, whatever is added there, and some of ours: bytes that are wrong in
the middle of a pixel, which no decoder finds. The images are BMP, which have no checksum of their own.
"""

import inspect
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faultserver
from faultserver import BUCKET, Fault, FaultServer, error, fault_server, good
from images import encode
from running import Place
from sets import table
from stager.errors import StagerError
from versions_kept import CROP_A, SIDE, image_of, key_of, said_by, what_is_wrong
from warm import command, forked, warm_up

COUNT = 40
ALWAYS = 50  # more often than anyone asks
VICTIMS = (3, 17, 31)
COMMAND_S = 400.0
ROW_40 = 54 + 40 * SIDE * 3  # where a row of a BMP begins that every crop has
HANGING = ("stalled", "silent", "dripping")  # each takes a minute or more to be given up
WRONG = ("wrong, the same", "wrong, each time another")
RANGED = ("another_part", "deaf_to_ranges")  # ours are too small to be asked for in ranges
ERRORS = {
    "403": error(403, "AccessDenied"),
    "404": error(404, "NoSuchKey"),
    "412": error(412, "PreconditionFailed"),
    "429": error(429, "SlowDown"),
    "500": error(500, "InternalError"),
    "503": error(503, "SlowDown"),
    "expired": error(400, "ExpiredToken", "The provided token has expired."),
    "skewed": error(403, "RequestTimeTooSkewed"),
    "without a body": error(502, ""),
}


def wrong_inside(draw: Callable[[], int]) -> Fault:
    """One byte of a pixel is another, at a place that is drawn for each answer; length and ETag are right."""

    def fault(answer: Any, body: bytes, etag: str) -> None:
        at = ROW_40 + 20 * 3 + draw()
        good(answer, body[:at] + bytes([body[at] ^ 64]) + body[at + 1 :], etag)

    return fault


def faults(seed: int) -> dict[str, Fault]:
    """Every fault, by name."""
    drawn = random.Random(seed)
    found = {
        name: value
        for name, value in inspect.getmembers(faultserver, inspect.isfunction)
        if value.__module__ == faultserver.__name__ and is_fault(value) and name not in RANGED
    }
    same, new = wrong_inside(lambda: 7), wrong_inside(lambda: drawn.randrange(60))
    return {**found, **ERRORS, WRONG[0]: same, WRONG[1]: new}


def is_fault(function: Callable[..., Any]) -> bool:
    """Whether it takes what a fault takes: answer, body, etag."""
    names = [name.lstrip("_") for name in inspect.signature(function).parameters]
    return names == ["answer", "body", "etag"] and not function.__name__.startswith("_")


class Faults:
    """One server with images, and a new cache for each case."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed = root, seed
        self.draw = random.Random(seed)
        self.version = {number: number + 1 for number in range(COUNT)}
        self.objects = {
            key_of(number).replace(".png", ".bmp"): encode(image_of(number, content), "BMP")
            for number, content in self.version.items()
        }
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        warm_up("stager_client.torch")

    def cases(self) -> list[tuple[str, str, int]]:
        """Fault, where, how often: the listing or objects, a few times or always. Seeded order."""
        names = faults(self.seed)
        cases = [
            (name, where, times)
            for name in names
            for where in ("", "/", "objects")
            for times in (1, ALWAYS)
            if times == 1 or (where != "/" and name not in HANGING)
            if where == "objects" or name not in WRONG  # nothing tells that a listing is wrong
        ]
        self.draw.shuffle(cases)
        return cases

    def case(self, name: str, where: str, times: int) -> None:
        place = Place(self.root / f"case-{self.counts['cases']}")
        place.root.mkdir()
        with fault_server() as server:
            server.objects = dict(self.objects)
            server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up
            access: dict[str, str | bool] = {"endpoint_url": server.endpoint_url, "anonymous": True}
            place.configure(table("data", f"s3://{BUCKET}", CROP_A, **access))
            self._arm(server, faults(self.seed)[name], where, times)
            problems = self._look(place)
        self.counts["cases"] += 1
        self.counts["bad cases"] += bool(problems)
        often = "always" if times == ALWAYS else f"{times} times"
        told = f"{name} of {where or 'the listing'}, {often}"
        self.failures += [f"{told}: {what}" for what in problems[:2]]

    def _arm(self, server: FaultServer, fault: Fault, where: str, times: int) -> None:
        if where == "objects":
            for victim in VICTIMS:
                server.fail(key_of(victim).replace(".png", ".bmp"), *[fault] * times)
        else:
            server.fail(where, *[fault] * times)

    def _look(self, place: Place) -> list[str]:
        arguments = ("--config", str(place.config))
        began = time.monotonic()
        ended = forked(command("prefetch", "data", "--json", *arguments), COMMAND_S)
        self.counts[f"exit {ended.code}"] += 1
        problems = [ended.wrong] if ended.wrong else []
        if ended.code not in (0, 1, 3):
            problems.append(f"exit {ended.code}: {ended.said[-700:]}")
        if ended.code == 1 and "stager: " not in ended.said and '"error"' not in ended.said:
            problems.append(f"an error that says nothing: {ended.said[-700:]}")
        told = json.loads(ended.said.splitlines()[-1]) if ended.code in (0, 3) else {}
        if ended.code == 0 and (told["wanted"], told["staged"]) != (COUNT, COUNT):
            problems.append(f"done, it says, with {told['staged']} of {told['wanted']}, there are {COUNT}")
        if ended.code == 3 and told["wanted"] != COUNT:
            problems.append(f"{told['wanted']} wanted, there are {COUNT}")
        self.counts["seconds"] += round(time.monotonic() - began)
        self.counts["over 60 s"] += time.monotonic() - began > 60
        if ended.code in (0, 3):
            read = forked(lambda: read_what_is_there(place, self.version), 60)
            problems += [read.wrong or read.said[-700:]] if read.wrong or read.code else []
            self.counts["compared"] += COUNT
        return problems


def read_what_is_there(place: Place, version: dict[int, int]) -> int:
    """In a process of its own, without a service: each sample is right, or an error says it is not there."""
    from stager_client.torch import StagedDataset

    os.environ["STAGER_CONFIG"] = str(place.config)
    data = StagedDataset("data", timeout_s=0.005)
    wrong = []
    for position in range(len(data)):
        try:
            image, label = data[position]
        except StagerError:
            continue
        pixels = image.permute(1, 2, 0).numpy()
        what = what_is_wrong(pixels, label, version)
        said = said_by(pixels)
        if not what and (
            said is None or key_of(said[0]).replace(".png", ".bmp") != data.samples.key(position)
        ):
            what = f"{data.samples.key(position)} has the image of {said}"
        wrong += [what] if what else []
    print(wrong)
    return int(bool(wrong))


def run_faults(
    root: Path, seed: int, seconds: float, with_hanging: bool = True, share: tuple[int, int] = (0, 1)
) -> Faults:
    """Wrong bytes first, then all cases of a share once, in seeded order, as far as the time goes."""
    one = Faults(root, seed)
    deadline = time.monotonic() + seconds
    cases = [case for case in one.cases() if with_hanging or case[0] not in HANGING]
    cases.sort(key=lambda case: case[0] not in WRONG)
    cases = cases[share[0] :: share[1]]
    for done, case in enumerate(cases):
        if time.monotonic() > deadline and done >= len(WRONG) * 2:
            one.counts["cases left out for time"] = len(cases) - done
            break
        one.case(*case)
    return one
