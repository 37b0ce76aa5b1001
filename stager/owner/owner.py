"""What the owner of a cache can be asked, as JSON: by the service's API, or by a command on its own."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stager import __version__
from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.verify import check_books
from stager.catalog.rows import ShardRow
from stager.errors import UsageError
from stager.jobs.job import Job, Request
from stager.jobs.start_time import ready_json
from stager.owner import meter
from stager.owner.explain import explain
from stager.owner.loop import Loop
from stager.owner.readers import Readers
from stager.reader.index import is_resident, shard_of
from stager.reader.record import datasets_dir, shard_path
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Collection, Runs, is_among
from stager.reader.samples.subset import Subset, draw
from stager.reader.values import Numbers, decode_key, pack_numbers
from stager.recipes import check_installed


@dataclass(frozen=True, slots=True)
class Part:
    """What a subset was of a manifest, worked out off the loop."""

    manifest: Manifest
    numbers: Collection


class Owner:
    """Every method runs on the loop's thread and returns what can be sent as JSON."""

    def __init__(self, cache: Cache, loop: Loop | None = None, is_service: bool = False) -> None:
        self.cache, self.clock, self.is_service = cache, cache.clock, is_service
        self.loop = loop or Loop(cache)
        self.readers = Readers(cache, self.loop)
        self.began_at = self.clock.now()

    # What is there

    def status(self) -> dict[str, Any]:
        datasets = [row for row in self.datasets() if row["is_current"]]
        names = ("name", "samples", "resident", "bytes", "format", "failed")
        return {
            "service": {
                "up": self.is_service,
                "pid": os.getpid() if self.is_service else None,
                "version": __version__,
                "uptime_s": round(self.clock.now() - self.began_at, 1) if self.is_service else 0.0,
                "cache_dir": str(self.cache.directory),
                "native": self.loop.native,
            },
            "budget": self.cache.budget.to_json(),
            "datasets": [{name: row[name] for name in names} for row in datasets],
            "sessions": self.loop.sessions.to_json(),
            "jobs": [self._job_in_short(job) for job in self.loop.jobs.by_id.values() if job.id > 0],
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
            dataset = self.cache.open[row.id]
            resident, failed = dataset.counts()
            rows.append(
                {
                    "name": row.name,
                    "is_current": row.is_current,
                    "source": dataset.spec.source.url,
                    "recipe": dataset.spec.recipe,
                    "recipe_digest": row.recipe,
                    "samples": len(dataset.manifest),
                    "classes": len(dataset.manifest.classes),
                    "resident": resident,
                    "failed": failed,
                    "pinned": _count(self.cache.catalog.pinned_shards(row.id)) if held.pinned else 0,
                    "shards": held.shards,
                    "bytes": held.bytes - self.cache.departures.given_back(row.id),
                    "format": "+".join(held.formats) or "none",
                    "scanned_at": row.scanned_at,
                }
            )
        return rows

    def failures(self, name: str) -> list[dict[str, Any]]:
        dataset = self.dataset(name)
        rows = self.cache.catalog.failures(dataset.id)
        places = dataset.manifest.places_of(np.asarray([row.sample for row in rows], dtype=np.int64))
        return [
            {
                "dataset": name,
                "index": place,
                "key": decode_key(row.key),
                "reason": row.reason,
                "detail": row.detail,
                "at": row.at,
            }
            for row, place in zip(rows, places.tolist(), strict=True)
            if place >= 0
        ]

    def classes(self, name: str) -> list[dict[str, Any]]:
        """The classes of a data set, with how much of each is resident."""
        dataset = self.dataset(name)
        manifest = dataset.manifest
        total, places = manifest.class_sizes(), manifest.places_of(dataset.resident())
        here = np.bincount(manifest.labels_at(places[places >= 0]), minlength=len(manifest.classes))
        return [
            {"class": known, "samples": int(many), "resident": int(have)}
            for known, many, have in zip(manifest.classes, total, here, strict=True)
        ]

    def dataset(self, name: str) -> Dataset:
        return self.cache.named(name)

    def why(self, name: str, sample: str) -> dict[str, Any]:
        """All we know of one sample."""
        dataset = self.dataset(name)
        manifest = dataset.manifest
        place = manifest.find(sample)
        if place is None and sample.isdecimal() and int(sample) < len(manifest):
            place = int(sample)
        if place is None:
            raise UsageError(
                f"{name} has no sample {sample!r}", hint=f"a key, or a number below {len(manifest)}"
            )
        number = int(manifest.numbers[place])
        word = dataset.index.words[number : number + 1]
        resident, planned = bool(is_resident(word)[0]), self.loop.planned(dataset, np.asarray([number]))
        return {
            "dataset": name,
            "index": place,
            "key": manifest.key(place),
            "label": manifest.classes[int(manifest.labels_at(np.asarray([place]))[0])],
            "resident": resident,
            "shard": f"{int(shard_of(word)[0]):08x}" if resident else None,
            "version": dataset.records.infos([number])[0].version,
            "why": explain(self.cache, dataset, number, planned, self.loop.has_room(dataset)),
            "last": self.loop.last_miss(dataset, number),
        }

    # Jobs

    def prefetch(self, request: Request) -> dict[str, Any]:
        check_installed(request.spec.recipe)
        return self.job_json(self.loop.jobs.submit(request))

    def job(self, job_id: int) -> dict[str, Any]:
        """A job, also one that ended before the last start: whoever waits for it may have missed that."""
        job = self.loop.jobs.by_id.get(job_id)
        value = self.job_json(job) if job else self.cache.catalog.ended_job(job_id)
        if value is None:
            raise UsageError(f"there is no job {job_id}", hint="stager status lists the jobs")
        return value

    def cancel(self, job: int, finish: bool = False) -> dict[str, Any]:
        if job in self.loop.jobs.by_id:
            self.loop.jobs.cancel(self.loop.jobs.by_id[job], finish)
        return self.job(job)

    def job_json(self, job: Job) -> dict[str, Any]:
        told = job.to_json(self.clock.now(), 0 if job.ended else self.loop.under_way(job))
        told["scanned"] = self.loop.scanned(job)
        return told | {"ready": ready_json(told, meter.reader_rate(self.cache.catalog, told["dataset"]))}

    # Shards

    def reads(self, name: str) -> dict[str, Any]:
        """What was read lately, in order: the trace that `stager simulate` takes."""
        dataset = self.dataset(name)
        return {
            "dataset": name,
            "reads": pack_numbers(dataset.heat.trace()),
            "sample_bytes": self.loop.sample_bytes(dataset),
        }

    def evict(self, name: str, subset: Subset, part: Part | None = None) -> dict[str, Any]:
        """Take away the shards whose samples are all in the subset; pinned ones stay."""
        shards = self._shards_of(name, subset, part, whole=True)
        free = [shard for shard in shards if not shard.is_pinned]
        dataset = self.dataset(name)
        ours = [shard.samples[shard.samples >= 0] for shard in free if shard.dataset == dataset.id]
        if ours:
            dataset.heat.forget(np.concatenate(ours))  # or it would be staged again: it was hot
        freed = self.cache.departures.evict(free, "evicted", "by stager evict")
        return {
            "dataset": name,
            "shards": len(free),
            "samples": _count(free),
            "bytes": freed,
            "pinned": len(shards) - len(free),
        }

    def pin(self, name: str, subset: Subset, pinned: bool, part: Part | None = None) -> dict[str, Any]:
        """Pin (or unpin) the shards that hold any sample of the subset."""
        shards = self._shards_of(name, subset, part, whole=False)
        self.cache.catalog.pin_shards([shard.number for shard in shards], pinned)
        if not pinned:
            self.loop.unpin(self.dataset(name))
        return {
            "dataset": name,
            "shards": len(shards),
            "samples": _count(shards),
            "bytes": sum(shard.bytes for shard in shards),
        }

    def _shards_of(self, name: str, subset: Subset, part: Part | None, whole: bool) -> list[ShardRow]:
        dataset = self.dataset(name)
        if subset == Subset():
            ids = [row.id for row in self.cache.catalog.datasets() if row.name == name]
            return [shard for dataset_id in ids for shard in self.cache.catalog.shards(dataset_id)]
        if part is None or part.manifest is not dataset.manifest:  # scanned again meanwhile
            part = Part(dataset.manifest, draw(dataset.manifest, subset).numbers)
        known = part.numbers if isinstance(part.numbers, Runs) else np.sort(part.numbers)
        return [
            shard
            for shard in self.cache.catalog.shards(dataset.id)
            if _is_of(shard.samples[shard.samples >= 0], known, dataset.manifest, whole)
        ]

    # Verify

    def shards(self) -> list[dict[str, Any]]:
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
                        shard.format,
                    )
                ),
            }
            for shard in self.cache.catalog.shards()
        ]

    def problems(self) -> list[str]:
        """Where catalog, index and disk disagree."""
        return check_books(self.cache, self.loop.paths_under_way())

    def drop_bad(self, shards: Iterable[int]) -> dict[str, Any]:
        """Take bad shards away; what they held is staged again by a job of each data set."""
        wanted = set(shards)
        bad = [shard for shard in self.cache.catalog.shards() if shard.number in wanted]
        self.cache.departures.evict(bad, "corrupt", "stager verify found it")
        self.loop.pin_again(bad)
        jobs = []
        for dataset in self.cache.datasets.values():
            rows = [shard.samples for shard in bad if shard.dataset == dataset.id]
            lost = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *rows]))
            lost = lost[lost >= 0]
            lost = lost[dataset.manifest.has(lost)]
            if len(lost):
                jobs.append(self.loop.jobs.restage(dataset, lost).id)
        return {"dropped": len(bad), "jobs": jobs}


def _is_of(samples: Numbers, known: Collection, manifest: Manifest, whole: bool) -> bool:
    """Whether all samples of a shard, or any, are known ones. One that has gone holds no shard back."""
    is_known = is_among(samples, known)
    return bool(np.all(is_known | ~manifest.has(samples)) if whole else np.any(is_known))


def _count(shards: Iterable[ShardRow]) -> int:
    return sum(int((shard.samples >= 0).sum()) for shard in shards)
