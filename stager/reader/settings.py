"""What a reader takes of stager.toml: the cache and the socket; and the limits that both sides keep."""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stager.errors import ConfigError, UsageError, nearest
from stager.reader.amount import Amount, parse_amount
from stager.reader.places import config_paths, default_cache_dir, default_socket, expanded

CAPACITY: Final = Amount(fraction=0.6)
RESERVE: Final = Amount(bytes=10 * 10**9)
WANT_WAIT_S: Final = 20.0  # one `want` call waits at most this long; clients ask again
WANT_SAMPLES_MAX: Final = 16_384  # one `want` call asks for at most so many; clients ask again
ORDER_NUMBERS_MAX: Final = 16_000_000  # of an order of one's own that a client tells, both epochs together
REPORT_READS_MAX: Final = 500_000  # sample numbers in one report, of a reader without an order: the last
REPORT_EVERY_S: Final = 1.0  # clients report counts, the service saves them


def find_config(explicit: Path | None = None) -> Path | None:
    """The first stager.toml of the places we look in."""
    if explicit is None and os.environ.get("STAGER_CONFIG"):
        explicit = Path(os.environ["STAGER_CONFIG"])
    if explicit is not None:
        if not os.path.isfile(explicit):  # noqa: PTH113
            raise ConfigError(f"{explicit}: there is no such file", hint="check --config and $STAGER_CONFIG")
        return explicit
    # Not Path.is_file(): it raises where we may not look, as in the home of somebody else after `sudo -u`.
    return next((path for path in config_paths() if os.path.isfile(path)), None)  # noqa: PTH113


def table_in(path: Path, where: str, value: Any, known: Collection[str] | None) -> dict[str, Any]:
    """A table of the config, with no other keys than these. Raise ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {where} must be a table, not {value!r}", hint=f"write [{where}]")
    if known is not None:
        check_known(path, f"{where}.", value, known)
    return value


def check_known(path: Path, prefix: str, values: Mapping[str, Any], known: Collection[str]) -> None:
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {prefix}{key}", hint=nearest(key, known))


def text_in(path: Path, where: str, value: Any) -> str:
    """A text that is not empty. Raise ConfigError."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{path}: {where} must be a text, not {value!r}", hint="put it in quotes")
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """What a reader takes of stager.toml."""

    path: Path | None
    cache_dir: Path
    socket: Path
    capacity: Amount
    reserve: Amount
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by data set, as they are written


def read_config(explicit: Path | None = None) -> tuple[Path | None, dict[str, Any]]:
    """The stager.toml that applies here, and what it says; nothing, where there is none."""
    path = find_config(explicit)
    if path is None:
        return None, {}
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint="it must be TOML") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="check who may read it") from None


def load_settings(explicit: Path | None = None) -> Settings:
    """What a reader must know of the config that applies here. The service checks the rest."""
    path, values = read_config(explicit)
    where = path or Path("stager.toml")
    cache = table_in(where, "cache", values.get("cache", {}), None)
    service = table_in(where, "service", values.get("service", {}), None)
    datasets = table_in(where, "datasets", values.get("datasets", {}), None)
    tables = {name: table_in(where, f"datasets.{name}", value, None) for name, value in datasets.items()}
    recipes = {name: table.get("recipe", {}) for name, table in tables.items()}
    cache_dir = cache_dir_in(where, cache)
    return Settings(
        *(path, cache_dir, socket_in(where, service, cache_dir)),
        amount_in(where, cache, "capacity", CAPACITY),
        amount_in(where, cache, "reserve", RESERVE),
        recipes,
    )


def cache_dir_in(path: Path, cache: Mapping[str, Any]) -> Path:
    """Where the cache is: as written, or the account's own place."""
    if "dir" not in cache:
        return default_cache_dir()
    return place_in(path, text_in(path, "cache.dir", cache["dir"]))


def place_in(path: Path, text: str) -> Path:
    """A path that stager.toml names. It starts at the folder of that file, wherever a command runs."""
    return path.absolute().parent / expanded(text)


def amount_in(path: Path, cache: Mapping[str, Any], name: str, otherwise: Amount) -> Amount:
    """Bytes or a part of the disk. Raise ConfigError."""
    if name not in cache:
        return otherwise
    try:
        return parse_amount(cache[name])
    except UsageError as error:
        raise ConfigError(f"{path}: cache.{name}: {error.message}", error.hint) from None


def socket_in(path: Path, service: Mapping[str, Any], cache_dir: Path) -> Path:
    """Where the service listens: as written, or where it follows from the cache."""
    if "socket" not in service:
        return default_socket(cache_dir)
    return place_in(path, text_in(path, "service.socket", service["socket"]))
