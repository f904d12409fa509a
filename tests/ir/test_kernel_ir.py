"""Expressions fold, and `verify` names the statement that breaks a rule."""

from __future__ import annotations

import pytest

from emmy.instructions import (
    Assign,
    Barrier,
    Declare,
    DeclareArray,
    For,
    If,
    Let,
    LoadGlobal,
    LoadGlobalVector,
    SetElement,
    ShuffleXor,
    StoreGlobal,
    StoreSharedVector,
)
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import (
    Apply,
    Const,
    Convert,
    Element,
    Expr,
    GlobalBuffer,
    Kernel,
    SharedBuffer,
    Stmt,
    Thread,
    Var,
    const,
    int32,
    verify,
)
from emmy.ir.node import IRError
from tests import kernels

T, N, M, X, ONE = Thread(), Var("n", dt.i32), Var("m", dt.i32), Var("x", dt.f32), const(dt.f32, 1)
FLAG, FOUR = Var("flag", dt.bool_), int32(4)


@pytest.mark.parametrize(("made", "expected"), [
    (int32(3) + 4, int32(7)), (N + 0, N), (0 + N, N), (N - 0, N), (N * 1, N), (N * 0, int32(0)), (N // 1, N), (N % 1, int32(0)),
    (int32(7) // 2, int32(3)), (int32(7) % 4, int32(3)), (int32(3) < 4, const(dt.bool_, True)), (int32(3) == 4, const(dt.bool_, False)),
    (N < 4, Apply("lt", (N, int32(4)))), (N > 4, Apply("lt", (int32(4), N))), (N >= 4, Apply("le", (int32(4), N))),
    (10 - N, Apply("sub", (int32(10), N))),
    (FLAG & (int32(1) < 2), FLAG), (FLAG | (int32(1) < 2), const(dt.bool_, True)), (FLAG & (int32(2) < 1), const(dt.bool_, False)),
    (N + const(dt.i64, 1), Apply("add", (Convert(dt.i64, N), const(dt.i64, 1)))),
    (X * const(dt.f32, 0), Apply("mul", (X, const(dt.f32, 0)))), (X + const(dt.f32, 0), Apply("add", (X, const(dt.f32, 0)))),
])
def test_folding(made: Expr, expected: Expr) -> None:
    assert made is expected


def test_the_truth_of_an_expression_is_an_error() -> None:
    with pytest.raises(TypeError, match="compare nodes with `is`"):
        bool(N == 3)


def test_operators_check_their_operands() -> None:
    with pytest.raises(IRError, match="add does not take operands of f32, i32"):
        Apply("add", (X, N))


def kernel(*body: Stmt) -> Kernel:
    buffers = (GlobalBuffer("src", dt.bf16, 64, "read"), GlobalBuffer("dst", dt.f32, 64, "write"))
    return Kernel("k", buffers, (SharedBuffer("tile", dt.f32, 64),), (1, 1, 1), 64, body)


def loop(*body: Stmt, unroll: bool = False, stop: Expr = FOUR) -> For:
    return For(N, int32(0), stop, int32(1), unroll, body)


ARRAY = DeclareArray("a", dt.f32, 4, ONE)
BROKEN: list[tuple[str, tuple[Stmt, ...]]] = [
    ("x is not defined", (Let(Var("y", dt.f32), X),)),
    ("x is defined twice", (Let(X, ONE), Let(X, ONE))),
    ("x is defined twice", (Let(X, ONE), If(T < 3, (Let(X, ONE),)))),
    ("tile is defined twice", (Let(Var("tile", dt.f32), ONE),)),
    ("x is not defined", (If(T < 3, (Let(X, ONE),)), StoreGlobal("dst", T, X))),
    ("n is not defined", (loop(Barrier()), StoreGlobal("dst", N, ONE))),
    ("x is f32, not i32", (Let(X, ONE), Let(N, Var("x", dt.i32)))),
    ("is i32, not f32", (Let(X, T),)),
    ("x is a let, not var", (Let(X, ONE), Assign(X, ONE))),
    ("'while' cannot name", (Let(Var("while", dt.f32), ONE),)),
    ("'a b' cannot name", (DeclareArray("a b", dt.f32, 4),)),
    ("not constant after unrolling", (ARRAY, SetElement("a", dt.f32, T, ONE))),
    ("not constant after unrolling", (ARRAY, loop(SetElement("a", dt.f32, N, ONE)))),
    ("element 4 of a, which has 4", (ARRAY, Let(X, Element("a", dt.f32, int32(4))))),
    ("a is of f32, not f64", (ARRAY, SetElement("a", dt.f64, int32(0), const(dt.f64, 1)))),
    ("array a of 0 elements", (DeclareArray("a", dt.f32, 0),)),
    ("src is not a SharedBuffer", (ARRAY, StoreSharedVector("src", T, "a", 0, 4))),
    ("nothing is not a GlobalBuffer", (LoadGlobal(X, "nothing", T),)),
    ("src is only read", (StoreGlobal("src", T, ONE),)),
    ("src holds bf16, which registers of f64", (LoadGlobal(Var("x", dt.f64), "src", T),)),
    ("is f32, not i32 or i64", (LoadGlobal(X, "src", ONE),)),
    ("otherwise without a guard", (LoadGlobal(X, "src", T, None, ONE),)),
    ("is i32, not bool", (If(T, ()),)),
    ("a vector of 3 bf16", (ARRAY, LoadGlobalVector("a", 0, "src", int32(0), 3))),
    ("index 2 of a vector of 4", (ARRAY, LoadGlobalVector("a", 0, "src", int32(2), 4))),
    ("elements 2 to 5 of a, which has 4", (ARRAY, LoadGlobalVector("a", 2, "src", int32(0), 4))),
    ("lane mask 32", (ShuffleXor(X, ONE, 32),)),
    ("step 0 is not positive", (For(N, int32(0), int32(4), int32(0), False, ()),)),
    ("a bound of the loop reads m", (Declare(M, FOUR), loop(Assign(M, int32(1)), stop=M))),
]


@pytest.mark.parametrize(("message", "body"), BROKEN)
def test_verify(message: str, body: tuple[Stmt, ...]) -> None:
    with pytest.raises(IRError, match="kernel k: .*") as caught:
        verify(kernel(*body))
    assert message in str(caught.value) and "\n  in " in str(caught.value)


def test_verify_accepts() -> None:
    for k in kernels.EVERY:
        verify(k)
    at = Var("at", dt.i32)
    inner = For(M, N, FOUR, int32(1), True, (Let(at, M % 4), SetElement("a", dt.f32, at, ONE)))
    verify(kernel(ARRAY, loop(inner, unroll=True), loop(Let(X, ONE)), loop(Let(X, ONE))))


@pytest.mark.parametrize(("change", "message"), [
    ({"block": 1025}, "1025 threads"), ({"grid": (0, 1, 1)}, "grid"), ({"name": "int"}, "cannot name"),
    ({"shared": (SharedBuffer("src", dt.f32, 1),)}, "src is defined twice"),
])
def test_verify_kernels(change: dict[str, object], message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(kernel().replace(**change))


def test_constants_keep_their_bits() -> None:
    assert const(dt.f32, 0.0) is not const(dt.f32, -0.0)
    assert Const(dt.f32, 0x7FC00001) is not const(dt.f32, float("nan"))
