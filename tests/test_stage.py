from __future__ import annotations

import sys

import pytest

from emmy.errors import EmmyError
from emmy.stage import DEPTH, deep, stage


class Staged:
    def __init__(self) -> None:
        self.times = 0

    @stage
    def limit(self) -> int:
        self.times += 1
        return sys.getrecursionlimit()

    @stage
    def too_deep(self) -> int:
        return self.followed(1)

    def followed(self, depth: int) -> int:
        return self.followed(depth + 1)


def test_a_stage_is_computed_once_on_a_deep_stack() -> None:
    allowed, staged = sys.getrecursionlimit(), Staged()
    assert staged.limit == staged.limit == DEPTH > allowed
    assert staged.times == 1 and sys.getrecursionlimit() == allowed


def test_a_program_that_is_too_deep_is_an_error_with_a_remedy() -> None:
    allowed = sys.getrecursionlimit()
    with pytest.raises(EmmyError, match="more operators than Emmy follows\n.*in parts"):
        _ = Staged().too_deep
    assert sys.getrecursionlimit() == allowed


def test_a_higher_limit_of_the_caller_is_kept() -> None:
    allowed = sys.getrecursionlimit()
    sys.setrecursionlimit(2 * DEPTH)
    try:
        with deep():
            assert sys.getrecursionlimit() == 2 * DEPTH
    finally:
        sys.setrecursionlimit(allowed)
