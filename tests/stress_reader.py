"""One reader of a stress: opens, reads epochs, compares each sample with its version, opens again.

    python stress_reader.py KIND DATASET ROOT SEED

ROOT has versions/ (what each scan may have seen), `adopted` and `began` (the last version that is surely
adopted, and the last that may be), and `stop`, which ends us. What we saw goes to readers/KIND-DATASET.json.
"""

import json
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import rows_kept
from stager.errors import StagerError
from versions_kept import cropped, image_of, key_of, said_by

TIMEOUT_S = 40.0
WRONG_MAX = 20  # told in full
CLASSES = ["c0", "c1", "c2", "c3", "c4"]
Batch = tuple[Any, list[int]]  # NHWC images, labels


@dataclass(slots=True)
class Seen:
    """What this reader saw in all its life; written out now and then."""

    path: Path
    samples: int = 0
    epochs: int = 0
    opens: int = 0
    flips: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    wrong_count: int = 0

    def tell(self) -> None:
        told = {name: getattr(self, name) for name in self.__slots__ if name != "path"}
        scratch = self.path.with_suffix(".part")
        scratch.write_text(json.dumps({**told, "at": time.time()}))
        scratch.rename(self.path)

    def add_wrong(self, what: str) -> None:
        self.wrong_count += 1
        if len(self.wrong) < WRONG_MAX:
            self.wrong.append(what)


class Expected:
    """What a reader may see that was opened between two moments: one version of those, always the same."""

    def __init__(self, root: Path, first: int, last: int) -> None:
        self.root = root
        self.began_at = time.time()
        paths = [root / "versions" / f"{number}.json" for number in range(first, last + 1)]
        self._versions = {path: json.loads(path.read_text()) for path in paths if path.exists()}
        self._names = [path.stem for path in self._versions]
        self._seen: dict[int, int] = {}
        self._side = 0

    def what_is_wrong(self, image: Any, label: int, flips: set[tuple[int, int]]) -> str:
        said = said_by(image)
        if said is None:
            return f"an image says nothing of itself, {np.mean(image == 0):.0%} are zeros (class {label})"
        number, content = said
        right = cropped(image_of(number, content), image.shape[0])
        differ = int(np.count_nonzero(image != right))
        if differ:
            told = f"{key_of(number)}: content {content}, but {differ} of {image.size} bytes are others"
            return "flipped" if differ == 1 and said in flips else told
        if CLASSES[label] != key_of(number).split("/")[0]:
            return f"{key_of(number)}: its label says {CLASSES[label]}"
        before = self._seen.setdefault(number, content), self._side or image.shape[0]
        self._side = before[1]
        if before != (content, image.shape[0]):
            now = content, image.shape[0]
            return f"{key_of(number)}: content and side {now}; this reader saw {before} before"
        return self._match(number, content)

    def _match(self, number: int, content: int) -> str:
        """Keep the versions that have such a sample; say so if there are none."""
        left = self._those_with(number, content)
        if len(left) < len(self._versions):  # one that is scanned just now may have got wider
            self._versions = {path: json.loads(path.read_text()) for path in self._versions}
            left = self._those_with(number, content)
        if not left:
            had = [version["contents"].get(str(number), []) for version in self._versions.values()]
            told = f"{key_of(number)}: content {content} at {self._side} pixels"
            return f"{told}; of the versions {self._names} are left {list(self._versions)}: {had}"
        self._versions = left
        return ""

    @staticmethod
    def number_of(image: Any) -> int:
        """Which object it says it is, or -1."""
        said = said_by(image)
        return said[0] if said else -1

    def lacking(self, numbers: list[int]) -> list[int]:
        """Of the objects that every version left has, those that are not among these."""
        known = [set(map(int, version["contents"])) for version in self._versions.values()]
        return sorted(set.intersection(*known) - set(numbers))

    def _those_with(self, number: int, content: int) -> dict[Path, Any]:
        return {
            path: version
            for path, version in self._versions.items()
            if content in version["contents"].get(str(number), []) and self._side in version["sides"]
        }


