"""Errors cross from one process to another as JSON, and stay what they were."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stager import errors
from stager.errors import KINDS, REASONS, CacheOwned, SampleError, StagerError

texts = st.text(max_size=20)


def test_every_kind_of_the_tree_is_known() -> None:
    def below(kind: type[StagerError]) -> set[type[StagerError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    assert set(KINDS.values()) == {kind for kind in below(StagerError) if kind.__module__ == errors.__name__}
    assert set(KINDS) <= set((errors.__doc__ or "").split()), "draw it in the tree"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(st.data())
def test_an_error_of_any_kind_comes_through_json_as_it_was(
    kind: type[StagerError], data: st.DataObject
) -> None:
    more = {name: data.draw(st.sampled_from([*REASONS]) if name == "reason" else texts) for name in kind.more}
    error = kind(**{"message": data.draw(texts), "hint": data.draw(texts), **more})
    again = errors.from_json(json.loads(json.dumps(errors.to_json(error))))
    assert (type(again), vars(again), str(again)) == (kind, vars(error), str(error))
    assert again.exit_code == error.exit_code


def test_what_a_kind_says_besides_is_all_that_it_keeps() -> None:
    assert vars(SampleError("corrupt", "a")).keys() == {"message", "hint", "reason"}
    assert vars(CacheOwned("a")).keys() == {"message", "hint", "pid", "what"}


@pytest.mark.parametrize(
    "value",
    [
        {"error": "OfTomorrow", "message": "m", "hint": "h"},
        {"error": "OfTomorrow", "message": "m", "hint": "h", "colour": "red"},
        {"error": "shown", "message": "m", "hint": "h"},  # a name of errors.py that is no error
        {"error": "SampleError", "message": "m", "hint": "h", "reason": "of_tomorrow"},
        {"error": "SampleError", "message": "m", "hint": "h"},
        {"error": "SampleError", "message": "m", "hint": "h", "reason": ["corrupt"]},
        {"error": None, "message": "m", "hint": "h"},
        {"error": ["UsageError"], "message": "m", "hint": "h"},
    ],
)
def test_an_error_of_a_kind_nobody_knows_is_an_error_all_the_same(value: dict[str, object]) -> None:
    error = errors.from_json(value)
    assert (type(error), error.message, error.hint) == (StagerError, "m", "h")


def test_an_error_without_a_hint_has_none() -> None:
    assert errors.from_json({"error": "UsageError", "message": "m"}).hint == ""
