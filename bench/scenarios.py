"""The scenarios. Each is a function that runs all who take part, in alternation, and adds its rows."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bench.data import BUCKET, NO_SUM, PREFIX, Data
from bench.environments import Environment
from bench.harness import PIXEL_TOLERANCE, Bench
from bench.peers.common import cpu_s
from bench.rounds import Answer, Entry, Prepared
from bench.servers import BYTES_PER_S, DELAY_MS, SlowS3, images, running_service, slow_s3

TORCH_PEERS: Final = ("streaming", "litdata", "webdataset", "datasets")
WRITERS: Final = ("ffcv", "litdata", "streaming", "webdataset", "tensorflow")
COLD_PEERS: Final = ("streaming", "litdata", "webdataset")
IN_FLIGHT: Final = (64, 128, 256)
BUDGET_EPOCHS: Final = 5
BUDGET_MEMORY: Final = "12MB"  # for what does not fit; more would be a cache of its own
S3TORCH_WORKERS: Final = 16  # one GET at a time each: with two, it reads 53 samples/s
BARE_LOOP, LIBRARIES, SOURCE = "bare loop", "bare loop of libraries", "source"
RECIPE_256: Final = "resize = 256\ncrop = 256"


# prepare: from JPEGs to 224 px raw


def prepare(bench: Bench) -> None:
    data = bench.data.first(bench.scale.cold_samples)
    entries = [
        *bare_loops(bench, data),
        Entry("stager", "stager", partial(stage, bench, data)),
    ]
    for peer in bench.peers(*WRITERS):
        run = partial(bench.make_shards, peer, "raw", data)
        entries.append(Entry(peer.peer.title, peer.peer.name, run, rounds=1))
    bench.alternate("prepare", entries)


def bare_loops(bench: Bench, data: Data) -> list[Entry]:
    """The recipe on all cores, from memory: as stager has it, and by libraries alone, as anybody can."""
    task = bench.task(data)
    return [
        Entry(BARE_LOOP, "limit", partial(bench.ours, "decode", **task, is_native=True)),
        Entry(LIBRARIES, "limit", partial(bench.ours, "decode", **task, is_native=False)),
    ]


def stage(bench: Bench, data: Data) -> Answer:
    """A prefetch of everything into an empty cache, from an S3 server that is not slow."""
    root = bench.work / "prepare"
    shutil.rmtree(root, ignore_errors=True)
    with slow_s3(data.objects()) as s3, running_service(root, images(s3.endpoint_url)) as service:
        before = cpu_s(service.pid)
        with bench.memory_for(data):
            told = service.prefetch()
        used_s = cpu_s(service.pid) - before
        server_s = s3.stats()["cpu_s"]
    shutil.rmtree(root, ignore_errors=True)
    if told.get("problem") or told["staged"] != len(data):
        return {"problem": f"staged {told}"}
    seconds = told["seconds"]
    return {
        "rate": len(data) / seconds,
        "seconds": seconds,
        "bytes": told["bytes"],
        "service_memory_mb": service.peak_mb,
        "cpu_ms": 1000 * used_s / len(data),
        "server_cpu_ms": 1000 * server_s / len(data),
    }


# fetch: GETs alone


def fetch(bench: Bench) -> None:
    data = bench.data.first(bench.scale.cold_samples)
    with slow_s3(data.objects(), DELAY_MS) as s3, slow_s3(data.objects(has_sums=False), DELAY_MS) as old_s3:
        task = {"endpoint_url": s3.endpoint_url, "gets": bench.scale.gets}
        old = partial(bench.ours, "fetch", **{**task, "endpoint_url": old_s3.endpoint_url}, in_flight=64)
        entries = [Entry("stager, 64 in flight, MD5 only", "stager", old)]
        for many in IN_FLIGHT[:2] if bench.is_quick else IN_FLIGHT:
            entries.append(Entry(f"{many} / {DELAY_MS:.0f} ms", "limit", partial(_latency_limit, many)))
            ours = partial(bench.ours, "fetch", **task, in_flight=many)
            entries.append(Entry(f"stager, {many} in flight", "stager", ours))
        slow = {**task, "gets": bench.scale.gets // 3}
        for many in (32,) if bench.is_quick else (32, 64):
            theirs = partial(bench.ours, "fetch_boto3", **slow, in_flight=many)
            entries.append(Entry("boto3 in threads", "limit", theirs, f"{many} threads"))
        bench.alternate("fetch", entries)


def _latency_limit(in_flight: int) -> Answer:
    return {"rate": in_flight / (DELAY_MS / 1000)}


# cold: epoch 0 from a slow S3


def cold(bench: Bench) -> None:
    data = bench.data.first(bench.scale.cold_samples)
    task = bench.task(data, verb="cold")
    entries = [
        *bare_loops(bench, data),
        Entry(SOURCE, "limit", partial(source_limit, bench, data)),
        Entry("stager", "stager", partial(cold_stager, bench, data)),
    ]
    for peer in bench.peers(*COLD_PEERS):
        for store in ("jpeg", "raw"):
            who = f"{peer.peer.title}, {store if store == 'raw' else 'JPEG'} shards"
            run = partial(cold_shards, bench, peer, store, data, task)
            entries.append(Entry(who, peer.peer.name, run, rounds=1))
    for peer in bench.peers("s3torchconnector"):
        who = f"s3torchconnector, JPEG, {S3TORCH_WORKERS} workers"
        run = partial(cold_objects, bench, peer, data, task)
        entries.append(Entry(who, peer.peer.name, run, rounds=1))
    rows = bench.alternate("cold", entries)
    stager = next(row for row in rows if row.who == "stager")
    if not stager.problem:
        bench.check(rows, stager.told, PIXEL_TOLERANCE)
    bench.rows += [_lower_limit(rows, SOURCE, BARE_LOOP), _lower_limit(rows, SOURCE, LIBRARIES)]


def _lower_limit(rows: list[Prepared], *names: str) -> Prepared:
    """Epoch 0 cannot beat the slower of source and decoding."""
    limit = Prepared("cold", f"min({', '.join(names)})", "limit")
    rates = [row.figures.get("rate", []) for row in rows if row.who in names]
    limit.figures["rate"] = [min(pair) for pair in zip(*rates, strict=False)]
    return limit


def source_limit(bench: Bench, data: Data) -> Answer:
    """What comes through the same source when nothing is decoded."""
    with slow_s3(data.objects(), DELAY_MS, BYTES_PER_S) as s3:
        return bench.ours("fetch", endpoint_url=s3.endpoint_url, gets=len(data), in_flight=128)


def cold_stager(bench: Bench, data: Data) -> Answer:
    """Nothing is scanned or staged; the service runs, as it always does."""
    root = bench.work / "cold"
    shutil.rmtree(root, ignore_errors=True)
    with (
        slow_s3(data.objects(), DELAY_MS, BYTES_PER_S) as s3,
        running_service(root, images(s3.endpoint_url)) as service,
    ):
        config = service.environ()["STAGER_CONFIG"]
        before = cpu_s(service.pid)
        with bench.memory_for(data):
            answer = bench.ours("cold", **bench.task(data), workers=2, env={"STAGER_CONFIG": config})
        answer = with_stats(answer, s3) | {"service_memory_mb": service.peak_mb}
        answer["cpu_ms"] = 1000 * (cpu_s(service.pid) - before) / len(data)
    shutil.rmtree(root, ignore_errors=True)
    return answer


def cold_shards(bench: Bench, peer: Environment, store: str, data: Data, task: dict[str, Any]) -> Answer:
    """A peer's shards on the slow S3. For raw ones, the time of their preparation is told, too."""
    path, prepare_s = bench.shards_of(peer, store, data)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    objects = [
        (f"{BUCKET}/shards/{file.relative_to(path)}", file, f"{number:032x}", NO_SUM)
        for number, file in enumerate(files)
    ]
    cache = bench.work / "cold-cache"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    with slow_s3(objects, DELAY_MS, BYTES_PER_S) as s3:
        urls = [f"{s3.endpoint_url}/{path}" for path, *_ in objects if path.endswith(".tar")]
        more: dict[str, Any] = {
            "remote": f"s3://{BUCKET}/shards",
            "urls": urls,
            "endpoint_url": s3.endpoint_url,
        }
        more |= {"store": store, "cache": str(cache), "workers": 2}
        env = {"S3_ENDPOINT_URL": s3.endpoint_url, "AWS_ENDPOINT_URL": s3.endpoint_url}
        with bench.memory_for(data):
            answer = with_stats(bench.run(peer.peer.module, peer.python, task | more, **env), s3)
    shutil.rmtree(cache, ignore_errors=True)
    if not answer.get("problem") and store == "raw":
        answer["prepare_s"] = prepare_s
        answer["rate_with_preparation"] = len(data) / (answer["seconds"] + prepare_s)
    return answer


