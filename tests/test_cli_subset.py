"""A verb that takes a subset has its options, wherever they are described."""

import inspect
from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from stager.cli.subset import subset_of, takes_subset
from stager.errors import UsageError
from stager.reader.samples.subset import Subset


def test_the_options_are_those_of_a_subset_with_its_defaults() -> None:
    options = {known.name: known.default for known in inspect.signature(subset_of).parameters.values()}
    assert options == {field.name: field.default for field in fields(Subset)}


def test_a_verb_gets_the_subset_that_its_options_say() -> None:
    got: list[tuple[Subset, str, bool]] = []
    app = typer.Typer()

    @app.command()
    @takes_subset
    def verb(subset: Subset, dataset: str = "", loud: bool = False) -> None:
        """What --help says."""
        got.append((subset, dataset, loud))

    def run(line: str) -> str:
        told = CliRunner().invoke(app, line.split(), catch_exceptions=False)
        assert told.exit_code == 0, told.output
        return told.output

    run("")
    run(
        "--classes b,a --seed 3 --per-class 2 --fraction 0.5 --where size>1 --split val --dataset pets --loud"
    )
    wanted = Subset(classes=("b", "a"), seed=3, per_class=2, fraction=0.5, where="size>1", split="val")
    assert got == [(Subset(), "", False), (wanted, "pets", True)]
    run("--split train --split val")
    assert got[-1][0] == Subset(split="train,val"), "no option that is given twice loses its first value"
    assert "What --help says." in run("--help")
    with pytest.raises(UsageError):
        run("--where size>")
