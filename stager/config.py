"""stager.toml: where it is looked for, what it may say, and the limits nobody needs to set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from stager.errors import ConfigError, SourceSilent, UsageError, nearest
from stager.layouts import LAYOUTS, OPTIONS, check_layout, default_layout, recipe_table
from stager.mounts import is_there
from stager.reader.amount import Amount
from stager.reader.record import DatasetSpec, is_source, is_url, name_for_url, source_url
from stager.reader.settings import (
    CAPACITY,
    RESERVE,
    amount_in,
    cache_dir_in,
    check_known,
    place_in,
    read_config,
    socket_in,
    table_in,
    text_in,
)
from stager.reader.values import SourceSpec
from stager.recipes import beside, check_recipe, open_recipe
from stager.sources.s3.queue import parse_queue
from stager.timetable import NO_LIMIT, Timetable, parse_daily, parse_limit, parse_share
from stager.watch.interval import parse_interval

T = TypeVar("T")

MEMORY: Final = Amount(bytes=256 * 10**6)
SHARD_FORMATS: Final = ("auto", "arrow", "lmdb")

SHARD_BYTES: Final = 64 << 20  # a shard holds about this much
FIRST_SHARD_SAMPLES: Final = 64  # the first shards of a job are small: a reader soon has its first batch
PLAN_SAMPLES: Final = 32  # a plan reads this many samples to learn sizes and speed
PLAN_SAMPLES_MADE: Final = 5  # the same, if a person's function makes them: each may take minutes
PLAN_SCAN_S: Final = 300.0  # a plan takes a scan that is no older; whatever stages anything scans anew
FETCHES_IN_FLIGHT: Final = 160  # asked of sources, a worker process; sources/pace.py lets in as many as pay
FETCH_BYTES_IN_FLIGHT: Final = (
    24 << 20
)  # fetched and not yet prepared, a worker process: more leaves the cache
OBJECT_BYTES_MAX: Final = 512 << 20  # a larger object is no sample
TASKS_PER_WORKER: Final = 4  # a worker fetches for one shard while it prepares others; the first are small
THREADS_PER_WORKER: Final = 4  # prepare threads that share one worker process
STALL_S: Final = 120.0  # a worker that says nothing for so long is given up

_TOP: Final = ("cache", "service", "datasets")
_CACHE: Final = ("dir", "capacity", "reserve", "memory", "format", "hot")
_SERVICE: Final = ("socket", "limit", "cpu")
_ACCESS: Final = ("endpoint_url", "region", "profile", "anonymous")
_UPKEEP: Final = ("watch", "watch_every", "events", "limit", "refresh")
_DATASET: Final = ("source", "layout", "recipe", *_ACCESS, *OPTIONS, *_UPKEEP)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What the service does for a data set by itself. Nothing of it changes a sample."""

    events: str = ""  # the queue of its bucket's events, as sqs://QUEUE
    limit: Timetable = NO_LIMIT  # bytes a second, of its source
    refresh_at: int | None = None  # the minute of each day at which its source is looked at
    watch: bool = False
    watch_every_s: float | None = None  # None: what its kind of source is good for


