"""What every Recipe promises. Subclass, give a spec and data, inherit the tests."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stager.errors import REASONS, SampleError, UsageError
from stager.interfaces import Data, Recipe
from stager.reader.shards.stored import stored_dtype
from stager.reader.values import Arrays, canonical_json
from stager.recipes import check_recipe, open_recipe

Given = tuple[Sequence[Data], tuple[Any, ...]]  # data and inputs of one sample


class RecipeContract:
    """`spec`: a recipe's table; `other`: one that gives other samples; `good` and `bad`: data, by name."""

    spec: Mapping[str, Any]
    other: Mapping[str, Any]

    def good(self) -> Mapping[str, Given]:
        raise NotImplementedError("data of samples that can be had")

    def bad(self) -> Mapping[str, Given]:
        raise NotImplementedError("data of samples that cannot")

    def recipe(self) -> Recipe:
        return open_recipe(self.spec)

    def test_equal_specs_have_equal_digests_and_others_another(self) -> None:
        digest = self.recipe().digest
        assert digest == open_recipe(dict(self.spec)).digest == open_recipe(check_recipe(self.spec)).digest
        assert len(digest) == 32
        assert int(digest, 16) >= 0
        assert open_recipe(self.other).digest != digest

    def test_a_spec_that_was_checked_is_checked_to_itself_and_survives_json(self) -> None:
        checked = check_recipe(self.spec)
        assert check_recipe(checked) == checked
        assert canonical_json(check_recipe(checked)) == canonical_json(checked)

    def test_an_unknown_key_is_refused_with_a_hint(self) -> None:
        spec: dict[str, Any] = dict(self.spec)
        with pytest.raises(UsageError, match="nonsense") as raised:
            check_recipe(spec_with(spec, "nonsense", 1))
        assert raised.value.hint

    def test_fields_have_names_of_their_own_and_a_way_to_make_a_batch(self) -> None:
        fields = self.recipe().fields
        assert len({field.name for field in fields}) == len(fields) > 0
        for field in fields:
            assert field.batch in ("stack", "pad", "ragged")
            assert len(field.axes) in (0, len(field.shape))
            assert np.dtype(field.dtype).kind in "biufc"

    def test_arrays_are_what_the_fields_say_in_memory_that_is_contiguous(self) -> None:
        recipe = self.recipe()
        for data, inputs in self.good().values():
            arrays = recipe.prepare(data, inputs)
            assert list(arrays) == [field.name for field in recipe.fields]
            for field in recipe.fields:
                array = arrays[field.name]
                assert array.dtype == stored_dtype(field)
                assert array.flags.c_contiguous
                if field.encoding == "raw":
                    assert len(array.shape) == len(field.shape)
                    assert all(s in (None, a) for s, a in zip(field.shape, array.shape, strict=True))

    def test_the_same_data_give_the_same_arrays_in_any_thread(self) -> None:
        recipe, cases = self.recipe(), list(self.good().values())
        alone = [recipe.prepare(*case) for case in cases]
        with ThreadPoolExecutor(4) as threads:
            for made, expected in zip(
                threads.map(lambda c: recipe.prepare(*c), cases * 4), alone * 4, strict=True
            ):
                assert_same(made, expected)

    def test_data_are_left_as_they_were(self) -> None:
        for data, inputs in self.good().values():
            before = [bytes(part) for part in data]
            self.recipe().prepare(data, inputs)
            assert [bytes(part) for part in data] == before

    def test_what_cannot_be_prepared_is_a_sample_error_with_a_reason(self) -> None:
        for name, (data, inputs) in self.bad().items():
            with pytest.raises(SampleError) as raised:
                self.recipe().prepare(data, inputs)
            assert raised.value.reason in REASONS, name
            assert raised.value.message.isprintable(), name

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def test_any_damage_leaves_arrays_or_a_sample_error(self, draw: st.DataObject) -> None:
        data, inputs = draw.draw(st.sampled_from(list(self.good().values())))
        which = draw.draw(st.integers(0, len(data) - 1))
        raw = bytearray(bytes(data[which]))
        for at in draw.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=4)):
            raw[at] ^= 1 << draw.draw(st.integers(0, 7))
        if draw.draw(st.booleans()):
            del raw[draw.draw(st.integers(0, len(raw) - 1)) :]
        parts = [memoryview(bytes(raw)) if at == which else part for at, part in enumerate(data)]
        try:
            arrays = self.recipe().prepare(parts, inputs)
        except SampleError:
            return
        assert list(arrays) == [field.name for field in self.recipe().fields]

    def test_what_it_takes_has_a_name_and_endings_in_lower_case(self) -> None:
        takes = self.recipe().takes
        assert takes.one
        assert takes.many
        assert all(ending.startswith(".") and ending == ending.lower() for ending in takes.endings)

    def test_of_a_table_without_its_columns_it_says_so(self) -> None:
        with pytest.raises(UsageError) as raised:
            self.recipe().needs(["something", "else"])
        assert raised.value.hint


def spec_with(spec: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The spec with one more key, in the first of its tables if it has several."""
    if all(isinstance(table, dict) for table in spec.values()):
        first = next(iter(spec))
        return {**spec, first: {**spec[first], key: value}}
    return {**spec, key: value}


def assert_same(made: Arrays, expected: Arrays) -> None:
    assert made.keys() == expected.keys()
    for name in made:
        np.testing.assert_array_equal(made[name], expected[name])
