"""What the peers that read through torch's DataLoader share."""

from typing import Any

import numpy as np
import torch

from bench.peers.common import SIDE, centre_crop


def from_raw(raw: Any) -> torch.Tensor:
    """A raw sample as it was stored: bytes, or an array."""
    if isinstance(raw, np.ndarray):
        return torch.from_numpy(raw if raw.flags.writeable else raw.copy())
    if isinstance(raw, torch.Tensor):
        return raw
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(SIDE, SIDE, 3)


def from_jpeg(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(centre_crop(bytes(raw)).copy())


DECODE = {"raw": from_raw, "jpeg": from_jpeg}
