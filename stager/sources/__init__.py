"""Where objects come from. `open_source` is the way in; the modules beside it are the places we can read."""

from pathlib import Path
from urllib.parse import unquote

from stager.errors import StagerError, UsageError
from stager.interfaces import Source
from stager.reader.values import SourceSpec
from stager.sources.mount.asked import Asked
from stager.sources.mount.directory import DirectorySource
from stager.sources.nothing import NoObjects
from stager.sources.pace import PacedSource
from stager.sources.retry import RetryingSource
from stager.sources.threads import ThreadedSource


def open_source(spec: SourceSpec, asked: Asked | None = None) -> Source:
    """The source a spec names. Nothing is asked of it yet: what is wrong with it, its first verb tells.

    `asked` is told of all that is asked of a directory from then on.
    """
    scheme, _, _ = spec.url.partition("://")
    if not spec.url:
        raise UsageError("the source has no URL", hint="use s3://bucket/prefix, or a directory")
    if (directory := directory_of(spec)) is not None:
        return _asked_again(ThreadedSource(DirectorySource(directory, asked)))
    if scheme.lower() == "s3":
        return _asked_again(_open_s3(spec))
    if spec.url.startswith("python:"):
        return NoObjects()
    raise UsageError(
        f"stager does not read {scheme}:// sources", hint="use s3://bucket/prefix, or a directory"
    )


def directory_of(spec: SourceSpec) -> Path | None:
    """Where a source's directory is; None: it is no directory."""
    scheme, found, rest = spec.url.partition("://")
    if found:
        return _path_of(spec.url, rest) if scheme.lower() == "file" else None
    return None if spec.url.startswith("python:") else Path(spec.url)


def _asked_again(source: Source) -> Source:
    """With no more requests at a time than it takes, and again when it is busy."""
    return RetryingSource(PacedSource(source))


def _open_s3(spec: SourceSpec) -> Source:
    try:
        from stager.sources.s3.curl import CurlSource
    except ImportError as error:
        raise StagerError(
            f"S3 needs the package {error.name}, which is not installed",
            hint="pip install 'stager[service]'",
        ) from error
    return CurlSource(spec)


def _path_of(url: str, rest: str) -> Path:
    host, _, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise UsageError(f"{url}: this is on another machine", hint="mount it, and name the directory")
    return Path(unquote("/" + path))
