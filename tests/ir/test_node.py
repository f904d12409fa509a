from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any

import pytest

from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DTYPES
from emmy.ir.node import unwound


def test_a_node_that_was_pickled_is_the_node() -> None:
    for x in (*DTYPES.values(), tile.Tensor("x", (2, 3), DTYPES["bf16"]), tile.Schedule(tile.Row("t256"), "map")):
        assert pickle.loads(pickle.dumps(x)) is x


def test_a_recursion_that_is_unwound_is_as_deep_as_memory() -> None:
    def below(n: int) -> Generator[Any, int, int]:
        return n and 1 + (yield below(n - 1))

    assert unwound(below(100_000)) == 100_000


def test_an_error_ends_a_recursion_that_is_unwound() -> None:
    def below(n: int) -> Generator[Any, int, int]:
        return 1 // n + (yield below(n - 1))

    with pytest.raises(ZeroDivisionError):
        unwound(below(3))