def cold_objects(bench: Bench, peer: Environment, data: Data, task: dict[str, Any]) -> Answer:
    """A GET a sample, in many workers: what a mount gives, too."""
    with slow_s3(data.objects(), DELAY_MS, BYTES_PER_S) as s3:
        keys = bench.work / "keys.tsv"
        keys.write_text("".join(f"{PREFIX}/{item.key}\t{item.label}\n" for item in data.items))
        more: dict[str, Any] = {"bucket": BUCKET, "keys": str(keys)}
        more |= {"endpoint_url": s3.endpoint_url, "workers": S3TORCH_WORKERS, "epochs": 1}
        return with_stats(bench.run(peer.peer.module, peer.python, task | more), s3)


def with_stats(answer: Answer, s3: SlowS3) -> Answer:
    """The answer, and what the server counted over both epochs."""
    stats = s3.stats()
    return answer | {
        "gets": stats["get"],
        "in_flight_max": stats["in_flight_max"],
        "source_bytes": stats["bytes"],
    }


# warm: staged 224 px crops, shuffled


def warm(bench: Bench) -> None:
    data = bench.data.first(bench.scale.warm_samples)
    timing = {"epochs_min": 1, "seconds_min": bench.scale.seconds_min, "augment": False}
    with bench.staged(data, "warm") as (env, pixels):
        task = bench.task(data, verb="warm", **timing)
        entries = []
        for threads in (1, 2):
            many = f"{threads} thread{'s' * (threads > 1)}"
            copy = partial(bench.ours, "copy", **bench.task(data, **timing), workers=threads)
            entries.append(Entry(f"memory copy, {many}", "limit", copy))
            mine = {**bench.task(data, **timing), "path": pixels["root"], "workers": threads, "env": env}
            entries.append(Entry(f"stager, {many}", "stager", partial(bench.ours, "warm", **mine)))
            for peer in bench.peers("ffcv"):
                entries.append(warm_entry(bench, peer, f"FFCV, {many}", data, task, pixels, threads))
        for workers in (0,) if bench.is_quick else (0, 2):
            mine = {**bench.task(data, **timing), "path": pixels["root"], "workers": workers, "env": env}
            loader = partial(bench.ours, "warm_data_loader", **mine)
            entries.append(Entry("stager in a DataLoader", "stager", loader, f"{workers} workers", rounds=2))
        memory = partial(bench.ours, "workers_memory", workers=4, env=env)
        entries.append(Entry("stager in 4 DataLoader workers", "stager", memory, rounds=1))
        for peer in bench.peers(*TORCH_PEERS):
            for workers in (0, 2):
                entries.append(warm_entry(bench, peer, peer.peer.title, data, task, pixels, workers))
        for peer in bench.peers("tensorflow"):
            entries.append(warm_entry(bench, peer, "tf.data, raw TFRecord", data, task, pixels, 2))
            entries.append(warm_entry(bench, peer, "tf.data, file cache", data, task, pixels, 2, "cache"))
            mine = {**task, "store": "stager", "path": pixels["root"], "workers": 2}
            ours = partial(bench.run, peer.peer.module, peer.python, mine, **env)
            entries.append(Entry("stager in TensorFlow", "stager", ours))
        rows = bench.alternate("warm", entries)
        bench.check(rows, pixels["seen"])
    bench.drop_shards()