@dataclass(frozen=True, slots=True)
class Config:
    """What stager.toml says, with defaults for all it does not say."""

    path: Path | None
    cache_dir: Path
    socket: Path
    capacity: Amount = CAPACITY
    reserve: Amount = RESERVE
    memory: Amount = MEMORY  # for samples that do not fit and that a reader needs
    format: str = "auto"
    hot: Amount | None = None  # of the capacity, for what is likely to be read
    datasets: Mapping[str, DatasetSpec] = field(default_factory=dict)
    upkeep: Mapping[str, Upkeep] = field(default_factory=dict)  # of each of them
    limit: Timetable = NO_LIMIT  # bytes a second, of all sources together
    cpu: Timetable = NO_LIMIT  # the part of all cores that prepares what no reader waits for

    def dataset(self, name: str | None) -> DatasetSpec:
        """The data set of that name; without a name, the only one there is."""
        where = self.path or "any stager.toml"
        if name is None:
            if len(self.datasets) == 1:
                return next(iter(self.datasets.values()))
            if not self.datasets:
                raise UsageError(
                    f"no data set was named, and there is none in {where}",
                    hint="name a URL (stager prefetch s3://bucket/path), or add [datasets.NAME] "
                    "with a source to stager.toml",
                )
            raise UsageError(
                f"{where} has {len(self.datasets)} data sets: which one?",
                hint="name one of " + ", ".join(sorted(self.datasets)),
            )
        if name not in self.datasets:
            raise UsageError(f"no data set {name!r} in {where}", hint=nearest(name, self.datasets))
        return self.datasets[name]

    def dataset_of_url(
        self, target: str | None, recipe: Mapping[str, Any], access: Mapping[str, Any]
    ) -> DatasetSpec | None:
        """For a URL or a path, the data set made up from it; None for the name of a data set."""
        if target is None or not is_source(target):
            if recipe or access:
                flag = next(iter({**recipe, **access})).replace("_", "-")
                raise UsageError(
                    f"--{flag} goes with a URL; a data set of the config has its own",
                    hint="change [datasets.NAME] in stager.toml, or name a URL",
                )
            return None
        url = source_url(target)
        checked = check_recipe(recipe)
        name = name_for_url(url) + _recipe_suffix(checked)
        return DatasetSpec(name, SourceSpec(url, **access), "folder", checked)


def load_config(explicit: Path | None = None) -> Config:
    """Read the config that applies here, or the defaults where there is none."""
    path, values = read_config(explicit)
    return parse_config(values, path)


def parse_config(values: Mapping[str, Any], where: Path | None) -> Config:
    path = where or Path("stager.toml")
    check_known(path, "", values, _TOP)
    cache = table_in(path, "cache", values.get("cache", {}), _CACHE)
    service = table_in(path, "service", values.get("service", {}), _SERVICE)
    datasets = table_in(path, "datasets", values.get("datasets", {}), None)
    shard_format = text_in(path, "cache.format", cache.get("format", "auto"))
    if shard_format not in SHARD_FORMATS:
        raise ConfigError(
            f"{path}: cache.format is {shard_format!r}", hint="use one of " + ", ".join(SHARD_FORMATS)
        )
    cache_dir = cache_dir_in(path, cache)
    return Config(
        path=where,
        cache_dir=cache_dir,
        socket=socket_in(path, service, cache_dir),
        capacity=amount_in(path, cache, "capacity", CAPACITY),
        reserve=amount_in(path, cache, "reserve", RESERVE),
        memory=amount_in(path, cache, "memory", MEMORY),
        format=shard_format,
        hot=amount_in(path, cache, "hot", Amount()) if "hot" in cache else None,
        datasets={name: _dataset(path, name, value) for name, value in datasets.items()},
        upkeep=_upkeep(path, datasets),
        limit=_checked(path, "service.limit", parse_limit, service.get("limit"), NO_LIMIT),
        cpu=_checked(path, "service.cpu", parse_share, service.get("cpu"), NO_LIMIT),
    )


def _is_beside(folder: Path, table: str) -> bool:
    """Whether a table is of this machine. Nobody waits long for a mount: one that hangs has it, then."""
    if Path(table).is_absolute():
        return True
    try:
        return is_there(str(folder / table))
    except SourceSilent:
        return True


def _recipe_suffix(recipe: Mapping[str, Any]) -> str:
    """Tells data sets of one URL apart: other pixels must not take over a name that somebody opens."""
    digest, default = (open_recipe(spec).digest for spec in (recipe, {}))
    return "" if digest == default else f"-{digest[:6]}"


