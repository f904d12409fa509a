"""Corner inputs on a GPU, with every kind of row: small ones, views that lie askew, and more than 2^31 elements."""

from __future__ import annotations

import pytest
import torch

from tests.corners import CORNERS, EMPTY, LARGE, SCALARS
from tests.corners_gpu import built, offset, pitched, run

pytestmark = pytest.mark.gpu
SMALL = {name: corner for name, corner in CORNERS.items() if not name.endswith(("1)", "1x1x1"))}


@pytest.mark.parametrize("name", SMALL)
def test_corner(name: str) -> None:
    made = built(SMALL[name])
    assert not run(made) and not run(made, offset) and not run(made, pitched)


@pytest.mark.parametrize("name", EMPTY)
def test_nothing(name: str) -> None:
    assert not run(built(EMPTY[name]))


@pytest.mark.parametrize("name", SCALARS)
def test_a_single_number(name: str) -> None:
    assert not run(built(SCALARS[name])) and not run(built(SCALARS[name]), offset)


@pytest.mark.parametrize("name", LARGE)
def test_more_elements_than_31_bits_count(name: str) -> None:
    assert not run(built(LARGE[name], most=0.1))
    torch.cuda.empty_cache()
