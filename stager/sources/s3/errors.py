"""What boto3 and S3 itself say when something is wrong, in stager's words. One table for both.

Their own texts are not passed on: a refused request is quoted there, session token and all.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from stager.errors import (
    SampleError,
    SourceBusy,
    SourceError,
    SourceForbidden,
    SourceNotFound,
    SourceSilent,
    StagerError,
)


class Verdict(NamedTuple):
    """What an error means. While an object is read, `reason` makes it the error of that sample alone."""

    error: type[SourceError]
    what: str
    hint: str = ""
    reason: str = ""


_WHOSE: Final = "in the service's environment, or in this shell's if no service runs"
_KEYS_HINT: Final = f"check the profile, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY {_WHOSE}"
_LOGIN_HINT: Final = "get new credentials (aws sso login, or ask who gave them), then try again"
_REGION_HINT: Final = "set region to the region of the bucket"
_LATER_HINT: Final = "try again later, with fewer requests at once"
_NETWORK_HINT: Final = "check endpoint_url and the network"

# Error codes of S3, else HTTP states, else names of botocore's classes.
_TABLE: Final[dict[str, Verdict]] = {
    "NoSuchBucket": Verdict(SourceNotFound, "no such bucket", "check the name, endpoint_url and profile"),
    "InvalidBucketName ParamValidationError": Verdict(
        SourceNotFound, "no bucket can have this name", "check the name"
    ),
    "NoSuchKey NoSuchVersion 404": Verdict(SourceNotFound, "no such object", "check the URL", "missing"),
    "PreconditionFailed 412": Verdict(SourceBusy, "it changed while it was read", "", "changed"),
    "InvalidRange 416": Verdict(SourceBusy, "it is shorter than the listing said", "", "changed"),
    "AccessDenied AllAccessDisabled 401 403": Verdict(
        SourceForbidden,
        "access denied",
        "ask for s3:ListBucket and s3:GetObject, or check the profile",
        "forbidden",
    ),
    "InvalidObjectState": Verdict(
        SourceForbidden, "it is archived", "restore it from the archive first", "forbidden"
    ),
    "NoCredentialsError PartialCredentialsError": Verdict(
        SourceForbidden,
        "no credentials found",
        f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY {_WHOSE}; or a profile; "
        "or, for a public bucket, anonymous = true (with a URL: --anonymous)",
    ),
    "ProfileNotFound ConfigParseError ConfigNotFound InvalidConfigError": Verdict(
        SourceForbidden, "no such profile in the AWS configuration", "see: aws configure list-profiles"
    ),
    "CredentialRetrievalError TokenRetrievalError SSOError LoginError UnauthenticatedError": Verdict(
        SourceForbidden, "credentials could not be had", _LOGIN_HINT
    ),
    "InvalidAccessKeyId": Verdict(SourceForbidden, "the server does not know this access key", _KEYS_HINT),
    "SignatureDoesNotMatch": Verdict(
        SourceForbidden, "the secret key does not fit the access key", _KEYS_HINT
    ),
    "ExpiredToken TokenRefreshRequired RequestExpired": Verdict(
        SourceForbidden, "the credentials have expired", _LOGIN_HINT
    ),
    "InvalidToken": Verdict(SourceForbidden, "the server refuses the session token", _LOGIN_HINT),
    "RequestTimeTooSkewed": Verdict(
        SourceForbidden, "the clock of this machine is wrong", "set it: timedatectl set-ntp true"
    ),
    "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException 301 307": Verdict(
        SourceNotFound, "the bucket is in another region", _REGION_HINT
    ),
    "InvalidRegionError NoRegionError": Verdict(SourceNotFound, "there is no such region", _REGION_HINT),
    "SlowDown TooManyRequests Throttling ThrottlingException 429 503": Verdict(
        SourceBusy, "the server asks us to slow down", _LATER_HINT
    ),
    "InternalError RequestTimeout 500 502 504": Verdict(SourceBusy, "the server failed", _LATER_HINT),
    "ConnectTimeoutError EndpointConnectionError ProxyConnectionError": Verdict(
        SourceBusy, "{endpoint} cannot be reached", _NETWORK_HINT
    ),
    "UntrustedCertificate": Verdict(
        SourceError,
        "{endpoint} has a certificate we do not trust",
        "check endpoint_url; if the authority is your own, name its file in AWS_CA_BUNDLE",
    ),
    "ReadTimeoutError TimeoutError": Verdict(SourceSilent, "{endpoint} stopped answering", _NETWORK_HINT),
    "HTTPClientError ConnectionError IncompleteReadError ResponseParserError HTTPError OSError": Verdict(
        SourceBusy, "the connection to {endpoint} broke", _NETWORK_HINT
    ),
    "UnsupportedAlgorithm NotImplemented 501": Verdict(
        SourceError,
        "the server does not know a request that we make",
        "is it an S3 server? Check endpoint_url, and try a newer version of the server",
    ),
    "FlexibleChecksumError": Verdict(SourceBusy, "the bytes were damaged on the way"),
}

# The same of a queue of events, where SQS says something else, or means something else.
_QUEUE_TABLE: Final[dict[str, Verdict]] = {
    "AWS.SimpleQueueService.NonExistentQueue QueueDoesNotExist": Verdict(
        SourceNotFound, "no such queue", "check its name and account, region, and endpoint_url"
    ),
    "AccessDenied AccessDeniedException 401 403": Verdict(
        SourceForbidden,
        "access denied",
        "ask for sqs:GetQueueUrl, sqs:ReceiveMessage and sqs:DeleteMessage, or check the profile",
    ),
    "NoCredentialsError PartialCredentialsError": Verdict(
        SourceForbidden,
        "no credentials found",
        f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY {_WHOSE}; or a profile",
    ),
    "InvalidClientTokenId UnrecognizedClientException": Verdict(
        SourceForbidden, "the server does not know this access key", _KEYS_HINT
    ),
    "NoRegionError InvalidRegionError": Verdict(
        SourceNotFound,
        "there is no such region",
        "set region to the region of the queue, or name its whole URL",
    ),
    "OverLimit RequestThrottled": Verdict(SourceBusy, "the server asks us to slow down", _LATER_HINT),
}
Verdicts = Mapping[str, Verdict]


def _by_name(table: Mapping[str, Verdict]) -> Verdicts:
    return {name: verdict for names, verdict in table.items() for name in names.split()}


_VERDICTS: Final = _by_name(_TABLE)
QUEUE_VERDICTS: Final = {**_VERDICTS, **_by_name(_QUEUE_TABLE)}

_FOREIGN: Final = (BotoCoreError, ClientError, ResponseParserError, HTTPError, OSError)


@contextmanager
def our_errors(
    where: str, endpoint: str, *, reading: bool = False, verdicts: Verdicts = _VERDICTS
) -> Iterator[None]:
    """Say in our words what goes wrong inside. `reading`: one object is at stake, not the source."""
    try:
        yield
    except _FOREIGN as error:
        raise our_error(_names(error), where, endpoint, reading=reading, verdicts=verdicts) from None


def our_error(
    names: Iterable[str], where: str, endpoint: str, *, reading: bool, verdicts: Verdicts = _VERDICTS
) -> StagerError:
    """The error for the first of these names that we know."""
    names = list(names)
    known = (verdicts[name] for name in names if name in verdicts)
    verdict = next(known, Verdict(SourceError, f"an unexpected answer: {names[0]}", "", "unreadable"))
    message = f"{where}: {verdict.what.format(endpoint=endpoint)}"
    if reading and verdict.reason:
        return SampleError(verdict.reason, message)
    return verdict.error(message, hint=verdict.hint)


def _names(error: Exception) -> Iterator[str]:
    """Names for an error, the most telling first."""
    if isinstance(error, ClientError):
        yield error.response["Error"].get("Code", "")
        yield str(error.response["ResponseMetadata"].get("HTTPStatusCode", ""))
        return
    if "CERTIFICATE_VERIFY_FAILED" in str(error):  # ssl's word, which botocore hides in its own
        yield "UntrustedCertificate"
    yield from (kind.__name__ for kind in type(error).__mro__)
