"""One event a line. Under systemd the journal has the time; elsewhere the line has it."""

import json
import logging
import os
import sys

from stager.errors import shown

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _Journal(logging.Formatter):
    """journald reads the priority off the start of the line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"<{_PRIORITY.get(record.levelno, 6)}>{shown(super().format(record))}"


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        value = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            value["trace"] = self.formatException(record.exc_info)
        return json.dumps(value).replace("\x7f", "\\u007f")  # all else is escaped already


def set_up(level: str, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_Json())
    elif os.environ.get("JOURNAL_STREAM"):
        handler.setFormatter(_Journal("%(message)s"))
    else:
        handler.setFormatter(_Line("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("botocore", "boto3", "urllib3", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # at DEBUG they write secrets
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
