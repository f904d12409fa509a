from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.evaluate.drawn import Drawn, draw
from emmy.ir.dtype import bf16, bool_, f32, i64

SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 50), st.integers(0, 2**40))
def test_numpy_and_torch_lay_out_the_same_elements_and_any_is_known_alone(shape: tuple[int, ...], values: int, seed: int) -> None:
    x = Drawn(shape, bf16, np.arange(values).astype(bf16.numpy), seed)
    whole = x.array()
    assert whole.shape == shape and np.array_equal(x.tensor("cpu").float().numpy(), whole.astype(np.float32))
    last = x.size - 1
    assert x.at(np.array([last]))[0] == whole.reshape(-1)[last]


def test_places_far_beyond_32_bits_are_within_the_table_and_differ() -> None:
    x = Drawn((1 << 40,), f32, np.arange(1000, dtype=np.float32), 3)
    places = x.places(np.arange((1 << 40) - 5000, 1 << 40))
    assert places.min() >= 0 and places.max() < 1000 and len(np.unique(places)) > 900


@pytest.mark.parametrize("element", [f32, i64, bool_])
def test_a_small_tensor_is_its_own_table(element) -> None:    # noqa: ANN001
    values = np.array([3, 0, 1, 1, 0, 2]).astype(element.numpy)
    assert np.array_equal(draw((2, 3), element, values).array(), values.reshape(2, 3))


def test_a_large_one_has_values_of_its_example() -> None:
    values = np.random.default_rng(0).integers(0, 7, 100_000)
    x = draw((100_000,), i64, values)
    assert len(x.table) < len(values) and set(np.unique(x.array())) == set(range(7))
    assert abs(x.array().mean() - values.mean()) < 0.1
    few = draw((50,), f32, np.ones(50, np.float32)[:20])
    assert np.array_equal(few.array(), np.ones(50))
    assert draw((0, 4), f32, np.zeros(0, np.float32)).array().shape == (0, 4)
