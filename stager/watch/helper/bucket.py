"""A bucket whose events come through a queue: each is a hint."""

import threading
from collections.abc import Callable, Sequence

from stager.errors import StagerError
from stager.reader.values import SourceSpec
from stager.sources.s3.events import BucketEvents, Change
from stager.watch.hint import EVERYTHING, Hint
from stager.watch.messages import Beat, FromWatcher, Hinted, Watching


def watch_bucket(
    source: SourceSpec, events: str, say: Callable[[FromWatcher], None], beat_every_s: float
) -> None:
    """Tell of each change, until the process is killed. A queue that cannot be read is told of, too."""
    threading.Thread(target=_beat, args=(say, beat_every_s), name="beat", daemon=True).start()

    def hint(changes: Sequence[Change]) -> None:
        say(Hinted(Hint.of_keys(change.key for change in changes)))

    def told(error: StagerError | None) -> None:
        say(Watching("events", note=error.message if error is not None else ""))

    say(Watching("events"))
    say(Hinted(EVERYTHING))
    BucketEvents(source, events).follow(hint, told, threading.Event())


def _beat(say: Callable[[FromWatcher], None], every_s: float) -> None:
    rest = threading.Event()
    while not rest.wait(every_s):
        say(Beat())
