"""Events of a bucket, from a queue of SQS: hints that objects have changed. What has, a listing says.

A message is deleted when its hint was delivered, and not before: a hint is given at least once, and an event
that is older than one already told of is dropped. What is no message of a bucket stays in the queue, for it
may be somebody else's.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from stager.errors import StagerError, UsageError
from stager.reader.values import SourceSpec
from stager.sources.s3.errors import QUEUE_VERDICTS, our_errors
from stager.sources.s3.queue import Event, Latest, events_of, parse_queue
from stager.sources.s3.source import LIMITS, split_url

log = logging.getLogger("stager")

WAIT_S: Final = 20.0  # of one long poll: SQS allows no more
ANSWER_S: Final = 10.0  # beyond that, for the answer to come
MESSAGES_MOST: Final = 10  # of one poll: SQS gives no more
STRANGERS_REST_S: Final = 1.0  # when a poll brought nothing but what is not ours: it comes at once
RESTS_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # after errors in a row
REGION_OF_OTHERS: Final = "us-east-1"  # servers that are not Amazon's have none


class Change(NamedTuple):
    """An object of the source, by its key there, was written or is gone."""

    key: str
    is_removed: bool


@dataclass(frozen=True, slots=True)
class Received:
    """What one poll brought. `done` takes it when its changes were told of."""

    changes: tuple[Change, ...]
    events: tuple[Event, ...]  # that the changes are
    receipts: tuple[tuple[str, str], ...]  # of messages that may go then: an id and a handle each
    strangers: int  # messages that are of no bucket, and stay


class BucketEvents:
    """The events below one prefix of a bucket. Nothing is asked before the first `receive`."""

    def __init__(self, spec: SourceSpec, queue: str) -> None:
        """`spec`: the source, whose credentials, region and server count. `queue`: `events` of the config."""
        self.queue = queue
        self._spec, self._address = spec, parse_queue(queue)
        self._bucket, self._prefix = split_url(spec.url)
        self._endpoint = self._address.endpoint or spec.endpoint_url
        self._latest = Latest()
        self._client: Any = None
        self._url = ""
        self._has_warned = False

    def receive(self, wait_s: float = WAIT_S) -> Received:
        """What has come, after waiting so long for the first of it. Raise one of our errors."""
        with our_errors(self.queue, self._endpoint or "AWS", verdicts=QUEUE_VERDICTS):
            if not self._url:
                self._connect()
            told = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=MESSAGES_MOST, WaitTimeSeconds=round(wait_s)
            )
        return self._taken(told.get("Messages", ()))

    def _taken(self, messages: Sequence[Mapping[str, Any]]) -> Received:
        events: list[Event] = []
        receipts: list[tuple[str, str]] = []
        for message in messages:
            found = events_of(message["Body"])
            if found is None:
                self._warn(message["MessageId"])
                continue
            receipts.append((message["MessageId"], message["ReceiptHandle"]))
            events += [event for event in found if self._is_ours(event)]
        news = self._latest.news(events)
        changes = tuple(Change(event.key.removeprefix(self._prefix), event.is_removed) for event in news)
        return Received(changes, tuple(news), tuple(receipts), len(messages) - len(receipts))

    def _is_ours(self, event: Event) -> bool:
        """Consoles make keys that end in a slash to show a folder: they are no objects of a source."""
        is_below = event.bucket == self._bucket and event.key.startswith(self._prefix)
        return is_below and not event.key.endswith("/")

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("not an event of a bucket, and left there queue=%s message=%s", self.queue, message)

    def done(self, received: Received) -> None:
        """Its changes were told of: the messages go. One that cannot comes again, and is dropped then."""
        self._latest.note(list(received.events))
        if not received.receipts:
            return
        entries = [
            {"Id": str(number), "ReceiptHandle": handle}
            for number, (_, handle) in enumerate(received.receipts)
        ]
        with our_errors(self.queue, self._endpoint or "AWS", verdicts=QUEUE_VERDICTS):
            self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)

    def follow(
        self,
        hint: Callable[[Sequence[Change]], None],
        told: Callable[[StagerError | None], None],
        stopped: threading.Event,
        wait_s: float = WAIT_S,
    ) -> None:
        """Give hints until `stopped`, on the caller's thread. `told`: what is wrong; None: nothing now.

        A hint that raises one of our errors is given again, with the messages that it came from.
        """
        in_a_row = 0
        while not stopped.is_set():
            try:
                received = self.receive(wait_s)
                if received.changes:
                    hint(received.changes)
                self.done(received)
            except StagerError as error:
                told(error)
                stopped.wait(RESTS_S[min(in_a_row, len(RESTS_S) - 1)])
                in_a_row += 1
                continue
            if in_a_row:
                in_a_row = 0
                told(None)
            if received.strangers and not received.receipts:
                stopped.wait(STRANGERS_REST_S)

    def _connect(self) -> None:
        session = boto3.Session(
            profile_name=self._spec.profile,
            region_name=self._address.region or self._spec.region,
            botocore_session=botocore.session.get_session(),
        )
        region = session.region_name or (REGION_OF_OTHERS if self._endpoint else None)
        config = Config(
            connect_timeout=LIMITS.connect_s,
            read_timeout=WAIT_S + ANSWER_S,
            retries={"total_max_attempts": 1},
        )
        try:
            client = session.client("sqs", region_name=region, endpoint_url=self._endpoint, config=config)
        except BotoCoreError:
            raise
        except ValueError:
            raise UsageError(
                f"{self._endpoint}: not a valid address of a queue's server",
                hint="write it as http://host:port or https://host",
            ) from None
        self._client = client
        owner = {"QueueOwnerAWSAccountId": self._address.account} if self._address.account else {}
        self._url = (
            self._address.url or client.get_queue_url(QueueName=self._address.name, **owner)["QueueUrl"]
        )
