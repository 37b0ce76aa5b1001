"""A data set: where it comes from, how it is prepared, and where a reader finds it on disk."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from stager.errors import CacheError, StagerError, UsageError
from stager.reader.places import expanded
from stager.reader.shards import SUFFIXES
from stager.reader.values import Field, SourceSpec, canonical_json, digest_of

RECORD_FORMAT = 2
SHOWN_DIGITS: Final = 12  # of a version's digest: enough to name it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What a person asked for: a name, a source, a layout and a recipe (checked, with all defaults)."""

    name: str
    source: SourceSpec
    layout: str
    recipe: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the layout

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} cannot be the name of a data set",
                hint="use letters, digits, dots, dashes and underscores; start with a letter or digit",
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "DatasetSpec":
        source, options = SourceSpec(**value["source"]), value.get("options", {})
        return cls(value["name"], source, value["layout"], value["recipe"], options)


def is_source(text: str) -> bool:
    """Is it a URL or a path, and not the name of a data set?"""
    return "/" in text or text.startswith(("~", "."))


def source_url(text: str) -> str:
    """A URL as it is; a path made absolute, since the service has another working directory."""
    return text if is_url(text) else str(expanded(text).absolute())


def is_url(text: str) -> bool:
    """Whether a source is no path."""
    return "://" in text or text.startswith("python:")


def name_for_url(url: str) -> str:
    """The name of a data set that has no entry in the config: its last folder, and a few digits."""
    url = url.rstrip("/")
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", url.rsplit("/", 1)[-1]).strip(".-_") or "data"
    return f"{last[:80]}-{digest_of(url.encode('utf-8', 'surrogateescape'))[:6]}"


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """`dataset.json`: what a reader must know to open a data set without asking anyone."""

    spec: DatasetSpec
    recipe: str  # digest
    manifest: str  # digest of the newest one
    fields: tuple[Field, ...]
    lineage: str  # of the list of its samples
    segments: tuple[str, ...]  # the files of that list

    def to_text(self) -> str:
        value = {"format": RECORD_FORMAT, **asdict(self)}
        return canonical_json({**value, "sum": _sum(value)})

    def is_at(self, directory: Path) -> bool:
        """Is this what readers find there?"""
        try:
            return self.read(directory) == self
        except (StagerError, OSError):
            return False

    @classmethod
    def read(cls, directory: Path) -> "DatasetRecord":
        path = directory / "dataset.json"
        try:
            value = json.loads(path.read_text())
            if value["format"] != RECORD_FORMAT:
                raise CacheError(
                    f"{path} has format {value['format']}, this stager reads {RECORD_FORMAT}",
                    hint="use one version of stager for the service and the clients",
                )
            if value.pop("sum") != _sum(value):
                raise ValueError("its sum is another one")
            return cls(
                DatasetSpec.from_json(value["spec"]),
                value["recipe"],
                value["manifest"],
                tuple(Field.from_json({"axes": _axes_before(field), **field}) for field in value["fields"]),
                value["lineage"],
                tuple(value["segments"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CacheError(
                f"{path} cannot be read: {error}", hint="restart the service: it writes it anew"
            ) from None


def _axes_before(field: Mapping[str, Any]) -> str:
    """The axes of a field that does not say them: there were no others when fields did not."""
    return "HWC" if len(field["shape"]) == 3 else ""


def _sum(value: Mapping[str, Any]) -> str:
    """A digest of what a record says, so that a flipped bit is no other recipe."""
    return digest_of(canonical_json(value).encode())


def datasets_dir(cache_dir: Path) -> Path:
    return cache_dir / "datasets"


def manifest_path(directory: Path, manifest: str, lineage: str) -> Path:
    """A manifest's numbers are those of one list of samples: another list has another file of it."""
    return directory / f"manifest-{manifest}-{lineage[:16]}.arrow"


def kept_versions(directory: Path, record: DatasetRecord) -> dict[str, float]:
    """The manifests that are kept, the newest last, with the times at which they were found."""
    paths = directory.glob(manifest_path(directory, "*", record.lineage).name)
    at = {path.name.split("-")[1]: path.stat().st_mtime for path in paths}
    return {digest: at[digest] for digest in sorted(at, key=lambda one: (one == record.manifest, at[one]))}


def version_named(name: str, begin: str, kept: Iterable[str]) -> str:
    """The kept version whose digest begins like this. Raise UsageError if none does, or several do."""
    kept = list(kept)
    found = [digest for digest in kept if digest.startswith(begin)]
    if len(found) != 1:
        told = "no version" if not found else "more than one version"
        raise UsageError(
            f"{name} has {told} {begin!r}",
            hint="kept are " + ", ".join(digest[:SHOWN_DIGITS] for digest in kept),
        )
    return found[0]


def index_path(directory: Path, recipe: str, lineage: str) -> Path:
    return directory / f"index-{recipe[:16]}-{lineage[:16]}"


def segment_name(lineage: str, first: int, content: str) -> str:
    """The file of the records from number `first` on. No two lists of records ever share a name."""
    return f"samples-{lineage[:16]}-{first:010d}-{content[:8]}.arrow"


def shard_path(directory: Path, shard: int, shard_format: str) -> Path:
    """Where shard number `shard` is. Numbers are never used twice in a cache."""
    return directory / "shards" / f"{shard:08x}{SUFFIXES[shard_format]}"


def say_recipe_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which keys of two recipes differ, and how, or what in a function's code does; '' if none does."""
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return ", ".join(filter(None, (_say_change(key, old.get(key), new.get(key)) for key in changed)))


def _say_change(key: str, old: Any, new: Any) -> str:
    if key == "code" and old and new:
        from stager.reader.code.key import CodeKey, changes  # few readers ever need it

        return ", ".join(changes(CodeKey.from_json(old), CodeKey.from_json(new)))
    return f"{key} {old} -> {new}"
