"""Which function of a person's it is, and what it is given."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from stager.reader.code.key import CodeKey

LEAST_BYTES = 1 << 30


@dataclass(frozen=True)
class Function:
    """`prepare`: package.module:function; `folder`: where its module is looked for first."""

    prepare: str
    folder: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, Any] = field(default_factory=dict)  # its key's JSON; {}: it is not known yet
    deadline_s: float = 600.0  # for one sample
    memory_mb: int = 0  # of one process; 0: its share of the machine's

    @cached_property
    def key(self) -> CodeKey:
        return CodeKey.from_json(self.code)

    @cached_property
    def told(self) -> str:
        """What a child is told of it, as the text that says whether a child is of this function."""
        about = {"prepare": self.prepare, "folder": self.folder, "args": dict(self.args)}
        return json.dumps({**about, "memory_bytes": self.memory_bytes, "code": self.code and self.key.digest})

    @property
    def memory_bytes(self) -> int:
        """What its process may take."""
        if self.memory_mb:
            return self.memory_mb * 1_000_000
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
        return max(LEAST_BYTES, machine // len(os.sched_getaffinity(0)))
