"""stager.toml: where it is looked for, what it may say, and the limits nobody needs to set."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stager.errors import ConfigError, UsageError, nearest
from stager.layouts import LAYOUTS, OPTIONS, check_layout
from stager.reader.record import DatasetSpec, name_for_url
from stager.reader.settings import cache_dir_in, check_known, read_config, socket_in, table_in, text_in
from stager.reader.values import SourceSpec
from stager.recipes import check_recipe, open_recipe

SHARD_FORMATS: Final = ("auto", "arrow", "lmdb")

SHARD_BYTES: Final = 64 << 20  # a shard holds about this much
FIRST_SHARD_SAMPLES: Final = 64  # the first shards of a job are small: a reader soon has its first batch
PLAN_SAMPLES: Final = 32  # a plan reads this many samples to learn sizes and speed
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
_CACHE: Final = ("dir", "capacity", "reserve", "memory", "format")
_SERVICE: Final = ("socket",)
_ACCESS: Final = ("endpoint_url", "region", "profile", "anonymous")
_DATASET: Final = ("source", "layout", "recipe", *_ACCESS, *OPTIONS)
_UNITS: Final = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


@dataclass(frozen=True, slots=True)
class Amount:
    """So many bytes, or such a part of the disk."""

    bytes: int = 0
    fraction: float = 0.0

    def of(self, disk_bytes: int) -> int:
        return self.bytes + int(self.fraction * disk_bytes)


@dataclass(frozen=True, slots=True)
class Config:
    """What stager.toml says, with defaults for all it does not say."""

    path: Path | None
    cache_dir: Path
    socket: Path
    capacity: Amount = Amount(fraction=0.6)
    reserve: Amount = Amount(bytes=10 * 10**9)
    memory: Amount = Amount(bytes=256 * 10**6)  # for samples that do not fit and that a reader needs
    format: str = "auto"
    datasets: Mapping[str, DatasetSpec] = field(default_factory=dict)

    def dataset(self, name: str | None) -> DatasetSpec:
        """The data set of that name; without a name, the only one there is."""
        where = self.path or "any stager.toml"
        if name is None:
            if len(self.datasets) == 1:
                return next(iter(self.datasets.values()))
            if not self.datasets:
                raise UsageError(
                    f"no data set is named, and there is none in {where}",
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
        if target is None or not ("/" in target or target.startswith(("~", "."))):
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
    return Config(
        path=where,
        cache_dir=cache_dir_in(path, cache),
        socket=socket_in(path, service),
        capacity=_amount(path, "cache.capacity", cache.get("capacity", "60%")),
        reserve=_amount(path, "cache.reserve", cache.get("reserve", "10GB")),
        memory=_amount(path, "cache.memory", cache.get("memory", "256MB")),
        format=shard_format,
        datasets={name: _dataset(path, name, value) for name, value in datasets.items()},
    )


def source_url(text: str) -> str:
    """A URL as it is; a path made absolute, since the service has another working directory."""
    if "://" in text:
        return text
    return str(Path(text).expanduser().absolute())


def _recipe_suffix(recipe: Mapping[str, Any]) -> str:
    """Tells data sets of one URL apart: other pixels must not take over a name that somebody opens."""
    digest, default = (open_recipe(spec).digest for spec in (recipe, {}))
    return "" if digest == default else f"-{digest[:6]}"


def _dataset(path: Path, name: str, value: Any) -> DatasetSpec:
    where = f"datasets.{name}"
    table = table_in(path, where, value, _DATASET)
    if "source" not in table:
        raise ConfigError(
            f"{path}: {where} has no source", hint='add source = "s3://bucket/path" or a directory'
        )
    layout = text_in(path, f"{where}.layout", table.get("layout", "folder"))
    if layout not in LAYOUTS:
        raise ConfigError(f"{path}: {where}.layout is {layout!r}", hint=nearest(layout, LAYOUTS))
    anonymous = table.get("anonymous", False)
    if not isinstance(anonymous, bool):
        raise ConfigError(f"{path}: {where}.anonymous is {anonymous!r}", hint="use true or false")
    recipe = table.get("recipe", {})
    try:
        checked = check_recipe(table_in(path, f"{where}.recipe", recipe, None))
        optional = {
            key: text_in(path, f"{where}.{key}", table[key])
            for key in ("endpoint_url", "region", "profile")
            if key in table
        }
        url = source_url(text_in(path, f"{where}.source", table["source"]))
        options = check_layout(layout, {key: table[key] for key in OPTIONS if key in table})
        beside = path.absolute().parent / options.get("table", "")
        if beside.is_file():  # of this machine; else it is an object of the source
            options["table"] = str(beside)
        return DatasetSpec(name, SourceSpec(url, anonymous=anonymous, **optional), layout, checked, options)
    except ConfigError:
        raise
    except UsageError as error:
        raise ConfigError(f"{path}: {where}: {error.message}", error.hint) from None


def _amount(path: Path, where: str, value: Any) -> Amount:
    try:
        return parse_amount(value)
    except UsageError as error:
        raise ConfigError(f"{path}: {where}: {error.message}", error.hint) from None


def parse_amount(value: Any) -> Amount:
    """Bytes from 200GB, 1.5TiB or 1000000; a part of the disk from 60%."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[KMGT]I?B)?\s*", str(value).upper())
    if isinstance(value, bool) or match is None:
        raise UsageError(f"{value!r} is no amount", hint='use "200GB", "1.5TiB" or "60%"')
    number, unit = float(match[1]), match[2] or ""
    if unit == "%":
        if number > 100:
            raise UsageError(f"{value} is more than the disk", hint="use at most 100%")
        return Amount(fraction=number / 100)
    return Amount(bytes=int(number * _UNITS[unit]))
