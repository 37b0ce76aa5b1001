"""What the owner of a cache can be asked, as JSON: by the service's API, or by a command on its own."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stager.cache.cache import Cache
from stager.cache.dataset import Dataset
from stager.cache.verify import check_books
from stager.catalog.rows import ShardRow
from stager.config import Config
from stager.dispatch.pool import WorkerPool
from stager.errors import UsageError
from stager.jobs.job import Job, Request
from stager.jobs.start_time import ready_json
from stager.owner import meter
from stager.owner.explain import explain
from stager.owner.heat.heats import heat_json
from stager.owner.loop import Loop
from stager.owner.memos import Memos
from stager.owner.readers import Readers
from stager.owner.upkeep.daily import DailyLooks
from stager.owner.upkeep.limits import LimitsInForce
from stager.owner.upkeep.renames import Renames
from stager.owner.view import View, count
from stager.owner.watches import Watches
from stager.reader.index import is_resident, shard_of
from stager.reader.record import datasets_dir, shard_path
from stager.reader.samples.changes import compare
from stager.reader.samples.manifest import Manifest
from stager.reader.samples.runs import Collection, Runs, is_among
from stager.reader.samples.subset import Subset, draw
from stager.reader.values import Numbers, pack_numbers
from stager.recipes import check_installed


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """What a subset was of a manifest, worked out off the loop."""

    manifest: Manifest
    numbers: Collection


class Owner(View):
    """Every method runs on the loop's thread and returns what can be sent as JSON."""

    def __init__(self, cache: Cache, loop: Loop | None = None, is_service: bool = False) -> None:
        super().__init__(cache, cache.departures.given_back)
        self.cache, self.clock, self.is_service = cache, cache.clock, is_service
        self.loop = loop or Loop(cache, partial(WorkerPool, gives_way=is_service))
        self.readers = Readers(cache, self.loop)
        self.memos = Memos(cache, self.loop.give_way)
        self._renames = Renames(cache, self.loop.removals)
        self.watches = Watches(cache, self.loop.jobs, self.loop.events)
        self._limits = LimitsInForce(cache, self.loop.pool)
        self._daily = DailyLooks(cache, self.loop.jobs, lambda name: self.refresh(name, "take"))
        self.began_at = self.clock.now()

    def step(self, timeout_s: float) -> None:
        """Go on with all that is under way, and begin what time has come for."""
        self._limits.look()
        if self.is_service:
            self._daily.look()
        self.loop.step(timeout_s)
        self.watches.step()

    def stop(self) -> None:
        """Stop watching and staging."""
        self.watches.stop()
        self.loop.stop()

    # What is there

    def status(self) -> dict[str, Any]:
        told = super().status()
        told["service"]["native"] = self.loop.pool.native
        if self.is_service:
            uptime_s = round(self.clock.now() - self.began_at, 1)
            told["service"] |= {"up": True, "pid": os.getpid(), "uptime_s": uptime_s}
        told["limits"] = self._limits.to_json()
        told["hot"] = self.loop.hot.to_json() if self.cache.config.hot else None
        known = {name: dataset.spec for name, dataset in self.cache.datasets.items()}
        specs = {**known, **self.cache.config.datasets}.values()
        told["hung"] = [hung for spec in specs if (hung := self.loop.places.to_json(spec))]
        told["sessions"] = self.loop.sessions.to_json()
        for row in told["datasets"]:
            row["watch"] = self.watches.to_json(row["name"])
        told["jobs"] = [self._job_in_short(job) for job in self.loop.jobs.by_id.values() if job.id > 0]
        return told

    def datasets(self) -> list[dict[str, Any]]:
        return [row | {"frozen": self.watches.frozen(row["name"])} for row in super().datasets()]

    def _job_in_short(self, job: Job) -> dict[str, Any]:
        """A job but for its classes: a hundred jobs with ten thousand each would be 10 MB."""
        return {name: value for name, value in self.job_json(job).items() if name != "classes"}

    def versions(self, name: str) -> list[dict[str, Any]]:
        """The versions of a data set that are kept, the newest last, and how many sessions read each."""
        dataset, readers = self.dataset(name), self.loop.leases.readers_of(name)
        resident = dataset.resident()
        rows = []
        for digest, found_at in dataset.versions().items():
            manifest = dataset.version(digest)
            rows.append(
                {
                    "dataset": name,
                    "version": digest,
                    "is_newest": manifest is dataset.manifest,
                    "found_at": found_at,
                    "samples": len(manifest),
                    "classes": len(manifest.classes),
                    "resident": int(np.count_nonzero(manifest.has(resident))),
                    "readers": readers[digest],
                }
            )
        return rows

    def two_versions(self, name: str, before: str, after: str) -> tuple[Manifest, Manifest]:
        """Two versions that are kept, by the beginning of their digests."""
        dataset = self.dataset(name)
        return dataset.version_named(before), dataset.version_named(after)

    def compare(self, name: str, before: str, after: str) -> dict[str, Any]:
        """What one version has and the other has not."""
        return compare(*self.two_versions(name, before, after)).to_json()

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
            "why": explain(self.cache, dataset, place, planned, self.loop.has_room(dataset)),
            "last": self.loop.last_miss(dataset, number),
        }

    def heat(self, name: str) -> dict[str, Any]:
        """What of a data set is read most, and what of that is resident."""
        return heat_json(self.dataset(name), self.clock.wall())

    def configure(self, config: Config) -> None:
        """Go by this config from now on."""
        self.cache.reconfigure(config)
        self._renames.follow()

    # Jobs

    def resume(self) -> None:
        """Begin as a service: take up its jobs, and what is staged under names that have changed."""
        self._renames.follow()
        self.loop.jobs.resume()

    def prefetch(self, request: Request) -> dict[str, Any]:
        check_installed(request.spec.recipe)
        self.loop.removals.check(request.spec.name)
        self._renames.follow(request.spec.name)
        return self.job_json(self.loop.jobs.submit(request))

    def stage_hot(self, name: str | None) -> dict[str, Any]:
        """Stage what is hot and missing, of a data set or of all: a job each, as far as there is room."""
        if name is not None:
            self.dataset(name)
        found = self.loop.hot.now(name)
        jobs = [self.loop.jobs.restage(dataset, np.sort(samples)) for dataset, samples in found]
        return {"jobs": [self.job_json(job) for job in jobs]}

    def refresh(self, name: str, how: str) -> dict[str, Any]:
        """Look at the source of a data set again: as the config has it now, else as it was staged."""
        spec = self.cache.config.datasets.get(name) or self.dataset(name).spec
        return self.prefetch(Request(spec, Subset(), "auto", is_local=not self.is_service, refresh=how))

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
            "sample_bytes": self.loop.sizes.mean_row_bytes(dataset),
        }

    def evict(self, name: str, subset: Subset, part: DrawnPart | None = None) -> dict[str, Any]:
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
            "samples": count(free),
            "bytes": freed,
            "pinned": len(shards) - len(free),
        }

    def remove(self, name: str, force: bool) -> dict[str, Any]:
        """Forget a data set, with all that is staged of it; `is_gone` says whether that is done."""
        for dataset in self.cache.of_name(name):
            self.loop.pins.forget(dataset)
        return self.loop.removals.remove(name, force)

    def pin(self, name: str, subset: Subset, pinned: bool, part: DrawnPart | None = None) -> dict[str, Any]:
        """Pin (or unpin) the shards that hold any sample of the subset."""
        shards = self._shards_of(name, subset, part, whole=False)
        self.cache.catalog.pin_shards([shard.number for shard in shards], pinned)
        if not pinned:
            self.loop.pins.forget(self.dataset(name))
        return {
            "dataset": name,
            "shards": len(shards),
            "samples": count(shards),
            "bytes": sum(shard.bytes for shard in shards),
        }

    def _shards_of(self, name: str, subset: Subset, part: DrawnPart | None, whole: bool) -> list[ShardRow]:
        dataset = self.dataset(name)
        if subset == Subset():
            ids = [row.id for row in self.cache.catalog.datasets() if row.name == name]
            return [shard for dataset_id in ids for shard in self.cache.catalog.shards(dataset_id)]
        if part is None or part.manifest is not dataset.manifest:  # scanned again meanwhile
            part = DrawnPart(dataset.manifest, draw(dataset.manifest, subset).numbers)
        known = part.numbers if isinstance(part.numbers, Runs) else np.sort(part.numbers)
        return [
            shard
            for shard in self.cache.catalog.shards(dataset.id)
            if _is_of(shard.samples[shard.samples >= 0], known, dataset.manifest, whole)
        ]

    # Kept results

    def kept_results(self) -> list[dict[str, Any]]:
        return self.memos.rows()

    def why_memo(self, name: str) -> dict[str, Any]:
        return self.memos.why(name)

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
        return check_books(self.cache, self.loop.paths_under_way() | self._limits.paths())

    def drop_bad(self, shards: Iterable[int]) -> dict[str, Any]:
        """Take bad shards away; what they held is staged again by a job of each data set."""
        wanted = set(shards)
        bad = [shard for shard in self.cache.catalog.shards() if shard.number in wanted]
        self.cache.departures.evict(bad, "corrupt", "stager verify found it")
        self.loop.pins.put(bad)
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
