from __future__ import annotations

import pickle

from emmy.ir import tile_ir as tile
from emmy.ir.dtype import DTYPES


def test_a_node_that_was_pickled_is_the_node() -> None:
    for x in (*DTYPES.values(), tile.Tensor("x", (2, 3), DTYPES["bf16"]), tile.Schedule(tile.Row("t256"), "map")):
        assert pickle.loads(pickle.dumps(x)) is x
