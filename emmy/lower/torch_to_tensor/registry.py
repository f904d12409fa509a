"""Which function lowers which torch operator.

A lowering takes the call's result type (a tuple of types where there are several results) and the call's arguments:
tensors as Tensor IR nodes, literals as Python values, dtypes as dtypes, lists as tuples.  It returns the result in its compute
type; the driver rounds it once to the stored half type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Lowering = Callable[..., Any]
LOWERINGS: dict[str, Lowering] = {}


def lowers[F: Lowering](*ops: str) -> Callable[[F], F]:
    """Registers the function for these operators (the name with its overload, as in "aten.add.Tensor")."""

    def register(fn: F) -> F:
        LOWERINGS.update(dict.fromkeys(ops, fn))
        return fn

    return register
