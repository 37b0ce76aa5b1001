"""The layout `python`, by its contract; and what a plan says of samples that take differently long."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from computed_contract import ComputedLayoutContract
from stager.errors import UsageError
from stager.interfaces import ComputedLayout, LeftOut
from stager.jobs.plan import make_plan, spread
from stager.layouts import check_layout, default_layout, open_layout, recipe_table
from stager.recipes import open_recipe
from stager.worker.messages import NOTHING_BUILT, Built

RECIPE = {"kind": "python", "prepare": "a:b", "fields": {"x": {"dtype": "int8", "shape": []}}}


def layout(**options: Any) -> ComputedLayout:
    made = open_layout("python", check_layout("python", options), open_recipe(RECIPE), LeftOut())
    assert made.is_computed
    return made


class TestPythonLayout(ComputedLayoutContract):
    def make(self) -> ComputedLayout:
        return layout(count=1000, seed=3)

    def grown(self) -> ComputedLayout:
        return layout(count=1500, seed=3)

    def other(self) -> ComputedLayout:
        return layout(count=1500, seed=4)


class TestPythonLayoutWithVariants(ComputedLayoutContract):
    def make(self) -> ComputedLayout:
        return layout(count=300, variants=5)

    def grown(self) -> ComputedLayout:
        return layout(count=301, variants=5)

    def other(self) -> ComputedLayout:
        return layout(count=300, variants=4)

    def test_the_function_is_given_index_seed_and_variant(self) -> None:
        (rule,) = self.make().rules(self.listing)
        (info,) = rule.infos(np.asarray([17 * 5 + 3]))
        assert (info.key, info.inputs) == ("17/3", (17, 0, 3))
        assert rule.find("17/5") is None
        assert rule.find("17") is None


@pytest.mark.parametrize(
    "options",
    [{}, {"count": 0}, {"count": "many"}, {"count": 5, "seed": -1}, {"count": True}, {"count": 2**40}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        check_layout("python", options)
    assert raised.value.hint


def test_the_source_names_the_function_and_the_recipe_may_not_name_another() -> None:
    assert (default_layout("python:a:b"), default_layout("s3://b/python:a")) == ("python", "folder")
    table = {"source": "python:a:b", "args": {"n": 3}, "recipe": {"deadline_s": 5}}
    told = {"kind": "python", "prepare": "a:b", "args": {"n": 3}, "deadline_s": 5}
    assert recipe_table("python", table) == told
    with pytest.raises(UsageError, match="the recipe has prepare"):
        recipe_table("python", {**table, "recipe": {"prepare": "c:d"}})
    with pytest.raises(UsageError, match="has the source"):
        recipe_table("python", {**table, "source": "/data"})


Costs = npt.NDArray[np.float64]
COSTS: dict[str, Callable[[np.random.Generator, int], Costs]] = {
    "evenly": lambda rng, count: rng.uniform(1, 5, count),
    "by its logarithm": lambda rng, count: np.exp(rng.uniform(0, np.log(5), count)),
    "rising": lambda rng, count: np.linspace(1, 5, count),
    "falling": lambda rng, count: np.linspace(5, 1, count),
    "every other one": lambda rng, count: np.where(np.arange(count) % 2, 5.0, 1.0),
    "every fifth": lambda rng, count: np.where(np.arange(count) % 5, 1.0, 5.0),
    "the last tenth": lambda rng, count: np.where(np.arange(count) >= 0.9 * count, 5.0, 1.0),
    **{
        f"{part:.0%} at random": lambda rng, count, part=part: np.where(rng.random(count) < part, 5.0, 1.0)
        for part in (0.05, 0.2, 0.35, 0.5, 0.8, 0.95)
    },
}


@pytest.mark.parametrize("costs", COSTS)
def test_a_plan_of_five_samples_holds_in_nine_of_ten_trials_where_costs_vary_by_five(costs: str) -> None:
    held, trials = 0, 400
    for trial in range(trials):
        count = 2000 + trial  # the places of the five depend on it, and on nothing else
        cost_s = COSTS[costs](np.random.default_rng([trial, 1]), count)
        seconds = cost_s[spread(count, 5)].tolist()
        squares = sum(s * s for s in seconds)
        built = Built([0] * 5, [], 500, 50_000, 0, 0, 0.0, 0.0, 0.0, sum(seconds), squares)
        plan = make_plan(
            built,
            samples=count,
            cost=(0, 0),
            row_bytes=100,
            room_bytes=1 << 30,
            workers=1,
            threads=3,
            slowdown=1.6,
        )
        held += plan.seconds.low <= cost_s.sum() / 2 <= plan.seconds.high
        assert plan.seconds.low < plan.seconds.estimate < plan.seconds.high
    assert held >= 0.9 * trials


def test_of_nothing_that_could_be_made_nothing_is_said() -> None:
    plan = make_plan(
        NOTHING_BUILT,
        samples=10,
        cost=(0, 0),
        row_bytes=100,
        room_bytes=1,
        workers=1,
        threads=3,
        slowdown=1.6,
    )
    assert (plan.seconds.estimate, plan.rate) == (0, 0)


@pytest.mark.parametrize(("count", "few"), [(1, 5), (5, 5), (7, 5), (100_000, 5), (100_000, 32)])
def test_a_plan_takes_samples_from_all_over(count: int, few: int) -> None:
    places = spread(count, few)
    assert len(set(places.tolist())) == min(count, few)
    for part, place in enumerate(places.tolist()):
        assert part * count // len(places) <= place < (part + 1) * count // len(places)