class ExpectedRows:
    """The same of a table: what each row says, and what the objects have that it names."""

    def __init__(self, root: Path, first: int, last: int) -> None:
        self.root = root
        paths = [root / "versions" / f"{number}.json" for number in range(first, last + 1)]
        self._paths = [path for path in paths if path.exists()]
        self._versions: dict[Path, Any] = {}
        self._ruled_out: set[tuple[Path, int]] = set()  # states of the table that ours is not
        self._seen: dict[str, int] = {}  # the content of each object
        self._look()

    def _look(self) -> None:
        """One that is scanned just now may have got wider."""
        self._versions = {path: json.loads(path.read_text()) for path in self._paths}

    def what_is_wrong(self, sample: Any, label: int, flips: set[tuple[int, int]]) -> str:
        wrong, shown = self._match(sample, label)
        if wrong:
            self._look()
            wrong, shown = self._match(sample, label)
        if wrong:
            return f"row {sample['who']}: {wrong}"
        for name, content in shown.items():
            if self._seen.setdefault(name, content) != content:
                return f"row {sample['who']}: {name} has content {content}; we saw {self._seen[name]} before"
        return ""

    def _match(self, sample: Any, label: int) -> tuple[str, dict[str, int]]:
        """Rule out the states of the table that have no such row; say why, if none is left."""
        said, shown, misfits = [], None, set()
        for path, version in self._versions.items():
            for at, table in enumerate(version["tables"]):
                if (path, at) in self._ruled_out:
                    continue
                row = table.get(str(sample["who"]))
                if row is None:
                    wrong, contents = "no such row", {}
                else:
                    about = rows_kept.LABELS[label], row, version["contents"]
                    wrong, contents = rows_kept.what_is_wrong(sample, *about)
                if wrong:
                    said.append(wrong)
                    misfits.add((path, at))
                else:
                    shown = contents
        if shown is None:
            return " / ".join(
                dict.fromkeys(said)
            ) or "no version is left that this reader may have opened", {}
        self._ruled_out |= misfits
        return "", shown

    def lacking(self, numbers: list[int]) -> list[int]:
        return []

    @staticmethod
    def number_of(sample: Any) -> int:
        """Which row it is."""
        return int(sample["who"])


AnyExpected = Expected | ExpectedRows


