"""Where a data set lies: as the service says, or, if none answers, where the config has its cache."""

import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stager.errors import NoService, ServiceSilent, StagerError, UsageError, WaitTimeout, nearest
from stager.reader.record import is_source, say_recipe_change
from stager.reader.service import Service
from stager.reader.settings import Settings

POLL_S: Final = 0.2
ANSWER_S: Final = 0.25  # that a service may take to say that the samples have not come in time
OPEN_WAIT_S: Final = 1.0  # for a service that hangs, where the data set can be opened without one


def find_dataset(service: Service, given: str, local: Path, timeout_s: float) -> Path:
    """The directory of a data set. `given`: what its reader calls it; `local`: where it is by the config."""
    name, deadline = local.name, time.monotonic() + timeout_s
    is_here = os.access(local / "dataset.json", os.F_OK)  # the cache may be somebody else's
    wait_s = min(timeout_s, OPEN_WAIT_S) if is_here else timeout_s
    try:
        return Path(service.get(f"/datasets/{name}", wait_s)["directory"])
    except NoService as error:
        if is_here:
            return local
        staged = [record.parent.name for record in local.parent.glob("*/dataset.json")]
        hint = _how_to_stage(given) if is_source(given) else nearest(given, staged)
        if not hint or isinstance(error, ServiceSilent):
            raise
        raise NoService(f"{given} is not staged, and {error.message}", hint=hint) from None
    except UsageError:
        _scan(service, name, deadline, timeout_s)
        return Path(service.get(f"/datasets/{name}", _left_s(deadline))["directory"])


def _how_to_stage(url: str) -> str:
    if "://" in url or Path(url).expanduser().is_dir():
        return f"stager prefetch {url}"
    return f"check the path: there is no directory {Path(url).expanduser().absolute()}"


def warn_of_other_recipe(name: str, settings: Settings, before: Mapping[str, Any]) -> None:
    """Say if what is staged is not what the config asks for: nothing is staged anew in silence.

    Keys that the config does not name are those of the recipe that is staged: only the service knows
    what they are by default.
    """
    changed = say_recipe_change(before, _with_defaults(settings.recipes.get(name, {}), before))
    if changed:
        warnings.warn(
            f"{name} is staged with another recipe than {settings.path} has ({changed}):"
            f" you read what is staged; to stage it anew: stager prefetch {name}",
            stacklevel=4,
        )


def _scan(service: Service, name: str, deadline: float, timeout_s: float) -> None:
    """Have the service look at a data set of its config for the first time."""
    began = time.monotonic()
    job = service.post("/jobs", {"dataset": name, "stop_after": "scan"}, _left_s(deadline))
    while job["state"] not in ("done", "failed", "cancelled"):
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"{name} was not scanned within {timeout_s:.0f} s",
                hint="stager status shows how far it is; open it again later",
            )
        waited_s = time.monotonic() - began
        time.sleep(min(0.01 + waited_s / 10, POLL_S))  # a small source is scanned soon
        job = service.get(f"/jobs/{job['id']}", _left_s(deadline))
    if job["error"]:
        raise StagerError(job["error"]["message"], job["error"]["hint"])


def _with_defaults(given: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's table, and for each of its tables of fields, with what is not given as it was before."""
    return {**before} | {key: _in_full(value, before.get(key)) for key, value in given.items()}


def _in_full(given: Any, before: Any) -> Any:
    """What a key says, written as in the recipe that is staged: there, 2 may be [2, 2, 2]."""
    if isinstance(given, Mapping):
        return _with_defaults(given, before if isinstance(before, Mapping) else {})
    if isinstance(before, list) and before and all(one == given for one in before):
        return before
    return given


def _left_s(deadline: float) -> float:
    """Until the deadline; a moment at least, so that an answer that is ready is taken."""
    return max(deadline - time.monotonic(), ANSWER_S)
