"""What the owner of a cache can be asked, as JSON: by the service's API, or by a command on its own."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stager import __version__, meter
from stager.cache import Cache, Dataset
from stager.check import check_books
from stager.dataset import datasets_dir, shard_path
from stager.errors import UsageError, nearest
from stager.index import is_resident, shard_of
from stager.job import Job, Request
from stager.manifest import Manifest
from stager.meter import Report, Totals
from stager.model import Numbers, decode_key, pack_numbers
from stager.ready import ready_json
from stager.recipes import check_installed
from stager.rows import ShardRow
from stager.sessions import Reading, Session
from stager.shards import FORMATS
from stager.staging import Staging
from stager.subset import Subset, draw
from stager.why import explain


@dataclass(frozen=True, slots=True)
class Part:
    """What a subset was of a manifest, worked out off the loop."""

    manifest: Manifest
    numbers: Numbers


class Owner:
    """Every method runs on the loop's thread and returns what can be sent as JSON."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.staging = Staging(cache)
        self.began_at = time.monotonic()

    # What is there

    def status(self, is_up: bool) -> dict[str, Any]:
        datasets = [row for row in self.datasets() if row["is_current"]]
        names = ("name", "samples", "resident", "bytes", "format", "failed")
        return {
            "service": {
                "up": is_up,
                "pid": os.getpid() if is_up else None,
                "version": __version__,
                "uptime_s": round(time.monotonic() - self.began_at, 1) if is_up else 0.0,
                "cache_dir": str(self.cache.directory),
            },
            "budget": self.cache.budget.to_json(),
            "datasets": [{name: row[name] for name in names} for row in datasets],
            "sessions": self.staging.sessions.to_json(),
            "jobs": [self._job_in_short(job) for job in self.staging.jobs.by_id.values() if job.id > 0],
        }

    def _job_in_short(self, job: Job) -> dict[str, Any]:
        """A job but for its classes: a hundred jobs with ten thousand each would be 10 MB."""
        return {name: value for name, value in self.job_json(job).items() if name != "classes"}

    def stats(self) -> dict[str, Any]:
        return meter.stats(self.cache.catalog)

    def datasets(self) -> list[dict[str, Any]]:
        """Every data set, and every recipe of it that still has shards."""
        rows = []
        for row in self.cache.catalog.datasets():
            held = self.cache.catalog.holdings(row.id)
            dataset = self.cache.datasets.get(row.name) if row.is_current else None
            resident, failed = dataset.counts() if dataset else (_count(self.cache.catalog.shards(row.id)), 0)
            rows.append(
                {
                    "name": row.name,
                    "is_current": row.is_current,
                    "source": self.cache.spec_of(row).source.url,
                    "recipe": self.cache.spec_of(row).recipe,
                    "recipe_digest": row.recipe,
                    "samples": len(dataset.manifest) if dataset else 0,
                    "classes": len(dataset.manifest.classes) if dataset else 0,
                    "resident": resident,
                    "failed": failed,
                    "pinned": _count(self.cache.catalog.pinned_shards(row.id)) if held.pinned else 0,
                    "shards": held.shards,
                    "bytes": held.bytes - self.cache.given_back(row.id),
                    "format": "+".join(held.formats) or "none",
                    "scanned_at": row.scanned_at,
                }
            )
        return rows

    def failures(self, name: str) -> list[dict[str, Any]]:
        dataset = self.dataset(name)
        return [
            {
                "dataset": name,
                "index": row.sample,
                "key": decode_key(row.key),
                "reason": row.reason,
                "detail": row.detail,
                "at": row.at,
            }
            for row in self.cache.catalog.failures(dataset.id)
        ]

    def classes(self, name: str) -> list[dict[str, Any]]:
        """The classes of a data set, with how much of each is resident."""
        manifest = self.dataset(name).manifest
        total = np.bincount(manifest.labels, minlength=len(manifest.classes))
        here = np.bincount(manifest.labels[self.dataset(name).resident()], minlength=len(manifest.classes))
        return [
            {"class": known, "samples": int(many), "resident": int(have)}
            for known, many, have in zip(manifest.classes, total, here, strict=True)
        ]

    def dataset(self, name: str) -> Dataset:
        if name not in self.cache.datasets:
            raise UsageError(
                f"nothing of {name!r} is staged here",
                hint=nearest(name, self.cache.datasets) or "stage it: stager prefetch",
            )
        return self.cache.datasets[name]

    def why(self, name: str, sample: str) -> dict[str, Any]:
        """All we know of one sample."""
        dataset = self.dataset(name)
        manifest = dataset.manifest
        number = manifest.find(sample)
        if number is None and sample.isdecimal() and int(sample) < len(manifest):
            number = int(sample)
        if number is None:
            raise UsageError(
                f"{name} has no sample {sample!r}", hint=f"a key, or a number below {len(manifest)}"
            )
        word = dataset.index.words[number : number + 1]
        resident, planned = bool(is_resident(word)[0]), self.staging.planned(dataset, np.asarray([number]))
        return {
            "dataset": name,
            "index": number,
            "key": manifest.key(number),
            "label": manifest.classes[manifest.labels[number]],
            "resident": resident,
            "shard": f"{int(shard_of(word)[0]):08x}" if resident else None,
            "version": manifest.infos([number])[0].version,
            "why": explain(self.cache, dataset, number, planned, self.staging.has_room(dataset)),
            "last": self.staging.last_miss(dataset, number),
        }

    # Jobs

    def prefetch(self, request: Request) -> dict[str, Any]:
        check_installed(request.spec.recipe)
        return self.job_json(self.staging.jobs.submit(request))

    def job(self, job_id: int) -> dict[str, Any]:
        """A job, also one that ended before the last start: whoever waits for it may have missed that."""
        job = self.staging.jobs.by_id.get(job_id)
        value = self.job_json(job) if job else self.cache.catalog.ended_job(job_id)
        if value is None:
            raise UsageError(f"there is no job {job_id}", hint="stager status lists the jobs")
        return value

    def cancel(self, job_id: int, finish: bool = False) -> dict[str, Any]:
        if job_id in self.staging.jobs.by_id:
            self.staging.jobs.cancel(self.staging.jobs.by_id[job_id], finish)
        return self.job(job_id)

    def job_json(self, job: Job) -> dict[str, Any]:
        told = job.to_json(0 if job.ended else self.staging.under_way(job))
        return told | {"ready": ready_json(told, meter.reader_rate(self.cache.catalog, told["dataset"]))}

    # Readers

    def want(
        self, name: str, manifest: str, samples: Iterable[int], corrupt: Iterable[int], wait_s: float
    ) -> "Future[dict[str, Any]]":
        dataset = self._opened(name, manifest)
        return self.staging.want(
            dataset, self._numbers(dataset, samples), self._numbers(dataset, corrupt), wait_s
        )

    def suspects(
        self, name: str, manifest: str, corrupt: Iterable[int]
    ) -> list[tuple[list[int], Path, list[int]]]:
        """The shards of samples that a reader calls corrupt: those samples, the file, its dead rows."""
        dataset = self._opened(name, manifest)
        samples = self._numbers(dataset, corrupt)
        words = dataset.index.words[samples]
        samples, numbers = samples[is_resident(words)], shard_of(words[is_resident(words)])
        found = []
        for number in np.unique(numbers).tolist():
            shard = self.cache.catalog.find_shard(number)  # None: it is in memory, or not durable yet
            if shard is not None:
                path = self.cache.path_of(dataset, shard)
                found.append((samples[numbers == number].tolist(), path, shard.dead_rows))
        return found

    def _opened(self, name: str, manifest: str) -> Dataset:
        dataset = self.dataset(name)
        if dataset.record.manifest != manifest:
            raise UsageError(f"{name} was scanned again since it was opened", hint="open the data set again")
        return dataset

    def asked_to_read(self, reading: Reading) -> Callable[[], Session]:
        """Check what a reader says of itself; return what makes a session of it.

        That takes a fifth of a second for a million samples and touches nothing of ours: off the loop.
        """
        dataset = self._opened(reading.dataset, reading.manifest)
        for order in reading.own_orders:
            self._in_range(dataset, order)
        room = self.staging.room_for(dataset)

        def make() -> Session:
            session = Session(reading, dataset)
            if session.missing > room:  # samples will have to make room for others
                session.look_ahead()
            return session

        return make

    def read_in_order(self, session: Session) -> dict[str, Any]:
        """Stage ahead of a reader whose order is known from now on."""
        reading = session.reading
        if self._opened(reading.dataset, reading.manifest) is not session.dataset:
            raise UsageError(f"{reading.dataset} was scanned again", hint="open the data set again")
        self.staging.sessions.register(session)
        return {"samples": len(session.order), "missing": session.missing}

    def heard(self, session: str, position: int) -> dict[str, Any]:
        return {"knows_order": self.staging.sessions.heard(session, position)}

    def report(self, value: Mapping[str, Any]) -> dict[str, Any]:
        dataset = self.dataset(value["dataset"])
        knows_order = True
        if value["position"] is not None:
            knows_order = self.staging.sessions.heard(value["session"], value["position"])
        dataset.reads.add(self._in_range(dataset, value["reads"]), time.time())
        report = {name: value[name] for name in ("dataset", "session", "process", "length", "epoch")}
        meter.absorb(self.cache.catalog, Report(**report, totals=Totals(**value["totals"])))
        return {"knows_order": knows_order}  # if not, we have been restarted: tell us again

    def _numbers(self, dataset: Dataset, samples: Iterable[int]) -> Numbers:
        return self._in_range(dataset, np.unique(np.fromiter(samples, dtype=np.int64)))

    def _in_range(self, dataset: Dataset, numbers: Numbers) -> Numbers:
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(dataset.manifest):
            raise UsageError(f"{dataset.name} has samples 0 to {len(dataset.manifest) - 1}")
        return numbers

    def reads(self, name: str) -> dict[str, Any]:
        """What was read lately, in order: the trace that `stager simulate` takes."""
        dataset = self.dataset(name)
        return {
            "dataset": name,
            "reads": pack_numbers(dataset.reads.trace()),
            "sample_bytes": self.staging.sample_bytes(dataset),
        }

    # Shards

    def evict(self, name: str, subset: Subset, part: Part | None = None) -> dict[str, Any]:
        """Take away the shards whose samples are all in the subset; pinned ones stay."""
        shards = self._shards(name, subset, part, whole=True)
        free = [shard for shard in shards if not shard.is_pinned]
        dataset = self.dataset(name)
        ours = [shard.samples[shard.samples >= 0] for shard in free if shard.dataset == dataset.id]
        if ours:
            dataset.reads.forget(np.concatenate(ours))  # or it would be staged again: it was hot
        freed = self.cache.evict(free, "evicted", "by stager evict")
        return {
            "dataset": name,
            "shards": len(free),
            "samples": _count(free),
            "bytes": freed,
            "pinned": len(shards) - len(free),
        }

    def pin(self, name: str, subset: Subset, pinned: bool, part: Part | None = None) -> dict[str, Any]:
        """Pin (or unpin) the shards that hold any sample of the subset."""
        shards = self._shards(name, subset, part, whole=False)
        self.cache.catalog.pin_shards([shard.number for shard in shards], pinned)
        if not pinned:
            self.staging.unpin(self.dataset(name))
        return {
            "dataset": name,
            "shards": len(shards),
            "samples": _count(shards),
            "bytes": sum(shard.bytes for shard in shards),
        }

    def _shards(self, name: str, subset: Subset, part: Part | None, whole: bool) -> list[ShardRow]:
        dataset = self.dataset(name)
        if subset == Subset():
            ids = [row.id for row in self.cache.catalog.datasets() if row.name == name]
            return [shard for dataset_id in ids for shard in self.cache.catalog.shards(dataset_id)]
        wanted = np.zeros(len(dataset.manifest) + 1, dtype=np.bool_)
        if part is None or part.manifest is not dataset.manifest:  # scanned again meanwhile
            part = Part(dataset.manifest, draw(dataset.manifest, subset).numbers)
        wanted[part.numbers] = True
        wanted[-1] = whole  # rows whose sample is gone (-1) hold no shard back
        test = np.all if whole else np.any
        return [shard for shard in self.cache.catalog.shards(dataset.id) if test(wanted[shard.samples])]

    # Verify

    def shard_paths(self) -> list[dict[str, Any]]:
        """Every shard that should be there and whole."""
        names = {row.id: row.name for row in self.cache.catalog.datasets()}
        return [
            {
                "shard": shard.number,
                "dataset": names[shard.dataset],
                "samples": len(shard.samples),
                "bytes": shard.bytes,
                "dead_rows": shard.dead_rows,
                "path": str(
                    shard_path(
                        datasets_dir(self.cache.directory) / names[shard.dataset],
                        shard.number,
                        FORMATS[shard.format].suffix,
                    )
                ),
            }
            for shard in self.cache.catalog.shards()
        ]

    def check_books(self) -> list[str]:
        return check_books(self.cache, self.staging.paths_under_way())

    def drop_bad(self, shards: Iterable[int]) -> dict[str, Any]:
        """Take bad shards away; what they held is staged again by a job of each data set."""
        wanted = set(shards)
        bad = [shard for shard in self.cache.catalog.shards() if shard.number in wanted]
        self.cache.evict(bad, "corrupt", "stager verify found it")
        self.staging.pin_again(bad)
        jobs = []
        for dataset in self.cache.datasets.values():
            lost = {int(sample) for shard in bad if shard.dataset == dataset.id for sample in shard.samples}
            if lost - {-1}:
                jobs.append(
                    self.staging.jobs.restage(dataset, np.asarray(sorted(lost - {-1}), dtype=np.int64)).id
                )
        return {"dropped": len(bad), "jobs": jobs}


def _count(shards: Iterable[ShardRow]) -> int:
    return sum(int((shard.samples >= 0).sum()) for shard in shards)
