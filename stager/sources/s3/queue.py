"""What a queue of bucket events says: its address, its messages, and which event of a key is the latest.

Pure: no message is asked for here. Events come at least once and in any order, so they are hints.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus, urlsplit

from stager.errors import UsageError

KEYS_MOST: Final = 100_000  # whose latest events are remembered; older ones may come again, as hints
ADDRESS_HINT: Final = (
    'write events = "sqs://QUEUE", "sqs://ACCOUNT/QUEUE", or its whole URL behind sqs://, as in '
    '"sqs://https://sqs.eu-central-1.amazonaws.com/123456789012/QUEUE"'
)
_QUEUE: Final = re.compile(r"(?:(?P<account>[0-9]{12})/)?(?P<name>[A-Za-z0-9_-]{1,80}(?:\.fifo)?)")
_AWS_HOST: Final = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_SEQUENCER: Final = re.compile(r"[0-9A-Fa-f]{1,64}")
# What an event is called, by the bucket itself and by EventBridge. All others change no bytes of an object.
_CREATED: Final = ("ObjectCreated:", "Object Created")
_REMOVED: Final = ("ObjectRemoved:", "LifecycleExpiration:", "Object Deleted")


class QueueAddress(NamedTuple):
    """Where a queue is. `endpoint`, `region`: if its URL says them."""

    name: str
    account: str = ""
    endpoint: str | None = None
    region: str | None = None

    @property
    def url(self) -> str:
        """Its whole URL; '': it must be asked for."""
        return f"{self.endpoint}/{self.account}/{self.name}" if self.endpoint and self.account else ""


class Event(NamedTuple):
    """An object was written, or is gone."""

    bucket: str
    key: str
    is_removed: bool
    sequencer: str = ""  # of the events of one key, the later has the greater one; '': it was not told


def parse_queue(url: str) -> QueueAddress:
    """The queue that `events = ` names. Raise UsageError if that is none."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() != "sqs" or not rest:
        raise UsageError(f"{url!r} is no queue", ADDRESS_HINT)
    parts = urlsplit(rest)
    if "@" in rest:
        raise UsageError("the queue has credentials in its URL", "set a profile, or AWS_ACCESS_KEY_ID")
    is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
    found = _QUEUE.fullmatch(parts.path.strip("/") if is_whole else rest)
    if found is None:
        raise UsageError(f"{url!r} is no queue", ADDRESS_HINT)
    name, account = found["name"], found["account"] or ""
    if not is_whole:
        return QueueAddress(name, account)
    on_aws = _AWS_HOST.fullmatch(parts.hostname or "")
    return QueueAddress(name, account, f"{parts.scheme}://{parts.netloc}", on_aws[1] if on_aws else None)


def events_of(body: str) -> list[Event] | None:
    """What a message says has changed in buckets: from S3 itself, by SNS or by EventBridge.

    None: it is no message of a bucket. [] if it is one, and no object's bytes have changed.
    """
    try:
        told = _object(json.loads(body))
        if told.get("Type") == "Notification" and "TopicArn" in told:  # SNS, unless it delivers it raw
            told = _object(json.loads(told["Message"]))
        if told.get("Event") == "s3:TestEvent":
            return []
        if told.get("source") == "aws.s3" and "detail-type" in told:
            return _of_bridge(told)
        return [event for record in told["Records"] for event in _of_record(_object(record))]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _of_record(record: Mapping[str, Any]) -> list[Event]:
    if not str(record["eventSource"]).endswith(":s3"):  # aws:s3, ceph:s3, minio:s3
        raise ValueError("no event of a bucket")
    told, what = record["s3"]["object"], str(record["eventName"]).removeprefix("s3:")
    key = unquote_plus(_text(told["key"]), errors="surrogateescape")
    return _changes(what, record["s3"]["bucket"], key, told)


def _of_bridge(told: Mapping[str, Any]) -> list[Event]:
    """EventBridge has its keys as they are."""
    detail = told["detail"]
    return _changes(
        str(told["detail-type"]), detail["bucket"], _text(detail["object"]["key"]), detail["object"]
    )


def _changes(what: str, bucket: Mapping[str, Any], key: str, told: Mapping[str, Any]) -> list[Event]:
    name, sequencer = _text(bucket["name"]), told.get("sequencer")
    if not isinstance(sequencer, str) or not _SEQUENCER.fullmatch(sequencer):
        sequencer = ""
    if what.startswith(_CREATED):
        return [Event(name, key, False, sequencer)]
    return [Event(name, key, True, sequencer)] if what.startswith(_REMOVED) else []


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no JSON object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError("no text")
    return value


def is_later(sequencer: str, known: str) -> bool:
    """Whether this event of a key came after that one. The shorter number lacks zeros on its right."""
    width = max(len(sequencer), len(known))
    return sequencer.upper().ljust(width, "0") > known.upper().ljust(width, "0")


class Latest:
    """The latest event of each key that was told of, as far as they are remembered."""

    def __init__(self, most: int = KEYS_MOST) -> None:
        self._most = most
        self._known: OrderedDict[str, str] = OrderedDict()  # key -> sequencer; the last heard of at the end

    def __len__(self) -> int:
        return len(self._known)

    def news(self, events: list[Event]) -> list[Event]:
        """Of each key its latest event, if it is later than what is known. What has no number always is."""
        latest: dict[str, Event] = {}
        for event in events:
            known = latest[event.key].sequencer if event.key in latest else self._known.get(event.key)
            if not event.sequencer or not known or is_later(event.sequencer, known):
                latest[event.key] = event
        return list(latest.values())

    def note(self, events: list[Event]) -> None:
        """These were told of."""
        for event in events:
            if event.sequencer:
                self._known[event.key] = event.sequencer
                self._known.move_to_end(event.key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
