"""S3 with obstore to carry the bytes: a tenth of boto3's CPU a GET. Listing and odd keys stay with boto3."""

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from botocore.exceptions import NoCredentialsError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from stager.model import ObjectInfo, SourceSpec
from stager.sources.s3 import LIMITS, BotoSource, Limits
from stager.sources.s3_errors import our_errors

if TYPE_CHECKING:
    from obstore.store import ClientConfig

# obstore asks for credentials again 5 minutes before this runs out; botocore gives none that end within 10.
# At the provider's default of 30 minutes, obstore would go on with credentials that have expired.
CREDENTIALS_FOR: Final = timedelta(minutes=10)

# obstore takes a key apart: it refuses the parts "", "." and "..", and control characters, and it drops a
# slash at either end, which makes it another object's key.
_UNNAMEABLE: Final = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


class ObstoreSource:
    """The objects below a prefix, read through obstore. Any thread may read; do not fork while it is open."""

    def __init__(self, spec: SourceSpec, limits: Limits = LIMITS) -> None:
        self.reference = BotoSource(spec, limits)
        self._stores: dict[float, S3Store] = {}
        self._lock = threading.Lock()

    def scan(self) -> Iterator[ObjectInfo]:
        return self.reference.scan()

    def read(self, info: ObjectInfo) -> memoryview:
        key = self.reference.prefix + info.key
        if _UNNAMEABLE.search(key):
            return self.reference.read(info)
        where, check = self.reference.where(info), self.reference.check
        store = self._store(info.size)
        with our_errors(where, self.reference.endpoint, reading=True):
            answer = obstore.get(store, key, options={"if_match": f'"{info.version}"'})
            etag, data = answer.meta["e_tag"], memoryview(answer.bytes())
        return check.md5(where, info, check.answer(where, info, etag, data))

    def _store(self, size_bytes: int) -> S3Store:
        """The store whose time limit fits; it has one for all its requests."""
        whole_s = self.reference.limits.whole_s(size_bytes)
        with self._lock, our_errors(self.reference.url, self.reference.endpoint):
            if whole_s not in self._stores:
                self._stores[whole_s] = self._connect(whole_s)
            return self._stores[whole_s]

    def _connect(self, whole_s: float) -> S3Store:
        """A store that goes where boto3 goes: all is said, so that no AWS_* variable says it otherwise."""
        reference = self.reference
        endpoint, region = reference.address()
        options: ClientConfig = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=reference.limits.connect_s),
            "read_timeout": timedelta(seconds=reference.limits.silence_s),
            "timeout": timedelta(seconds=whole_s),
        }
        if authority := reference.session._session.get_config_variable("ca_bundle"):
            options["root_certificate"] = Path(authority).read_bytes()
        return S3Store(
            reference.bucket,
            endpoint=endpoint,
            region=region,
            virtual_hosted_style_request=False,
            access_key_id="",
            secret_access_key="",
            skip_signature=reference.spec.anonymous,
            credential_provider=None if reference.spec.anonymous else self._credentials(),
            client_options=options,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
        )

    def _credentials(self) -> Boto3CredentialProvider:
        if self.reference.session.get_credentials() is None:
            raise NoCredentialsError
        return Boto3CredentialProvider(self.reference.session, ttl=CREDENTIALS_FOR)
