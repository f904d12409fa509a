"""Loop IR reads back from its text to the same node, and says where a text is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from emmy.check.programs import programs
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tensor_ir as tir
from emmy.ir.index import Ax, IxAdd, IxConst, IxDiv, IxMod, IxMul, Pos
from emmy.ir.loop_text import parse, print_program
from emmy.ir.node import IRError
from emmy.lower.tensor_to_loop import lower

TEXT = """loop {
  input x : f32[32, 2048]
  weight "axis" : bf16[2048]
  axis a0 < 2048
  t0[p0] : f32[32] = rsqrt(reduce.add{a0}(mul(x[p0, a0], x[p0, a0])))
  y[p0, p1] : f32[32, 2048] =
    %0 = exp(mul(x[p0, p1], t0[p0]))
    div(%0, add(%0, axis[p1 * 3 % 2048]))
  return result = y
}
"""


@settings(max_examples=60)
@given(programs())
def test_print_and_parse_are_inverse(program: tir.Program) -> None:
    source = lower(program)
    assert parse(print_program(source)) is source


def test_text_is_as_documented() -> None:
    assert print_program(parse(TEXT)) == TEXT


def test_every_kind_of_value_reads_back() -> None:
    i = loop.Load("i", dt.i64, (IxAdd(IxMul(Pos(0), -1), IxConst(3)),))
    x = loop.Load("odd name", dt.f16, (loop.IxOf(i), IxMod(IxDiv(IxAdd(Ax(0), IxAdd(Pos(0), Ax(0))), 2), 5)))
    half = loop.Cast(dt.bf16, loop.Round(dt.f16, x))
    numbers = [loop.Const(dt.f32, bits) for bits in (0x80000000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x00000001, dt.bits(dt.f32, 0.1))]
    body: loop.Value = loop.Channel("softmax", 0, half, loop.Apply("sub", (half, loop.Pivot("softmax", 0, half))))
    body = loop.Apply("add", (body, loop.Scan("max", 0, IxDiv(loop.IxOf(i), 2), half)))
    for number in numbers:
        body = loop.Apply("mul", (body, number))
    body = loop.Apply("select", (loop.Const(dt.bool_, 1), body, loop.Cast(dt.f32, loop.IndexOf(IxAdd(Pos(0), loop.IxOf(i))))))
    inputs = tir.Input("i", (4,), dt.i64, "constant"), tir.Input("odd name", (4, 9), dt.f16, "weight")
    program = loop.Program(inputs, ((0, 5),), (loop.Definition("y", (4,), dt.f32, body),), (("y", "y"), ("same", "y"), ("in", "i")))
    assert parse(print_program(program)) is program


def test_text_of_a_long_chain_of_doublings_is_linear() -> None:
    body: loop.Value = loop.Load("x", dt.f32, (Pos(0),))
    for _ in range(400):
        body = loop.Apply("add", (body, body))
    program = loop.Program((tir.Input("x", (4,), dt.f32),), (), (loop.Definition("y", (4,), dt.f32, body),), (("y", "y"),))
    text = print_program(program)
    assert len(text.splitlines()) < 410
    assert parse(text) is program


@pytest.mark.parametrize(("old", "new", "message"), [
    ("x[p0, p1]", "z[p0, p1]", r"line 7, column \d+: no tensor 'z'"),
    ("exp(", "exq(", "line 7.*expected a value, found 'exq'"),
    ("add(%0,", "add(%1,", "line 8.*%1 is not defined"),
    ("reduce.add{a0}", "reduce.plus{a0}", "line 5.*unknown monoid 'plus'"),
    ("reduce.add{a0}", "reduce.add{p0}", "line 5.*expected an axis"),
    ("x[p0, p1]", "x[p0]", "loads x as f32 at 1 coordinates"),
    ("rsqrt(", "select(", "line 5.*1 operands where 3 belong"),
    ("axis a0 < 2048\n", "", "axis a0 has no extent"),
])
def test_errors_say_where(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(IRError, match=message):
        parse(TEXT.replace(old, new, 1))
