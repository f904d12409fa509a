"""The text of a kernel reads back as the kernel, and names what is wrong where it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.instructions import Let, StoreGlobal
from emmy.ir import dtype as dt
from emmy.ir.dtype import DTYPES
from emmy.ir.kernel_ir import STATEMENTS, Apply, Block, Const, Convert, Expr, GlobalBuffer, Kernel, Thread, Var, walk
from emmy.ir.kernel_parser import parse
from emmy.ir.kernel_text import show
from emmy.ir.node import IRError
from tests import kernels


@pytest.mark.parametrize("kernel", kernels.EVERY, ids=lambda k: k.name)
def test_round_trip(kernel: Kernel) -> None:
    assert parse(show(kernel)) is kernel


def test_the_kernels_use_every_statement() -> None:
    used = {type(s).__name__ for k in kernels.EVERY for s in walk(k.body)}
    assert used == {name for name, cls in STATEMENTS.items() if "syntax" in cls.__dict__}


def test_text() -> None:
    assert show(kernels.vector_map(1000)) == """\
kernel vector_map(read src: f32[1000], write dst: f32[1000]) grid(8, 1, 1) block(128) {
  let i: i32 = block_x * 128 + thread;
  load_global x: f32 = src[i] if i < 1000 else 1.0f;
  store_global dst[i] = exp(neg(x)) if i < 1000;
}
"""


def constants() -> st.SearchStrategy[Expr]:
    return st.sampled_from([d for d in DTYPES.values() if d is not dt.bool_]).flatmap(
        lambda d: st.integers(0, 2 ** (8 * d.bytes) - 1).map(lambda bits: Const(d, bits)))


def integers() -> st.SearchStrategy[Expr]:
    numbers = st.integers(0, 2**32 - 1).map(lambda b: Const(dt.i32, b))
    leaves = st.one_of(numbers, st.sampled_from([Thread(), Block(0), Block(1), Block(2), Var("v", dt.i32)]))
    binary = st.sampled_from(["add", "sub", "mul", "truncdiv", "fmod", "max", "mod", "floordiv"])
    comparison = st.sampled_from(["lt", "le", "eq", "ne"])

    def choose(op: str, a: Expr, b: Expr, x: Expr, y: Expr) -> Expr:
        both = Apply("and", (Apply("lt", (x, y)), Apply("ne", (a, y))))
        return Apply("select", (Apply("or", (Apply(op, (a, b)), both)), x, y))

    return st.recursive(leaves, lambda e: st.one_of(
        st.builds(lambda op, x, y: Apply(op, (x, y)), binary, e, e),
        st.builds(lambda x: Apply("neg", (x,)), e),
        st.builds(lambda x: Convert(dt.i32, Convert(dt.bf16, x)), e),
        st.builds(choose, comparison, e, e, e, e)), max_leaves=12)


@given(st.one_of(constants(), integers()))
def test_expressions_round_trip(e: Expr) -> None:
    kernel = Kernel("k", (GlobalBuffer("dst", e.dtype, 1, "write"),), (), (1, 1, 1), 1, (
        Let(Var("v", dt.i32), Thread()), StoreGlobal("dst", Thread(), e)))
    assert parse(show(kernel)) is kernel


@pytest.mark.parametrize(("line", "message"), [
    ("let x: f32 = y;", "a name that is defined expected, not 'y'"),
    ("let x: f33 = 1.0f;", "a dtype expected, not 'f33'"),
    ("let x: f32 = 1.0f", "';' expected, not '}'"),
    ("jump 3;", "a statement expected, not 'jump'"),
    ("for i: i32 = 0, 4 { barrier; }", "',' expected, not '{'"),
])
def test_errors(line: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse(f"kernel k() grid(1, 1, 1) block(32) {{ {line} }}")
