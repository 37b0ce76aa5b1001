"""Signature version 4 for GET and HEAD of one object, no more: botocore takes a millisecond for it."""

import hashlib
import hmac
import time
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from stager.model import encode_key

EMPTY: Final = hashlib.sha256(b"").hexdigest()


class Keys(NamedTuple):
    """Credentials of a moment. `token` is empty where there is none."""

    access: str
    secret: str
    token: str = ""


def object_path(bucket: str, key: str) -> str:
    """The path of an object, percent-encoded as S3 wants it: a slash stays, and nothing is normalised."""
    return "/" + quote(encode_key(f"{bucket}/{key}"), safe="/-_.~")


def request_head(
    method: str, path: str, headers: dict[str, str], keys: Keys | None, region: str, now_s: float
) -> bytes:
    """The head of a request, signed unless there are no keys. `headers` have lower case names, and host."""
    if keys is not None:
        headers = signed(method, path, headers, keys, region, now_s)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


def signed(
    method: str, path: str, headers: dict[str, str], keys: Keys, region: str, now_s: float
) -> dict[str, str]:
    """These headers and those that prove who asks."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    headers = headers | {"x-amz-content-sha256": EMPTY, "x-amz-date": now}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = sorted(headers)
    listed = "".join(f"{name}:{headers[name]}\n" for name in names)
    request = f"{method}\n{path}\n\n{listed}\n{';'.join(names)}\n{EMPTY}"
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signature = hmac.digest(_key_of_the_day(keys.secret, now[:8], region), text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope},"
        f" SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return headers


@lru_cache(maxsize=16)
def _key_of_the_day(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
