"""Events of a bucket from a real queue: at least once, in any order, and among what is not ours."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer

from stager.errors import NoService, SourceBusy, SourceForbidden, SourceNotFound, StagerError, UsageError
from stager.reader.values import SourceSpec
from stager.sources.s3.events import BucketEvents, Change
from stager.sources.s3.queue import Event, Latest, QueueAddress, events_of, is_later, parse_queue

ACCOUNT = "123456789012"  # moto's
_numbers = count()


class Aws:
    """A server that speaks S3, SQS, SNS and EventBridge."""

    def __init__(self, url: str) -> None:
        self.url = url
        session = boto3.Session("key", "secret", region_name="us-east-1")
        self.s3, self.sqs, self.sns, self.bus, self.iam = (
            session.client(name, endpoint_url=url) for name in ("s3", "sqs", "sns", "events", "iam")
        )

    def bucket(self) -> str:
        name = f"bucket-{next(_numbers)}"
        self.s3.create_bucket(Bucket=name)
        return name

    def queue(self, **attributes: str) -> tuple[str, str]:
        """The name and the URL of a new queue."""
        name = f"queue-{next(_numbers)}"
        return name, self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def send(self, url: str, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=url, MessageBody=body)

    def left(self, url: str) -> int:
        """Messages that are in a queue, also those that somebody has received."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(value) for value in told.values())

    def events(self, bucket: str, queue: str, prefix: str = "pets") -> BucketEvents:
        spec = SourceSpec(f"s3://{bucket}/{prefix}", endpoint_url=self.url, region="us-east-1")
        return BucketEvents(spec, f"sqs://{queue}")


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Aws(f"http://{host}:{port}")
    server.stop()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def record(bucket: str, key: str, sequencer: str = "", what: str = "ObjectCreated:Put") -> dict[str, Any]:
    """As S3 writes it; `key` as it is in the URL."""
    told = {"key": key, "size": 3, "eTag": "abc"} | ({"sequencer": sequencer} if sequencer else {})
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": what,
        "s3": {"s3SchemaVersion": "1.0", "bucket": {"name": bucket}, "object": told},
    }


def message(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": records})


def taken(events: BucketEvents) -> list[Change]:
    """All that comes now, told of and done."""
    found: list[Change] = []
    while (received := events.receive(1)).receipts:
        found += received.changes
        events.done(received)
    return found


def test_what_is_written_and_removed_below_the_prefix_is_told_of_by_its_key_there(aws: Aws) -> None:
    bucket, (queue, url) = aws.bucket(), aws.queue()
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}"
    told = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
    aws.s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]}
    )
    key = "pets/a dog/é+1%.jpg"
    for other in (key, "petshop/1.jpg", "pets/folder/"):
        aws.s3.put_object(Bucket=bucket, Key=other, Body=b"abc")
    assert taken(aws.events(bucket, queue)) == [Change("a dog/é+1%.jpg", False)]
    aws.s3.delete_object(Bucket=bucket, Key=key)
    assert taken(aws.events(bucket, queue)) == [Change("a dog/é+1%.jpg", True)]
    assert aws.left(url) == 0  # the test event, and what lies beside the prefix, too


def test_what_sns_passes_on_is_told_of(aws: Aws) -> None:
    bucket, (queue, _) = aws.bucket(), aws.queue()
    topic = aws.sns.create_topic(Name=f"topic-{next(_numbers)}")["TopicArn"]
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}"
    aws.sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    told = {"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}
    aws.s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [told]}
    )
    aws.s3.put_object(Bucket=bucket, Key="pets/dog 1.jpg", Body=b"abc")
    assert taken(aws.events(bucket, queue)) == [Change("dog 1.jpg", False)]


