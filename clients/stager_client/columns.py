"""What is handed out of a sample: fields, and attributes of the manifest; one alone, or all by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stager.errors import UsageError, nearest
from stager.reader.values import Attribute, Field, Numbers, Shape

Value = TypeVar("Value")
Values = Any  # of an attribute, by position: an array of NumPy's, or of Arrow's if they are texts


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields and attributes that are handed out. `is_alone`: it is one field, and nobody named it."""

    fields: Mapping[str, Field]
    attributes: Mapping[str, Attribute]
    is_alone: bool

    def given(self, values: Mapping[str, Value]) -> Value | dict[str, Value]:
        """What stands in the place of the sample: a field alone as it is, all else by name."""
        if self.is_alone and len(values) == 1:  # a padded one has its lengths beside it
            return values[next(iter(values))]
        return dict(values)


def choose_columns(
    dataset: str, fields: Sequence[Field], attributes: Sequence[Attribute], asked: Sequence[str] | None
) -> Columns:
    """Those that are asked for. None: a field that is the only one, else all there are."""
    field_of = {field.name: field for field in fields}
    attribute_of = {one.name: one for one in attributes if one.name not in field_of}  # say, a file's name
    if asked is None:
        is_alone = len(fields) == 1
        return Columns(field_of, {} if is_alone else attribute_of, is_alone)
    known = [*field_of, *attribute_of]
    if isinstance(asked, str) or not len(asked):
        raise UsageError(f"columns is {asked!r}", hint=f"a list of names; {dataset} has {', '.join(known)}")
    for name in asked:
        if name not in known:
            raise UsageError(f"{dataset} has no column {name!r}", hint=nearest(name, known))
    return Columns(
        {name: field_of[name] for name in asked if name in field_of},
        {name: attribute_of[name] for name in asked if name in attribute_of},
        is_alone=False,
    )


def length_name(field: str) -> str:
    """The column that has the lengths of a padded field."""
    return f"{field}_length"


def is_padded(field: Field, shape: Shape) -> bool:
    """Whether its samples differ in shape, and are filled up to the longest of a batch."""
    return field.batch == "pad" and None in shape


def lengths_of(shape: Shape, sides: Sequence[int]) -> list[int]:
    """How long a sample is on the sides on which samples differ."""
    return [side for known, side in zip(shape, sides, strict=True) if known is None]


def attribute_values(dataset: str, attribute: Attribute, found: Any) -> Values:
    """The values as they are handed out, of what Arrow has: no number is NaN, no text is empty.

    Whole numbers and truths have no such value: raise UsageError if one is missing.
    """
    if attribute.type == "string":
        return found.fill_null("")
    if found.null_count and attribute.type != "float64":
        raise UsageError(
            f"{found.null_count} samples of {dataset} have no {attribute.name}, and {attribute.type} cannot"
            " express that",
            hint=f"leave it out of columns, or the samples out by where; as float64, {attribute.name}"
            " would be NaN there",
        )
    return np.asarray(found.to_numpy(zero_copy_only=False))


def values_at(values: Values, positions: Numbers) -> npt.NDArray[Any]:
    """The values at these positions; texts as an array of str."""
    if isinstance(values, np.ndarray):
        return np.asarray(values[positions])
    return np.asarray(values.take(pa.array(positions)).to_numpy(zero_copy_only=False))