def samples_of(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """A batch of several fields and attributes, sample by sample."""
    plain = {name: _plain(column) for name, column in columns.items()}
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


def _plain(column: Any) -> Any:
    """Images with their channels last, numbers as Python has them; texts are already so."""
    if getattr(column, "ndim", 0) == 4:
        array = np.asarray(column)
        return array if array.shape[-1] == 3 else array.transpose(0, 2, 3, 1)
    return column.tolist() if hasattr(column, "tolist") else column


def batches(kind: str, name: str, draw: random.Random) -> Iterator[Any]:
    """Open a reader; yield its length, then an iterator a call, each of one epoch."""
    options = {"timeout_s": TIMEOUT_S, "skip_failed": draw.random() < 0.5}
    seed, size = draw.randrange(1000), draw.choice((3, 8, 16))
    if kind == "arrays":
        from stager_client.numpy import StagedArrays

        arrays = StagedArrays(name, size, shuffle=True, seed=seed, **options)
        yield len(arrays.loader.samples)
        while True:
            if name == "rows":
                yield ((samples_of(columns), labels.tolist()) for columns, labels in arrays)
            else:
                yield ((images, labels.tolist()) for images, labels in arrays)
    if kind == "tensorflow":
        from stager_client.tensorflow import staged_dataset

        dataset = staged_dataset(name, size, shuffle=True, seed=seed, **options)
        yield None
        while True:
            yield ((images.numpy(), labels.numpy().tolist()) for images, labels in dataset)
    from torch.utils.data import DataLoader

    from stager_client.torch import StagedDataset, StagedLoader

    data = StagedDataset(name, **options)
    yield len(data)
    if kind == "loader":
        loader: Any = StagedLoader(data, size, shuffle=True, seed=seed)
    else:
        workers = 2 if kind == "fork" else 1
        loader = DataLoader(data, size, shuffle=True, num_workers=workers, multiprocessing_context=kind)
    while True:
        if name == "rows":
            yield ((samples_of(columns), labels.tolist()) for columns, labels in loader)
        else:
            yield ((images.permute(0, 2, 3, 1).numpy(), labels.tolist()) for images, labels in loader)


def flips_since(root: Path, began_at: float) -> set[tuple[int, int]]:
    """The samples of which one bit was flipped on the disk at a time, and not yet repaired.

    Whoever touched them before may see it until then: the checksum is compared at the first touch.
    """
    lines = (root / "flips").read_text().splitlines() if (root / "flips").exists() else []
    flips = [json.loads(line) for line in lines]
    return {tuple(flip["sample"]) for flip in flips if not flip["until"] or flip["until"] > began_at}


def read_epoch(epoch: Iterator[Batch], expected: AnyExpected, seen: Seen, draw: random.Random) -> int:
    """Compare every sample; return how many different objects they were, if each came once; else 0."""
    began_at = time.time()
    numbers: list[int] = []
    pause_s = draw.choice((0, 0, 0.01, 0.03))
    for images, labels in epoch:
        flips = flips_since(expected.root, began_at)
        for image, label in zip(images, labels, strict=True):
            wrong = expected.what_is_wrong(image, label, flips)
            if wrong == "flipped":
                seen.flips += 1
            elif wrong:
                seen.add_wrong(wrong)
            seen.samples += 1
            numbers.append(expected.number_of(image))
        seen.tell()
        if (expected.root.parent / "stop").exists():
            return 0
        time.sleep(pause_s)
    if -1 in numbers:
        seen.add_wrong(f"this epoch lacked {[key_of(number) for number in expected.lacking(numbers)][:5]}")
    twice = [key_of(number) for number, count in Counter(numbers).items() if count > 1 and number >= 0]
    if twice:
        seen.add_wrong(f"{len(twice)} samples came twice in one epoch: {twice[:3]}")
    return len(numbers)


def number_in(path: Path) -> int:
    return int(path.read_text())


def run(kind: str, name: str, root: Path, seed: int) -> None:
    draw = random.Random(seed)
    seen = Seen(root / "readers" / f"{kind}-{name}.json")
    home = root / name
    while not (root / "stop").exists():
        first = number_in(home / "adopted")
        try:
            with closing(batches(kind, name, draw)) as reader:
                length = next(reader)
                expects = ExpectedRows if name == "rows" else Expected
                expected = expects(home, first, number_in(home / "began"))
                seen.opens += 1
                read_epochs(reader, length, expected, seen, draw)
        except Exception as error:
            seen.errors[kind_of(error)] += 1
        seen.tell()
        time.sleep(0.05)


def read_epochs(
    reader: Iterator[Any],
    length: int | None,
    expected: AnyExpected,
    seen: Seen,
    draw: random.Random,
) -> None:
    """Some epochs; after an error, half of the readers go on as a training that catches it would."""
    for _ in range(draw.randrange(1, 7)):
        if (expected.root.parent / "stop").exists():
            break
        try:
            with closing(next(reader)) as epoch:
                count = read_epoch(epoch, expected, seen, draw)
        except Exception as error:
            seen.errors[kind_of(error)] += 1
            if draw.random() < 0.5:
                break
            continue
        if count and length is not None and count != length:
            seen.add_wrong(f"an epoch had {count} samples, the reader said {length}")
        seen.epochs += 1


def kind_of(error: Exception) -> str:
    """What is wrong, without what differs each time. An error that is none of stager's goes on.

    That of a DataLoader's worker, or inside TensorFlow, has a traceback around it.
    """
    lines = [line for line in str(error).splitlines() if line.startswith("stager.errors.")]
    if not isinstance(error, StagerError) and not lines:
        raise error
    said = lines[-1].removeprefix("stager.errors.") if lines else f"{type(error).__name__}: {error}"
    words = ["..." if any(mark.isdigit() for mark in word) or "/" in word else word for word in said.split()]
    return " ".join(words)[:140]


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*is staged with another recipe.*")
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
