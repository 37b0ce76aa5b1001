"""A watched bucket that tells of its changes: a real service, and a server that speaks S3 and SQS."""

from pathlib import Path

from making import jpeg
from running import Place
from sets import origin_reads, staged, wait_for
from test_bucket_events import ACCOUNT, Aws, aws, keys
from test_watch import keys_of, watch_of, watched

__all__ = ["aws", "keys"]  # fixtures


def test_an_event_of_a_bucket_has_it_looked_at_long_before_the_next_listing(tmp_path: Path, aws: Aws) -> None:
    bucket, (queue, _) = aws.bucket(), aws.queue()
    told = {
        "QueueArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:{queue}",
        "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"],
    }

    def put(name: str, seed: int) -> None:
        aws.s3.put_object(Bucket=bucket, Key=f"pets/cats/{name}.jpg", Body=jpeg(seed))

    for number in range(30):
        put(str(number), number)
    aws.s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]}
    )
    access = {"endpoint_url": aws.url, "region": "us-east-1", "events": f"sqs://{queue}"}
    place = Place(tmp_path).configure(watched("pets", f"s3://{bucket}/pets", 'watch_every = "1h"', **access))
    with place.service():
        assert place.json("prefetch", "pets")["staged"] == 30
        wait_for(lambda: watch_of(place).get("by") == "events")
        wait_for(lambda: watch_of(place)["state"] == "resting")
        reads = origin_reads(place)
        put("new", 100)
        put("3", 333)
        wait_for(lambda: "cats/new.jpg" in keys_of(place), 60)
        wait_for(lambda: len(staged(place, "pets")) == 30 and origin_reads(place) == reads + 1, 60)
        aws.s3.delete_object(Bucket=bucket, Key="pets/cats/5.jpg")
        wait_for(lambda: "cats/5.jpg" not in keys_of(place), 60)
