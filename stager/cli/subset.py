"""The options of a subset, for every verb that takes one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from stager.reader.samples.predicate import parse
from stager.reader.samples.subset import Subset, parse_classes

P = ParamSpec("P")


def subset_of(
    classes: Annotated[
        str | None,
        typer.Option(
            help="How many classes (drawn by --seed), their names a,b,c, or @FILE with one name on each line."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Draws classes and samples. With one seed, 100 classes are part of 200.")
    ] = 0,
    per_class: Annotated[int | None, typer.Option(help="At most this many samples of each class.")] = None,
    fraction: Annotated[float | None, typer.Option(help="This part of each class, such as 0.1.")] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Only samples for which this is true, such as: size > 10KB and key like '%.jpg'."),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split: train, val, test; or several: train,val.")
    ] = None,
) -> Subset:
    if where is not None:
        parse(where)  # before anything is opened
    return Subset(
        parse_classes(classes), seed, per_class, fraction, where, ",".join(split) if split else None
    )


def takes_subset(verb: Callable[Concatenate[Subset, P], None]) -> Callable[..., None]:
    """The verb with the options of `subset_of` in the place of its first parameter, which gets the subset."""
    options = inspect.signature(subset_of).parameters
    _, *others = inspect.signature(verb).parameters.values()
    parameters = [*options.values(), *others]

    @wraps(verb)
    def command(*args: Any, **told: Any) -> None:
        subset = subset_of(**{name: told.pop(name) for name in options})
        verb(subset, *args, **told)

    # What typer reads: the one for order and defaults, the other for types and help.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {known.name: known.annotation for known in parameters}
    return command
