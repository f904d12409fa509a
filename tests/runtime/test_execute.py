"""What a compiled program says of arguments that it was not compiled for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import emmy
from emmy.errors import EmmyError

X = torch.zeros(2, 3)


@pytest.mark.parametrize("arguments, said", [((), "takes 1 tensors \\(x0\\), not 0"),
                                             ((X, X), "not 2"),
                                             ((3,), "argument x0 is int, not a tensor"),
                                             (([1.0],), "argument x0 is list, not a tensor"),
                                             ((X.T,), r"float32\[3, 2\]; .* float32\[2, 3\]"),
                                             ((X.double(),), r"float64\[2, 3\]; .* float32\[2, 3\]")])
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(EmmyError, match=said):
        emmy.compile_snippet("torch.randn(2, 3) + 1")(*arguments)