def _upkeep(path: Path, datasets: Mapping[str, Any]) -> dict[str, Upkeep]:
    upkeep = {
        name: Upkeep(
            _events(path, name, value),
            _checked(path, f"datasets.{name}.limit", parse_limit, value.get("limit"), NO_LIMIT),
            _checked(path, f"datasets.{name}.refresh", parse_daily, value.get("refresh"), None),
            *_watch(path, name, value),
        )
        for name, value in datasets.items()
    }
    takers: dict[str, str] = {}
    for name, kept in upkeep.items():
        if kept.events and (other := takers.setdefault(kept.events, name)) != name:
            raise ConfigError(
                f"{path}: datasets.{name}.events is the queue of datasets.{other}, too",
                hint="a message goes to one of them only: give each a queue of its own (SNS or EventBridge "
                "sends to several)",
            )
    return upkeep


def _watch(path: Path, name: str, table: Mapping[str, Any]) -> tuple[bool, float | None]:
    """Whether a data set is watched, and how often it is looked at where nobody tells of changes."""
    where = f"datasets.{name}.watch"
    is_watched = table.get("watch", "events" in table)
    if not isinstance(is_watched, bool):
        raise ConfigError(f"{path}: {where} is {is_watched!r}", hint="use true or false")
    if is_watched and str(table["source"]).startswith("python:"):
        raise ConfigError(
            f"{path}: {where}: there is nothing to watch where a function makes the samples",
            hint="leave it out; stager refresh takes a changed function",
        )
    if "watch_every" not in table:
        return is_watched, None
    try:
        return is_watched, parse_interval(table["watch_every"])
    except UsageError as error:
        raise ConfigError(f"{path}: {where}_every: {error.message}", error.hint) from None


def _events(path: Path, name: str, table: Mapping[str, Any]) -> str:
    where = f"datasets.{name}.events"
    if "events" not in table:
        return ""
    queue = text_in(path, where, table["events"])
    if not str(table["source"]).lower().startswith("s3://"):
        raise ConfigError(f"{path}: {where}: only a bucket has events", hint="leave it out")
    _checked(path, where, parse_queue, queue, None)
    return queue


def _checked(path: Path, where: str, parse: Callable[[Any], T], value: Any, otherwise: T) -> T:
    """What a key says, by its parser; `otherwise`, if it is not there."""
    if value is None:
        return otherwise
    try:
        return parse(value)
    except UsageError as error:
        raise ConfigError(f"{path}: {where}: {error.message}", error.hint) from None


def _dataset(path: Path, name: str, value: Any) -> DatasetSpec:
    where = f"datasets.{name}"
    table = table_in(path, where, value, _DATASET)
    if "source" not in table:
        raise ConfigError(
            f"{path}: {where} has no source", hint='add source = "s3://bucket/path" or a directory'
        )
    source = text_in(path, f"{where}.source", table["source"])
    layout = text_in(path, f"{where}.layout", table.get("layout", default_layout(source)))
    if layout not in LAYOUTS:
        raise ConfigError(f"{path}: {where}.layout is {layout!r}", hint=nearest(layout, LAYOUTS))
    anonymous = table.get("anonymous", False)
    if not isinstance(anonymous, bool):
        raise ConfigError(f"{path}: {where}.anonymous is {anonymous!r}", hint="use true or false")
    table_in(path, f"{where}.recipe", table.get("recipe", {}), None)
    folder = path.absolute().parent
    try:
        checked = beside(check_recipe(recipe_table(layout, table)), folder)
        optional = {
            key: text_in(path, f"{where}.{key}", table[key])
            for key in ("endpoint_url", "region", "profile")
            if key in table
        }
        url = source if is_url(source) else str(place_in(path, source))
        options = check_layout(layout, {key: table[key] for key in OPTIONS if key in table})
        named = options.get("table", "")
        if named and _is_beside(folder, named):
            options["table"] = str(folder / named)  # of this machine; else it is an object of the source
        return DatasetSpec(name, SourceSpec(url, anonymous=anonymous, **optional), layout, checked, options)
    except ConfigError:
        raise
    except UsageError as error:
        raise ConfigError(f"{path}: {where}: {error.message}", error.hint) from None
