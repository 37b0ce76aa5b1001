"""A config that is read again (SIGHUP, `systemctl reload`): taken whole, or not at all."""

import logging
import threading
from dataclasses import replace

from stager.config import Config, load_config
from stager.errors import StagerError
from stager.owner.owner import Owner
from stagerd import notify

log = logging.getLogger("stager")

_one_at_a_time = threading.Lock()  # and the last one finds the newest file


def reload_beside(owner: Owner) -> None:
    """Read the config again on a thread: neither the loop nor a signal handler waits for a disk."""
    threading.Thread(target=_reload, args=(owner,), name="reload", daemon=True).start()


def _reload(owner: Owner) -> None:
    with _one_at_a_time:
        notify.reloading()
        try:
            before = owner.cache.config
            config = _keep_places(before, load_config(before.path))
            owner.loop.events.call(lambda: owner.configure(config)).result()
            log.info("config reloaded path=%s %s", config.path, _told(before, config))
        except StagerError as error:
            log.error("config not reloaded, the one before stays error=%r try=%r", error.message, error.hint)
        finally:
            notify.ready()


def _keep_places(before: Config, config: Config) -> Config:
    """The config that we can go by without a restart: the cache and the socket stay where they are."""
    for name, old, new in (
        ("cache.dir", before.cache_dir, config.cache_dir),
        ("service.socket", before.socket, config.socket),
    ):
        if old != new:
            log.warning("%s stays %s until a restart; the config now says %s", name, old, new)
    return replace(config, cache_dir=before.cache_dir, socket=before.socket)


def _told(before: Config, config: Config) -> str:
    """What has changed, by the names of data sets."""
    old, new = before.datasets, config.datasets
    changed = [name for name in new if name in old and old[name] != new[name]]
    parts = {"added": new.keys() - old.keys(), "changed": changed, "removed": old.keys() - new.keys()}
    return " ".join(f"{what}={','.join(sorted(names)) or '-'}" for what, names in parts.items())
