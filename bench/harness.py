"""The house of all scenarios: the data, the service, and what peers have prepared."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.data import Data
from bench.environments import Environment
from bench.memory import backed_memory
from bench.rounds import CHECKED, Answer, Prepared, Rounds, tell
from bench.servers import images, running_service, slow_s3

PIXEL_TOLERANCE: Final = 0.002  # decoders differ in the last bit
RAW_BYTES, JPEG_BYTES = 150_528, 111_000  # of a sample, about


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    warm_samples: int
    cold_samples: int  # also of `prepare`
    augment_samples: int
    budget_samples: int
    budgets: tuple[int, ...]  # per cent of the data
    gets: int
    seconds_min: float  # of one warm measurement
    peer_minutes: float  # then no further round of a peer is begun; in a quick run, no further peer


FULL: Final = Scale(3, 10_000, 6_000, 4_000, 1_000, (10, 25, 50, 75, 90), 6_000, 2.0, 17.0)
QUICK: Final = Scale(1, 2_000, 800, 800, 500, (50,), 2_000, 0.5, 1.5)


@dataclass(slots=True, kw_only=True)
class Bench(Rounds):
    """One run of the bench."""

    data: Data
    scale: Scale
    shards: dict[tuple[str, str, int], tuple[Path, float]] = field(default_factory=dict)

    # Runs

    def ours(self, verb: str, **task: Any) -> Answer:
        """Run one of our own tasks: stager's, or a limit's."""
        env = task.pop("env", {})
        return self.run("bench.peers.stager", sys.executable, {"verb": verb, **task}, **env)

    def check(self, rows: Sequence[Prepared], expected: Mapping[str, Any], tolerance: float = 0.0) -> None:
        """Mark those that did not deliver the same samples."""
        for row in rows:
            if row.problem or "samples" not in row.told:
                continue
            wrong = [
                f"{name} {row.told[name]:,} for {expected[name]:,}"
                for name in CHECKED
                if abs(row.told[name] - expected[name])
                > (tolerance * expected[name] if name in ("pixel_sum", "by_label") else 0)
            ]
            row.told["check"] = "; ".join(wrong) or "same samples"
            if wrong:
                self.notes.append(f"{row.scenario}, {row.who}: delivered other samples: {'; '.join(wrong)}")

    # What several scenarios need

    def task(self, data: Data, **more: Any) -> dict[str, Any]:
        return {"list": str(data.list_file()), "samples": len(data), **more}

    @contextmanager
    def staged(
        self, data: Data, name: str, recipe: str = ""
    ) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
        """A service with all of `data` staged, and the same pixels in a file: (its variables, the files)."""
        root = self.work / name
        with slow_s3(data.objects()) as s3, running_service(root, images(s3.endpoint_url, recipe)) as service:
            told = service.prefetch()
            if told.get("problem") or told.get("staged", 0) + told.get("already", 0) != len(data):
                raise RuntimeError(f"staging failed: {told}")
            files = {"pixels": str(root / "pixels.npy"), "labels": str(root / "labels.npy")}
            env = service.environ()
            seen = self.ours("export", **files, env={"STAGER_CONFIG": env["STAGER_CONFIG"]})
            if seen.get("problem"):
                raise RuntimeError(f"export: {seen['problem']}")
            yield (
                {"STAGER_CONFIG": env["STAGER_CONFIG"]},
                {**files, "seen": seen, "root": str(root / "cache")},
            )
        shutil.rmtree(root, ignore_errors=True)

    def memory_for(self, data: Data) -> AbstractContextManager[None]:
        """Whoever prepares these samples meanwhile finds memory for them, raw and as they came."""
        return backed_memory(len(data) * (RAW_BYTES + JPEG_BYTES))

    def make_shards(self, peer: Environment, store: str, data: Data, **more: Any) -> Answer:
        """Have a peer prepare its own files; `pixels` in `more`: from pixels, else from the JPEGs."""
        out = self.work / "shards" / f"{peer.peer.name}-{store}-{len(data)}"
        task = self.task(data, verb="prepare", store=store, out=str(out), **more)
        with self.memory_for(data):
            answer = self.run(peer.peer.module, peer.python, task)
        if not answer.get("problem"):
            self.shards[peer.peer.name, store, len(data)] = out, float(answer["seconds"])
        return answer

    def shards_of(self, peer: Environment, store: str, data: Data, **more: Any) -> tuple[Path, float]:
        """A peer's files, and the seconds their preparation took; made now if they are not there."""
        key = (peer.peer.name, store, len(data))
        if key not in self.shards:
            tell(f"{peer.peer.title}: preparing {len(data):,} samples, {store}")
            answer = self.make_shards(peer, store, data, **more)
            if answer.get("problem"):
                raise RuntimeError(f"preparing: {answer['problem']}")
        return self.shards[key]

    def drop_shards(self) -> None:
        """Remove all that peers have prepared."""
        self.shards.clear()
        shutil.rmtree(self.work / "shards", ignore_errors=True)
