"""The S3 server of the demo, for tests."""

from stager_demo.s3server import S3Server, s3_server

__all__ = ["S3Server", "s3_server"]