def test_what_eventbridge_passes_on_is_told_of(aws: Aws) -> None:
    bucket, (queue, _) = aws.bucket(), aws.queue()
    rule = f"rule-{next(_numbers)}"
    aws.bus.put_rule(Name=rule, EventPattern=json.dumps({"source": ["aws.s3"]}))
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}"
    aws.bus.put_targets(Rule=rule, Targets=[{"Id": "1", "Arn": arn}])
    aws.s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"EventBridgeConfiguration": {}}
    )
    aws.s3.put_object(Bucket=bucket, Key="pets/dog+1.jpg", Body=b"abc")  # EventBridge does not encode keys
    assert taken(aws.events(bucket, queue)) == [Change("dog+1.jpg", False)]
    aws.bus.remove_targets(Rule=rule, Ids=["1"])


def test_an_event_that_comes_twice_or_late_is_told_of_once(aws: Aws) -> None:
    queue, url = aws.queue()
    events = aws.events("b", queue)
    removed = "ObjectRemoved:Delete"
    aws.send(
        url,
        message(record("b", "pets/1", "0055AED6DCD90281E5")),
        message(record("b", "pets/1", "0055AED6DCD90281E5")),  # again
        message(record("b", "pets/1", "0055AED6DCD90281E4")),  # late
        message(record("b", "pets/2", "0055AED6DCD90281E6", removed), record("b", "pets/2", "0055")),
    )
    assert taken(events) == [Change("1", False), Change("2", True)]
    aws.send(
        url,
        message(record("b", "pets/2", "0055AED6DCD90281")),  # late, in another poll
        message(record("b", "pets/1", "0055AED6DCD90281F0", removed)),
        message(record("b", "pets/3")),  # its server numbers no events: all are hints
        message(record("b", "pets/3")),
    )
    assert sorted(taken(events)) == [Change("1", True), Change("3", False)]
    assert aws.left(url) == 0


def test_a_message_is_deleted_only_when_its_hint_was_delivered(aws: Aws) -> None:
    queue, url = aws.queue(VisibilityTimeout="1")
    events = aws.events("b", queue)
    aws.send(url, message(record("b", "pets/1", "01")))
    first = events.receive(1)
    assert first.changes == (Change("1", False),)
    time.sleep(1.2)  # we were killed before anybody had heard
    again = events.receive(5)
    assert again.changes == first.changes
    events.done(again)
    time.sleep(1.2)
    assert events.receive(1).receipts == ()
    assert aws.left(url) == 0


STRANGERS = [
    "order 17 is paid",
    "{}",
    "[]",
    "17",
    "null",
    "{",
    '{"Records": 3}',
    '{"Records": [{"eventSource": "aws:dynamodb"}]}',
    '{"Records": [{"eventSource": "aws:s3"}]}',
    '{"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {"bucket": {}}}]}',
    '{"Type": "Notification", "TopicArn": "a", "Message": "hello"}',
    '{"Type": "Notification", "TopicArn": "a"}',
    '{"source": "aws.s3", "detail-type": "Object Created", "detail": {}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("body", STRANGERS, ids=range(len(STRANGERS)))
def test_what_is_no_event_of_a_bucket_is_none(body: str) -> None:
    assert events_of(body) is None


def test_what_is_no_event_of_a_bucket_stays_in_the_queue_and_holds_nothing_up(
    aws: Aws, caplog: pytest.LogCaptureFixture
) -> None:
    queue, url = aws.queue()
    events = aws.events("b", queue)
    strangers = STRANGERS[:3]
    aws.send(url, *strangers, message(record("b", "pets/1", "01")), message(record("other", "pets/1", "02")))
    assert taken(events) == [Change("1", False)]
    assert aws.left(url) == len(strangers)
    told = [line.getMessage() for line in caplog.records if line.name == "stager"]
    assert [line.partition(" message=")[0] for line in told] == [
        f"not an event of a bucket, and left there queue=sqs://{queue}"
    ]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}),
        message(record("b", "pets/1", what="ObjectTagging:Put")),
        message(record("b", "pets/1", what="ObjectRestore:Completed")),
        message(),
    ],
)
def test_a_message_of_a_bucket_that_changes_no_bytes_tells_of_nothing(body: str) -> None:
    assert events_of(body) == []