def warm_entry(
    bench: Bench, peer: Environment, who: str, data: Data, task: dict[str, Any],
    pixels: dict[str, Any], workers: int, store: str = "raw",
) -> Entry:  # fmt: skip
    """A peer on the very pixels that stager staged."""

    def run() -> Answer:
        files = {name: pixels[name] for name in ("pixels", "labels")}
        path, _ = bench.shards_of(peer, "raw", data, **files)
        cache = bench.work / "tf-cache"
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        more = {"path": str(path), "store": store, "workers": workers, "cache": str(cache)}
        answer = bench.run(peer.peer.module, peer.python, task | more)
        shutil.rmtree(cache, ignore_errors=True)
        return answer

    is_far_behind = peer.peer.name != "ffcv"
    kind = "threads" if peer.peer.name in ("ffcv", "tensorflow") else "workers"
    return Entry(who, peer.peer.name, run, f"{workers} {kind}", rounds=2 if is_far_behind else None)


# augment: RandomResizedCrop and flip, from 256 px


def augment(bench: Bench) -> None:
    data = bench.data.first(bench.scale.augment_samples)
    for store, recipe in (("raw", RECIPE_256), ("jpeg", f'{RECIPE_256}\nencode = "jpeg"')):
        with bench.staged(data, f"augment-{store}", recipe) as (env, pixels):
            _augment(bench, data, store, env, pixels)
        bench.drop_shards()


