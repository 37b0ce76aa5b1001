"""Crops, flips and colours, applied by the loader's threads between the shard and the batch.

The definitions are torchvision's, on uint8 images of height x width x channels. What is random is a function
of (seed, epoch, the sample's key, which augmentation, which draw) and of nothing else: not of the batch, the
rank, the subset or the run. So a resumed run, or one on another number of ranks, sees the same pixels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cache
from itertools import accumulate, pairwise, permutations
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from stager.errors import StagerError, UsageError, nearest
from stager.reader.samples.subset import Hashes, mix
from stager.reader.values import Field, Shape, digest_of

Image = npt.NDArray[Any]  # height, width, channels; uint8, or a map of any depth
Size = int | tuple[int, int]  # one side of a square, or height and width
Span = tuple[float, float]
Uniforms = Sequence[float]  # numbers in [0, 1)
Box = tuple[int, int, int, int]  # top, left, height, width

DTYPES: Final = ("uint8", "uint16", "float32")  # of what can be augmented
TRIES: Final = 10  # torchvision's: boxes that may stick out of the image before it takes the centre
ONE_THREAD_PIXELS: Final = 3 << 15  # OpenCV resizes to no more than these in one thread
DRAWS_SALT: Final = 0x5354_4147_4552_4155  # sets these numbers apart from those of orders and subsets
ORDERS: Final = tuple(permutations(range(3)))
GREY: Final = np.asarray([0.2989, 0.587, 0.114])
SAME: Final = np.eye(3, 4)
# Where a factor of 0 leads: to black, to the mean grey (put in once it is known), to each pixel's grey.
TOWARDS: Final = (0 * SAME, 0 * SAME, np.tile([*GREY, 0.0], (3, 1)))


class Augment(Protocol):
    """One change of an image. It has no state and may be used by any number of threads."""

    @property
    def draws(self) -> int:
        """How many random numbers it needs for a sample."""

    @property
    def in_place(self) -> bool:
        """Whether `out` may be the image itself."""

    def shape(self, shape: Shape) -> Shape:
        """The shape of what it makes of such an image. Raise UsageError if it can make nothing of it."""

    def idle(self, uniforms: Uniforms) -> bool:
        """Whether, with these numbers, it leaves the image as it is."""

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        """Write to `out`, which has the right shape, what becomes of `image`."""


def several(augment: Augment | Iterable[Augment]) -> tuple[Augment, ...]:
    """The augmentations in their order: one alone is a chain of one. Raise UsageError for what is none."""
    chain: tuple[Any, ...]
    chain = (augment,) if isinstance(augment, str) or not isinstance(augment, Iterable) else tuple(augment)
    for one in chain:
        if isinstance(one, type) or not (hasattr(one, "draws") and hasattr(one, "apply")):
            raise UsageError(
                f"augment has {one!r}, which is none of stager_client's augmentations",
                hint="as in augment=[RandomResizedCrop(224), HorizontalFlip()]; "
                "what works on whole batches goes to transform=",
            )
    return chain


class RandomResizedCrop:
    """A box of random area, aspect ratio and place, resized to `size`.

    The box is torchvision's: ten tries, then the largest box in the centre whose ratio is allowed. It is
    resized by OpenCV's bilinear without antialias (torchvision with antialias=False): with antialias, the
    same takes three times as long. Boxes that shrink much are rougher than those of Pillow.
    """

    draws = 2 * TRIES + 2
    in_place = False

    def __init__(self, size: Size, scale: Span = (0.08, 1.0), ratio: Span = (3 / 4, 4 / 3)) -> None:
        self.size = _size(size)
        if not 0 < scale[0] <= scale[1] <= 1:
            raise UsageError(f"a scale of {scale} makes no sense", hint="parts of the area: (0.08, 1.0)")
        if not 0 < ratio[0] <= ratio[1] < math.inf:
            raise UsageError(f"a ratio of {ratio} makes no sense", hint="width by height: (3 / 4, 4 / 3)")
        self.scale, self.ratio = scale, ratio
        self._is_nearest = False
        self._log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
        if self.size[0] * self.size[1] > ONE_THREAD_PIXELS:
            _cv2().setNumThreads(0)  # for the whole process: it has no other way, and our threads are enough
        _cv2()

    def shape(self, shape: Shape) -> Shape:
        return (*self.size, shape[2])

    def idle(self, uniforms: Uniforms) -> bool:
        return False

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        top, left, height, width = self.box(image.shape[0], image.shape[1], uniforms)
        part = image[top : top + height, left : left + width]
        _cv2().resize(_flat(part), self.size[::-1], dst=_flat(out), interpolation=self._interpolation(image))

    def nearest(self) -> "RandomResizedCrop":
        """The same for maps: of whole numbers, which may be classes, the nearest is taken."""
        changed = copy(self)
        changed._is_nearest = True
        return changed

    def _interpolation(self, image: Image) -> int:
        is_nearest = self._is_nearest and image.dtype.kind != "f"
        return int(_cv2().INTER_NEAREST_EXACT if is_nearest else _cv2().INTER_LINEAR)

    def box(self, height: int, width: int, uniforms: Uniforms) -> Box:
        """Top, left, height and width of the part that is taken of an image of this size."""
        for at in range(0, 2 * TRIES, 2):
            area = height * width * between(self.scale, uniforms[at])
            ratio = math.exp(between(self._log_ratio, uniforms[at + 1]))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top = int(uniforms[-2] * (height - high + 1))
                return top, int(uniforms[-1] * (width - wide + 1)), high, wide
        (low, most), wide, high = self.ratio, width, height
        if width / height < low:
            high = max(round(width / low), 1)
        elif width / height > most:
            wide = max(round(height * most), 1)
        return (height - high) // 2, (width - wide) // 2, high, wide


class CentreCrop:
    """The middle of an image. One that is smaller than `size` is refused; torchvision fills it with black."""

    draws = 0
    in_place = False

    def __init__(self, size: Size) -> None:
        self.size = _size(size)

    def shape(self, shape: Shape) -> Shape:
        return _cropped(shape, self.size, 0)

    def idle(self, uniforms: Uniforms) -> bool:
        return False

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        top, left, height, width = self.box(image.shape[0], image.shape[1], uniforms)
        out[...] = image[top : top + height, left : left + width]

    def box(self, height: int, width: int, uniforms: Uniforms) -> Box:
        """Top, left, height and width of the part that is taken."""
        return round((height - self.size[0]) / 2), round((width - self.size[1]) / 2), *self.size


class RandomCrop:
    """A box of `size` at a random place, of the image with `padding` black pixels around it."""

    draws = 2
    in_place = False

    def __init__(self, size: Size, padding: int = 0) -> None:
        if padding < 0:
            raise UsageError(f"a padding of {padding} pixels makes no sense", hint="use CentreCrop first")
        self.size, self.padding = _size(size), padding

    def shape(self, shape: Shape) -> Shape:
        return _cropped(shape, self.size, self.padding)

    def idle(self, uniforms: Uniforms) -> bool:
        return False

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        height, width = image.shape[:2]
        top, left, high, wide = self.box(height, width, uniforms)
        bottom, right = min(top + high, height), min(left + wide, width)
        part = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
        if part.shape != out.shape:
            out.fill(0)
            out = out[max(-top, 0) :, max(-left, 0) :][: part.shape[0], : part.shape[1]]
        out[...] = part

    def box(self, height: int, width: int, uniforms: Uniforms) -> Box:
        """Top, left, height and width of the part that is taken; top and left are negative in the padding."""
        top = int(uniforms[0] * (height + 2 * self.padding - self.size[0] + 1)) - self.padding
        left = int(uniforms[1] * (width + 2 * self.padding - self.size[1] + 1)) - self.padding
        return top, left, *self.size


class HorizontalFlip:
    """Left for right, with probability `p`."""

    draws = 1
    in_place = True  # and that is five times as fast: 6 us after a crop, not 31

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise UsageError(f"a probability of {p} makes no sense", hint="use a number from 0 to 1")
        self.p = p
        _cv2()

    def shape(self, shape: Shape) -> Shape:
        return shape

    def idle(self, uniforms: Uniforms) -> bool:
        return uniforms[0] >= self.p

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        _cv2().flip(_flat(image), 1, dst=_flat(out))


class ColourJitter:
    """Brightness, contrast and saturation by random factors, in random order; RGB only.

    A number v stands for factors from max(0, 1 - v) to 1 + v, a pair for itself. There is no hue: it needs
    the way to HSV and back for each pixel. Each step rounds where torchvision cuts off, and OpenCV weighs in
    10 bits: after one step pixels are a level or two off torchvision's, after three a few more.
    """

    draws = 4
    in_place = True

    def __init__(
        self, brightness: float | Span = 0.0, contrast: float | Span = 0.0, saturation: float | Span = 0.0
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        self.spans = tuple(_factors(name, value) for name, value in given.items())
        _cv2()

    def shape(self, shape: Shape) -> Shape:
        if shape[2] != 3:
            raise UsageError(f"images of {shape[2]} channels have no colour", hint="leave out ColourJitter")
        return shape

    def idle(self, uniforms: Uniforms) -> bool:
        return all(span == (1.0, 1.0) for span in self.spans)

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        for which in ORDERS[int(uniforms[0] * len(ORDERS))]:
            if self.spans[which] != (1.0, 1.0):
                factor = between(self.spans[which], uniforms[1 + which])
                _cv2().transform(image, _weights(which, factor, image), dst=out)
                image = out


class Chain:
    """Augmentations one after the other, for images of a shape, with as few copies as there can be.

    `is_map`: it is no image but a map beside one, whose colours are none.
    """

    def __init__(self, augments: Sequence[Augment], shape: Shape, is_map: bool = False) -> None:
        self.augments = tuple(augments)
        self.is_map = is_map
        self._acts = [on_map(own) if is_map else own for own in self.augments]
        for own in self._acts:
            shape = own.shape(shape) if own else shape
        if None in shape:
            raise UsageError(
                f"the images differ in size, and after augmentation still do: {shape}",
                hint="begin with RandomResizedCrop, RandomCrop or CentreCrop",
            )
        self.out_shape = tuple(side or 0 for side in shape)
        bounds = accumulate((augment.draws for augment in self.augments), initial=0)
        self._own = [slice(start, end) for start, end in pairwise(bounds)]
        salts = [mix(np.arange(own.draws, dtype=np.uint64), at) for at, own in enumerate(self.augments)]
        self._salts = mix(np.concatenate(salts), DRAWS_SALT)
        self.digest = digest_of(repr([_settings(augment) for augment in self.augments]).encode())

    def uniforms(self, key_hashes: Hashes, seed: int, epoch: int) -> list[list[float]]:
        """The random numbers of some samples in one epoch: a row each."""
        of_sample = mix(mix(key_hashes, seed), epoch)
        numbers = mix(of_sample[:, None] ^ self._salts, DRAWS_SALT) >> np.uint64(11)
        rows: list[list[float]] = (numbers * 2.0**-53).tolist()
        return rows

    def apply(self, image: Image, uniforms: Uniforms, out: Image) -> None:
        """Write to `out` what becomes of `image`, which stays as it is."""
        acting = [
            (augment, own)
            for augment, part in zip(self._acts, self._own, strict=True)
            if augment and not augment.idle(own := uniforms[part])
        ]
        if not acting:
            out[...] = image
        # From the last that cannot work in place on, all write to the batch. Most often that is the first.
        last = max((at for at, (augment, _) in enumerate(acting) if not augment.in_place), default=0)
        for at, (augment, own) in enumerate(acting):
            shape: Any = augment.shape(image.shape)  # refuses what is too small, where samples differ
            room = out if at >= last else np.empty(shape, image.dtype)
            augment.apply(image, own, room)
            image = room


def fields_among(fields: Iterable[Field], dataset: str, asked: Sequence[str] | None) -> tuple[Field, ...]:
    """The fields that are augmented, all alike: those that are asked for, else all that have axes HWC."""
    known = {field.name: field for field in fields}
    if asked is not None and (missing := [name for name in asked if name not in known]):
        raise UsageError(f"{dataset} has no field {missing[0]!r} to augment", hint=nearest(missing[0], known))
    named = [
        field for field in known.values() if (field.axes == "HWC" if asked is None else field.name in asked)
    ]
    odd = [field for field in named if field.dtype not in DTYPES or field.axes != "HWC"]
    if odd or not named:
        raise UsageError(
            f"only images of {', '.join(DTYPES)} can be augmented: {dataset} has {odd[0] if odd else 'none'}",
            hint="name others in augment_fields, or augment in your own code",
        )
    return tuple(named)


def chains_of(
    augments: Sequence[Augment], fields: Sequence[Field], shapes: Mapping[str, Shape]
) -> dict[str, Chain]:
    """A chain for each field that is augmented, so that all of a sample change alike."""
    sides = {shapes[field.name][:2]: field.name for field in fields}
    if len(sides) > 1:
        told = " and ".join(f"{name} {height}x{width}" for (height, width), name in sides.items())
        raise UsageError(
            f"{told} cannot be augmented alike: they differ in size",
            hint="stage them in one size, or name one in augment_fields",
        )
    if fields and not any(map(has_colours, fields)) and not all(map(on_map, augments)):
        raise UsageError(f"{fields[0]} has no colours to change", hint="leave out ColourJitter")
    return {field.name: Chain(augments, shapes[field.name], not has_colours(field)) for field in fields}


def on_map(augment: Augment) -> Augment | None:
    """What an augmentation is for a map or a mask: no colours, and nothing between two classes."""
    if isinstance(augment, ColourJitter):
        return None
    return augment.nearest() if isinstance(augment, RandomResizedCrop) else augment


def has_colours(field: Field) -> bool:
    return field.dtype == "uint8" and field.shape[2:] == (3,)


def _settings(augment: Augment) -> tuple[str, list[tuple[str, object]]]:
    """What decides what it does: its kind and its public attributes."""
    public = [(name, value) for name, value in vars(augment).items() if not name.startswith("_")]
    return type(augment).__name__, sorted(public)


def between(span: Span, uniform: float) -> float:
    """The number at this part of the way from one end of a span to the other."""
    return span[0] + (span[1] - span[0]) * uniform


def _size(size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise UsageError(f"a size of {size} makes no sense", hint="pixels: one side, or (height, width)")
    return height, width


def _cropped(shape: Shape, size: tuple[int, int], padding: int) -> Shape:
    for have, want in zip(shape, size, strict=False):
        if have is not None and have + 2 * padding < want:
            raise UsageError(
                f"a crop of {size[0]} x {size[1]} is larger than an image of {shape[0]} x {shape[1]}",
                hint="crop less, pad more, or stage larger images",
            )
    return (*size, shape[2])


def _flat(image: Image) -> Image:
    """As OpenCV has it: one channel is none."""
    return image[:, :, 0] if image.shape[2] == 1 else image


def _factors(name: str, value: float | Span) -> Span:
    low, high = (max(0.0, 1 - value), 1 + value) if isinstance(value, int | float) else value
    if not 0 <= low <= high < math.inf:
        raise UsageError(f"{name} by {value} makes no sense", hint="0.4 stands for (0.6, 1.4)")
    return float(low), float(high)


def _weights(which: int, factor: float, image: Image) -> npt.NDArray[np.float64]:
    """What becomes of red, green and blue: rows of three weights and an offset."""
    weights: npt.NDArray[np.float64] = factor * SAME + (1 - factor) * TOWARDS[which]
    if which == 1:
        weights[:, 3] = (1 - factor) * float(GREY @ _cv2().mean(image)[:3])
    return weights


@cache
def _cv2() -> Any:
    """OpenCV, whose threads are left alone: what it does here is too small for it to use more than one."""
    try:
        import cv2
    except ModuleNotFoundError:
        raise StagerError(
            "augmentation needs OpenCV, which is not installed", hint="pip install 'stager[augment]'"
        ) from None
    return cv2