def test_servers_that_are_not_amazons_are_understood() -> None:
    told = record("b", "pets/1", "0A") | {"eventSource": "ceph:s3", "eventName": "s3:ObjectCreated:Put"}
    assert events_of(message(told)) == [Event("b", "pets/1", False, "0A")]
    told["s3"]["object"]["key"] = "pets/%FF"  # a key that is no UTF-8 is as a listing has it
    assert events_of(message(told)) == [Event("b", "pets/\udcff", False, "0A")]


@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_no_message_ends_us(body: str) -> None:
    events_of(body)


def _dicts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["s3", "bucket", "name", "object", "key", "detail", "eventSource", "sequencer"])
    return st.dictionaries(names, inner)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | _dicts(inner)))
def test_no_message_that_looks_like_an_event_ends_us(value: Any) -> None:
    for body in ({"Records": value}, {"Records": [value]}, {"source": "aws.s3", "detail-type": value}):
        events_of(json.dumps(body))
    events_of(
        json.dumps({"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:", "s3": value}]})
    )


# Which event is the latest

sequencers = st.integers(1, 2**70).map(lambda number: f"{number:018X}".rstrip("0"))


@given(st.lists(st.tuples(st.sampled_from("abc"), sequencers), unique_by=lambda pair: pair[1]), st.randoms())
def test_in_whatever_order_they_come_the_last_told_of_each_key_is_its_latest(
    pairs: list[tuple[str, str]], random: Any
) -> None:
    events = [Event("b", key, False, sequencer) for key, sequencer in pairs]
    came = events * 2  # each twice
    random.shuffle(came)
    latest, told = Latest(), dict[str, Event]()
    while came:
        size = random.randint(1, 4)
        part, came = came[:size], came[size:]
        for event in latest.news(part):
            assert event.key not in told or is_later(event.sequencer, told[event.key].sequencer)
            told[event.key] = event
        latest.note(part and latest.news(part))
    assert {key: event.sequencer for key, event in told.items()} == {
        key: max((s for k, s in pairs if k == key), key=lambda s: s.ljust(30, "0")) for key, _ in pairs
    }


def test_the_shorter_sequencer_lacks_zeros_on_its_right() -> None:
    assert is_later("1", "0F")
    assert is_later("0a1", "0A")
    assert not is_later("0A", "0A00")
    assert not is_later("0A00", "0a")


def test_what_is_remembered_of_keys_has_a_bound_and_the_last_stay() -> None:
    latest = Latest(most=3)
    for number in range(10):
        latest.note([Event("b", str(number), False, "0A")])
    assert len(latest) == 3
    assert latest.news([Event("b", "9", False, "0A")]) == []
    assert latest.news([Event("b", "0", False, "0A")])  # a hint more than needed, and none less


# Errors, and going on after them


def test_a_queue_that_is_not_there_is_an_error_with_a_way_out(aws: Aws) -> None:
    with pytest.raises(SourceNotFound, match="sqs://nobody: no such queue") as caught:
        aws.events("b", "nobody").receive(1)
    assert "account" in caught.value.hint
    whole = BucketEvents(SourceSpec("s3://b/pets"), f"sqs://{aws.url}/{ACCOUNT}/nobody")
    with pytest.raises(SourceNotFound, match="no such queue"):
        whole.receive(1)


def test_a_queue_is_found_by_its_whole_url_on_a_server_of_its_own(aws: Aws) -> None:
    queue, url = aws.queue()
    events = BucketEvents(SourceSpec("s3://b/pets"), f"sqs://{aws.url}/{ACCOUNT}/{queue}")
    aws.send(url, message(record("b", "pets/1", "01")))
    assert taken(events) == [Change("1", False)]


