"""Every product by rows of each form of warpgroups: shares of a cluster, shares of the last tiles, turns, tiles one above the other."""

from __future__ import annotations

import pytest

from tests.lower.tile_to_kernel import test_hopper_multicast, test_hopper_shares, test_hopper_stream, test_hopper_turns
from tests.lower.tile_to_kernel.products import PRODUCTS

# of each a row, and rows, columns and lengths of sums: tiles of 64 rows do not divide the result, nor forms the stages of a sum
FORMS = {
    "shares": (test_hopper_shares.TWO, (24, 72, 272)),
    "stream": (test_hopper_stream.of(5), (72, 72, 272)),            # four tiles of five blocks, or twelve
    "turns": (test_hopper_turns.TURNS, (152, 72, 272)),             # three tiles of each of two blocks
    "multicast": (test_hopper_multicast.ONE, (72, 40, 272)),
    "multicast, again": (test_hopper_multicast.STAY, (152, 72, 272)),       # two stacks a cluster, whose last tile is below the result
}
NONE = {("multicast", "columns side by side"), ("multicast", "both across"),        # which two blocks share in boxes of 64
        ("multicast, again", "columns side by side"), ("multicast, again", "both across"),
        ("multicast", "computed"), ("multicast, again", "computed")}                # where both sides are copied


@pytest.mark.parametrize(("form", "name"), [(form, name) for form in FORMS for name in PRODUCTS if (form, name) not in NONE])
def test_products(form: str, name: str) -> None:
    row, sizes = FORMS[form]
    PRODUCTS[name](*sizes).assert_right(row)
