"""Tile IR reads back from its text to the same node, axis numbers and schedules included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from emmy.check.programs import programs
from emmy.ir import tensor_ir as tir
from emmy.ir import tile_ir as tile
from emmy.ir.node import IRError
from emmy.ir.tile_text import parse, parse_kernel, print_kernel, print_program
from tests.evaluate.lowered import fused

TEXT = """kernel attention(q: f32[64, 16], k: f32[64, 16], v: f32[64, 8]) -> o: f32[64, 8] {
  row WORK=t16x16,TILE=fma_f32/f4x4/k16,STAGE=d1/smem form twist rows i2 columns i4
  over i2 < 64, i4 < 8
  along r0 < 64, r1 < 16
    f0[r0, i2] = reduce.add r1 : mul(q[i2, r1], k[r0, r1])
  f1 = twist.softmax r0
    f1.0[i2] : mul(f0, const{f32}(0.25))
    f1.1[i2] : const{f32}(1.0)
    f1.2[i2, i4] : v[r0, i4]
  store o[i2, i4] = mul(recip(f1.1), f1.2)
}
"""


@settings(max_examples=25)
@given(programs())
def test_print_and_parse_are_inverse(program: tir.Program) -> None:
    made = fused(program)
    assert parse(print_program(made)) is made


def test_text_is_as_documented() -> None:
    kernel = parse_kernel(TEXT)
    assert print_kernel(kernel) == TEXT
    assert kernel.schedule is not None and (kernel.schedule.rows, kernel.schedule.columns, kernel.schedule.row.threads) == ((2,), (4,), 256)
    assert kernel.fold("f1").span == {2, 4} and kernel.fold("f0").needs == (frozenset({0, 2}),)


def test_a_scan_names_where_it_stops_and_a_scalar_kernel_has_no_axes() -> None:
    scan = "  over i1 < 8\n  along r0 < 8\n  f0[i1] = scan.add r0 <= i1 : x[r0]\n  store y[i1] = f0\n"
    for text in (f"kernel s(x: f32[8]) -> y: f32[8] {{\n{scan}}}\n",
                 "kernel s(x: f32[8]) -> y: f32[] {\n  along r0 < 8\n  f0[] = reduce.max r0 : x[r0]\n  store y[] = neg(f0)\n}\n"):
        assert print_kernel(parse_kernel(text)) == text


def test_a_kernel_stores_each_of_its_outputs() -> None:
    stores = "  store h[i0] = add(x[i0], r[i0])\n  store y[i0] = exp(add(x[i0], r[i0]))\n"
    text = f"kernel s(x: f32[8], r: f32[8]) -> h: f32[8], y: bf16[8] {{\n  over i0 < 8\n{stores}}}\n"
    kernel = parse_kernel(text)
    assert print_kernel(kernel) == text and [o.name for o in kernel.outputs] == ["h", "y"] and kernel.shape == (8,)
    for bad, message in ((text.replace("store y", "store h"), "stores its output, y"), (text.replace("y: bf16[8]", "y: bf16[9]"), "shape"),
                         (text.replace("y: bf16", "x: bf16").replace("store y", "store x"), "of tensors x, r, h, x")):
        with pytest.raises(IRError, match=message):
            parse_kernel(bad)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("f1.2)", "f1.3)", "fold f1 has no result 3"),
    ("f1.2)", "f9)", "expected a value, found 'f9'"),
    ("store o[i2, i4]", "store o[i4, i2]", "line 10.*stores its output"),
    ("mul(f0, ", "mul(q[i4, r1], ", r"depends on axes \[1\]"),
    ("WORK=", "WARK=", "row field"),
    (" form twist", "", "expected 'form'"),
])
def test_errors_name_the_place(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(IRError, match=message):
        parse_kernel(TEXT.replace(old, new, 1))


def test_a_program_reads_back() -> None:
    kernel = parse_kernel(TEXT)
    program = tile.Program(("q", "k", "v"), (kernel,), (("out", "o"),))
    assert parse(print_program(program)) is program