def test_without_credentials_the_error_says_where_they_belong(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(SourceForbidden, match="no credentials found") as caught:
        aws.events("b", "queue").receive(1)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert "anonymous" not in caught.value.hint


def test_without_a_region_the_error_says_so(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(SourceNotFound, match="no such region") as caught:
        BucketEvents(SourceSpec("s3://b/pets"), "sqs://queue").receive(1)
    assert "region of the queue" in caught.value.hint


def test_what_the_server_refuses_is_told_with_the_rights_that_are_needed(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, _ = aws.queue()
    aws.iam.create_user(UserName="nobody")
    known = aws.iam.create_access_key(UserName="nobody")["AccessKey"]
    events = aws.events("b", queue)
    _ask_for_rights(aws, 0)
    try:
        with pytest.raises(SourceForbidden):
            events.receive(1)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", known["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", known["SecretAccessKey"])
        with pytest.raises(SourceForbidden, match="access denied") as caught:
            aws.events("b", queue).receive(1)
        assert "sqs:ReceiveMessage" in caught.value.hint
    finally:
        _ask_for_rights(aws, 10**9)


def _ask_for_rights(aws: Aws, after: int) -> None:
    """Have the server look at who asks, after so many requests."""
    url = f"{aws.url}/moto-api/reset-auth"
    asked = Request(url, str(after).encode(), {"Content-Type": "text/plain"}, method="POST")  # noqa: S310
    urlopen(asked).close()  # noqa: S310


def test_a_server_that_is_not_there_is_busy_and_may_be_asked_again() -> None:
    spec = SourceSpec("s3://b/pets", endpoint_url="http://127.0.0.1:1", region="us-east-1")
    with pytest.raises(SourceBusy, match="cannot be reached"):
        BucketEvents(spec, "sqs://queue").receive(1)


def test_hints_go_on_once_the_queue_is_there_and_the_trouble_is_told_once(aws: Aws) -> None:
    name = f"queue-{next(_numbers)}"
    hints: list[Change] = []
    told: list[str] = []
    stopped, came = threading.Event(), threading.Event()

    def hint(changes: Sequence[Change]) -> None:
        if not hints:
            hints.append(Change("was refused", False))
            raise NoService("the loop is busy")
        hints.extend(changes)
        came.set()

    def tell(error: StagerError | None) -> None:
        told.append(error.message if error else "goes on")

    follow = threading.Thread(target=aws.events("b", name).follow, args=(hint, tell, stopped, 1))
    follow.start()
    while not told:
        time.sleep(0.02)
    made = aws.sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "1"})
    aws.send(made["QueueUrl"], message(record("b", "pets/1", "01")))
    assert came.wait(30)
    while "goes on" not in told:
        time.sleep(0.02)
    stopped.set()
    follow.join(30)
    assert not follow.is_alive()
    assert hints == [Change("was refused", False), Change("1", False)]
    assert told[0].endswith("no such queue")
    assert told[-2:] == ["the loop is busy", "goes on"]
    assert aws.left(made["QueueUrl"]) == 0


# Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sqs://pets", QueueAddress("pets")),
        ("SQS://pets.fifo", QueueAddress("pets.fifo")),
        (f"sqs://{ACCOUNT}/pets", QueueAddress("pets", ACCOUNT)),
        (
            f"sqs://https://sqs.eu-central-1.amazonaws.com/{ACCOUNT}/pets",
            QueueAddress("pets", ACCOUNT, "https://sqs.eu-central-1.amazonaws.com", "eu-central-1"),
        ),
        (
            f"sqs://http://127.0.0.1:9324/{ACCOUNT}/pets",
            QueueAddress("pets", ACCOUNT, "http://127.0.0.1:9324"),
        ),
        ("sqs://http://localhost:9324/pets", QueueAddress("pets", "", "http://localhost:9324")),
    ],
)
def test_a_queue_is_named_by_itself_with_its_account_or_by_its_whole_url(
    url: str, address: QueueAddress
) -> None:
    assert parse_queue(url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("pets", "sqs://", "sqs:pets", "s3://pets", "sqs://pets/more", "sqs://p ts", "sqs://12345/pets"),
        *("sqs://" + "a" * 81, "sqs://ftp://host/pets", "sqs://https:///pets", "sqs://https://host/"),
        *("sqs://https://key:secret@host/1/pets", "sqs://https://host/a/b/c"),
    ],
)
def test_what_is_no_queue_is_an_error_with_a_way_out(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_queue(url)
    assert caught.value.hint
    assert "secret" not in caught.value.message
