"""The augmentations of `augment`, a batch at a time, in torch: for a device that is faster than our threads.

By the same random numbers, so the same boxes, flips and factors. Where OpenCV reckons in 10 or 11 bits, this
reckons in float32: pixels may be a level or two off.
"""

from collections.abc import Sequence

import torch

from stager.errors import UsageError
from stager_client.augment.transforms import (
    GREY,
    ORDERS,
    Augment,
    CentreCrop,
    ColourJitter,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Uniforms,
    between,
)

KNOWN = (RandomResizedCrop, CentreCrop, RandomCrop, HorizontalFlip, ColourJitter)


def can_augment(augments: Sequence[Augment]) -> bool:
    """Whether all of these are known here; one of the user's own is not."""
    return all(type(augment) in KNOWN for augment in augments)


def augment_batch(
    augments: Sequence[Augment],
    images: torch.Tensor,
    uniforms: Sequence[Uniforms],
    is_map: bool = False,
) -> torch.Tensor:
    """What becomes of a batch of NCHW images, in the same dtype and memory format, on their device.

    `is_map`: they are maps or masks, as `Chain` has it.
    """
    batch, at = images.to(torch.float32), 0
    is_whole = not images.dtype.is_floating_point
    mode = "nearest" if is_map and is_whole else "bilinear"
    for augment in augments:
        rows = [row[at : at + augment.draws] for row in uniforms]
        at += augment.draws
        if isinstance(augment, ColourJitter):
            batch = batch if is_map else _jitter(augment, batch, rows)
        elif isinstance(augment, HorizontalFlip):
            turned = _column([not augment.idle(row) for row in rows], batch).bool()
            batch = torch.where(turned, batch.flip(3), batch)
        else:
            assert isinstance(augment, RandomResizedCrop | CentreCrop | RandomCrop)
            batch = _crop(augment, batch, rows, mode)
            batch = batch.round_() if is_whole else batch
    return batch.to(images.dtype).contiguous(memory_format=torch.channels_last)


class Normalise:
    """A batch of uint8 NCHW images as (x / 255 - mean) / std, a value for each channel; for `transform`.

    On the batch's device and in its memory format. It reckons in float32, then rounds to `dtype`.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
    ) -> None:
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise UsageError(f"mean {mean} and std {std} make no sense", hint="a number above 0 a channel")
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise UsageError(f"images cannot be {dtype}", hint="use float16, bfloat16 or float32")
        self.dtype = dtype
        self._mean, self._scale = (
            torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1).to(torch.float32)
            for values in ([value * 255 for value in mean], [1 / (255 * value) for value in std])
        )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if images.device != self._mean.device:
            self._mean, self._scale = self._mean.to(images.device), self._scale.to(images.device)
        return images.sub(self._mean).mul_(self._scale).to(self.dtype)


def _crop(
    augment: RandomResizedCrop | CentreCrop | RandomCrop,
    images: torch.Tensor,
    rows: Sequence[Uniforms],
    mode: str,
) -> torch.Tensor:
    """Take each image's box to the size that is wanted, with pixel centres in the middle."""
    height, width = images.shape[2:]
    boxes = [augment.box(height, width, row) for row in rows]
    spots = []
    for side, wanted in enumerate(augment.size):
        start, length = (_column([box[side + part] for box in boxes], images)[:, 0, 0] for part in (0, 2))
        places = (torch.arange(wanted, device=images.device) + 0.5) * (length / wanted) - 0.5
        inside = torch.minimum(places.clamp(min=0), length - 1)  # a box ends at its edge, as for OpenCV
        spots.append((2 * (start + inside) + 1) / images.shape[2 + side] - 1)
    rows_at, columns_at = spots[0][:, :, None], spots[1][:, None, :]
    grid = torch.stack([columns_at + 0 * rows_at, rows_at + 0 * columns_at], dim=3)
    return torch.nn.functional.grid_sample(images, grid, mode, "zeros", align_corners=False)


def _jitter(augment: ColourJitter, images: torch.Tensor, rows: Sequence[Uniforms]) -> torch.Tensor:
    weights = torch.tensor(GREY, dtype=torch.float32, device=images.device).reshape(1, 3, 1, 1)
    orders = [ORDERS[int(row[0] * len(ORDERS))] for row in rows]
    for step in range(3):
        which = _column([order[step] for order in orders], images)
        drawn = (
            between(augment.spans[order[step]], row[1 + order[step]])
            for order, row in zip(orders, rows, strict=True)
        )
        factor = _column(list(drawn), images)
        grey = (images * weights).sum(1, keepdim=True)
        towards = torch.where(which == 2, grey, grey.mean((2, 3), keepdim=True) * (which == 1))
        images = (factor * images + (1 - factor) * towards).round_().clamp_(0, 255)
    return images


def _column(values: Sequence[float], images: torch.Tensor) -> torch.Tensor:
    """A number for each image."""
    return torch.tensor(values, dtype=torch.float32, device=images.device).reshape(-1, 1, 1, 1)
