"""A data set as stager.toml has it, to start from."""

import json
from collections.abc import Mapping
from typing import Any

from stager.check.trial import Trial
from stager.reader.values import SourceSpec

_ACCESS = ("endpoint_url", "region", "profile", "anonymous")


def config_for(name: str, source: SourceSpec, trial: Trial) -> str:
    """The tables of a data set by this name."""
    access = {key: value for key in _ACCESS if (value := getattr(source, key))}
    layout = {"layout": trial.layout} if trial.layout != "folder" else {}
    dataset = {"source": source.url, **access, **layout, **trial.options}
    key = json.dumps(name) if "." in name else name
    return f"[datasets.{key}]\n{_lines(dataset)}\n[datasets.{key}.recipe]\n{_lines(trial.recipe)}"


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else json.dumps(key)


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    """JSON's texts and numbers are TOML's, but for what JSON need not escape."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(of)}' for key, of in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value).replace("\x7f", "\\u007f")