def _augment(bench: Bench, data: Data, store: str, env: dict[str, str], pixels: dict[str, Any]) -> None:
    timing = {"epochs_min": 1, "seconds_min": bench.scale.seconds_min, "augment": True}
    task = bench.task(data, verb="warm", **timing)
    mine = {**bench.task(data, **timing), "path": pixels["root"], "workers": 2, "env": env}
    entries = [Entry(f"stager, {store}", "stager", partial(bench.ours, "warm", **mine))]
    for peer in bench.peers("ffcv"):

        def run(peer: Environment = peer) -> Answer:
            files = {name: pixels[name] for name in ("pixels", "labels")}
            path, _ = bench.shards_of(peer, store, data, **files)
            more = {"path": str(path), "store": store, "workers": 2}
            return bench.run(peer.peer.module, peer.python, task | more)

        entries.append(Entry(f"FFCV, {store}", "ffcv", run, rounds=2))
    rows = bench.alternate("augment", entries)
    for row in rows:  # random pixels: only their number, their labels and their mean can be compared
        if row.told:
            expected = {**pixels["seen"]}
            for name in ("pixel_sum", "by_label"):
                expected[name] = expected[name] * GRID_POINTS_224 // GRID_POINTS_256
            bench.check([row], expected, 0.02 + len(data) ** -0.5)


GRID_POINTS_224: Final = 14 * 14
GRID_POINTS_256: Final = 16 * 16


# budget: a cache that is smaller than the data


def budget(bench: Bench) -> None:
    data = bench.data.first(bench.scale.budget_samples)
    for percent in bench.scale.budgets:
        entry = Entry(f"cache of {percent} %", "stager", partial(epochs_in, bench, data, percent))
        bench.alternate("budget", [entry], rounds=1)


def epochs_in(bench: Bench, data: Data, percent: int) -> Answer:
    """One uniform job of some epochs on a cache of so much of the data."""
    row_bytes = 224 * 224 * 3 + 512
    root = bench.work / "budget"
    shutil.rmtree(root, ignore_errors=True)
    capacity = str(int(len(data) * row_bytes * percent / 100))
    with (
        slow_s3(data.objects()) as s3,
        running_service(root, images(s3.endpoint_url), capacity=capacity, memory=BUDGET_MEMORY) as service,
    ):
        config = service.environ()["STAGER_CONFIG"]
        task = bench.task(data, endpoint_url=s3.endpoint_url, epochs=BUDGET_EPOCHS, workers=2, batch=16)
        answer = bench.ours("epochs", **task, env={"STAGER_CONFIG": config})
    shutil.rmtree(root, ignore_errors=True)
    if answer.get("problem"):
        return answer
    least = (1 - percent / 100) * len(data)
    reads = answer.pop("reads")
    later = sum(reads[1:]) / (len(reads) - 1)
    told = {"reads": ", ".join(f"{count:,}" for count in reads), "samples_delivered": answer["samples"]}
    return {"reads_epoch_0": reads[0], "reads_later": later, "over_least": later / least, **told}


SCENARIOS: Final[dict[str, Callable[[Bench], None]]] = {
    "prepare": prepare,
    "fetch": fetch,
    "cold": cold,
    "warm": warm,
    "augment": augment,
    "budget": budget,
}
WEIGHTS: Final = {"prepare": 3, "fetch": 1, "cold": 5, "warm": 8, "augment": 3, "budget": 1}  # minutes or so
