"""Stages of a compilation: values computed when first asked for, on a deep stack.

What follows chains of operators does so on stacks of its own (`postorder`, `unwound`); this is for what goes deep otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from typing import Any

from emmy.errors import EmmyError

DEPTH = 10_000      # calls of Python


@contextmanager
def deep() -> Iterator[None]:
    """Python's limit of nested calls raised to `DEPTH`; EmmyError if even that is too few."""
    allowed = sys.getrecursionlimit()
    sys.setrecursionlimit(max(allowed, DEPTH))
    try:
        yield
    except RecursionError as e:
        raise EmmyError("the program is a chain of more operators than Emmy follows", "compile it in parts of some hundred") from e
    finally:
        sys.setrecursionlimit(allowed)


def stage[T](compute: Callable[[Any], T]) -> cached_property[T]:
    """A cached property that is computed on a deep stack."""
    @wraps(compute)
    def deeply(program: Any) -> T:
        with deep():
            return compute(program)

    return cached_property(deeply)
