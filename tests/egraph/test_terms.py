"""Loop IR to egglog text and back: what a region holds is what went in."""

from __future__ import annotations

import pytest

from emmy.egraph.saturate import saturate
from emmy.egraph.terms import Region, body
from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, IxAdd, IxConst, IxDiv, IxMod, IxMul, Pos
from emmy.ir.loop_ir import Value
from emmy.ir.node import IRError
from emmy.ir.tensor_ir import Input


def region(value: Value, shape: tuple[int, ...], *inputs: Input, axes: tuple[tuple[int, int], ...] = ()) -> Region:
    """The region of one definition of `value`, under exact rules."""
    definition = loop.Definition("y", shape, dt.f32, value)
    return saturate(loop.Program(inputs, axes, (definition,), (("y", "y"),)), "exact")


def back(made: Region, c: int) -> Value:
    """A value of class `c` that keeps no tensor."""
    term = next(t for t in made.terms[c] if t.kind != "Tensor")
    return term.build(tuple(back(made, k) for k in term.kids), made.elements().get(term.label))


@pytest.mark.parametrize("bits", [0, 0x80000000, 0x7FC00001, 0xFF800000, 1], ids=hex)
def test_a_constant_keeps_its_bits(bits: int) -> None:
    made = region(loop.Const(dt.f32, bits), ())
    assert back(made, made.home["y"]) is loop.Const(dt.f32, bits)


def test_a_constant_of_64_bits_with_the_top_one_set() -> None:
    most = loop.Const(dt.f64, dt.bits(dt.f64, -0.0))
    made = region(loop.Cast(dt.f32, most), ())
    assert back(made, made.home["y"]) is loop.Cast(dt.f32, most)


def test_every_kind_of_value_comes_back_at_the_output_axes() -> None:
    def built(i: IxAdd | Pos | Ax) -> Value:
        x = loop.Load("x", dt.bf16, (IxMod(IxAdd(IxMul(i, 7), IxConst(3)), 5), Ax(0)))
        index = loop.Load("i", dt.i64, (i,))
        gathered = loop.Load("x", dt.bf16, (IxDiv(i, 2), loop.IxOf(index)))
        scan = loop.Scan("max", 0, loop.IxOf(index), loop.Round(dt.bf16, x))
        chosen = loop.Apply("select", (loop.Apply("le", (loop.IndexOf(i), index)), gathered, scan))
        return loop.Apply("sub", (chosen, loop.Reduce("max", 0, loop.Cast(dt.f16, x))))

    inputs = Input("x", (5, 6), dt.bf16), Input("i", (4,), dt.i64)
    made = region(built(Pos(0)), (4,), *inputs, axes=((0, 6),))
    (at,) = made.output_axes["y"]
    assert back(made, made.home["y"]) is built(Ax(at))
    assert made.deps[made.home["y"]] == {at}


def test_a_definition_does_not_start_twisted() -> None:
    with pytest.raises(IRError, match="Pivot is derived by rules"):
        body(loop.Pivot("softmax", 0, loop.Load("x", dt.f32, (Ax(0),))), {"x"})
