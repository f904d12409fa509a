"""Programs of repeating layers: where they are cut, that nothing but names differs, and that numbers stay right."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from benchmarks.decoder import TINY, decoder
from emmy.egraph.canonical import composed
from emmy.egraph.regions import LEAST, cut
from emmy.errors import EmmyError
from emmy.evaluate.loop import evaluate_loop
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import loop_ir as loop
from emmy.ir import tile_text
from emmy.ir.loop_text import parse
from emmy.pipeline import Program, compile
from emmy.runtime.arrays import to_numpy


@cache
def layers(count: int) -> Program:
    torch.manual_seed(0)
    model, example = decoder(count, TINY)
    return compile(model, *map(torch.randn_like, example))


def chain(*bodies: str, first: str = "") -> loop.Program:
    """Definitions t0, t1, … of vectors, each of the one before it, {0}."""
    names = ["x", *(f"t{k}" for k in range(len(bodies)))]
    lines = [f"  {new}[p0] : f32[8] = {body.format(old)}\n" for old, new, body in zip(names, names[1:], bodies, strict=False)]
    return parse(f"loop {{\n  input x : f32[8]\n  axis a0 < 8\n{first}{''.join(lines)}  return y = {names[-1]}\n}}")


NORM = ("mul({0}[p0], reduce.add{{a0}}({0}[a0]))", "exp({0}[p0])", "sub({0}[p0], reduce.max{{a0}}({0}[a0]))")


def definitions(program: loop.Program) -> list[tuple[int, int]]:
    return [(len(stretch.program.definitions), len(stretch.uses)) for stretch in cut(program)]


def test_layers_of_a_decoder_are_one_stretch() -> None:
    program = layers(3)
    (stretch,) = program.stretches
    assert [use.place for use in stretch.uses] == [0, 1, 2] and len(program.loop.definitions) > 2 * len(stretch.program.definitions)
    first, second, third = (use.names for use in stretch.uses)
    assert {first["x0"], second["x0"], third["x0"]} - {"x"} == {first[stretch.program.outputs[0][1]], second[stretch.program.outputs[0][1]]}


def test_a_stretch_is_a_program_that_computes_its_part_of_the_whole() -> None:
    program = layers(2)
    arrays = {name: to_numpy(x) for name, x in program.captured.tensors.items()}
    for stretch, use in sorted(((s, u) for s in program.stretches for u in s.uses), key=lambda pair: pair[1].place):
        loop.verify(stretch.program)
        found = evaluate_loop(stretch.program, {i.name: arrays[use.names[i.name]] for i in stretch.program.inputs})
        arrays |= {use.names[tensor]: value for (_, tensor), value in zip(stretch.program.outputs, found, strict=True)}
    whole = evaluate_loop(program.loop, {i.name: arrays[i.name] for i in program.loop.inputs})
    for (_, tensor), value in zip(program.loop.outputs, whole, strict=True):
        assert (arrays[tensor] == value).all()


def test_a_program_of_layers_is_right_and_has_each_kernel_once() -> None:
    program = layers(3)
    example = tuple(program.captured.inputs.values())
    (exact,) = evaluate_torch(program.torch, program.captured.tensors, float64=True)
    assert torch.allclose(program(*example).double(), exact, atol=1e-5)
    assert len(program.plan.launches) == len(program.tile.kernels) >= 3 * len(program.kernels) == 3 * program.cuda.count("__global__")
    assert len({k.output.name for k in program.tile.kernels}) == len(program.tile.kernels)
    assert tile_text.parse(program.ir("tile")) is program.tile


def test_a_program_of_one_layer_or_of_few_definitions_is_one_region() -> None:
    program = layers(1)
    assert [s.program for s in program.stretches] == [program.loop] and program.region is program.regions[0]
    few = chain(*NORM)
    assert [s.program for s in cut(few)] == [few]
    with pytest.raises(EmmyError, match="regions"):
        _ = layers(2).region


def test_short_layers_are_taken_several_at_a_time_and_what_is_left_stands_alone() -> None:
    before, after = ("sin({0}[p0])", "mul({0}[p0], reduce.min{{a0}}({0}[a0]))"), ("cos({0}[p0])",)
    assert definitions(chain(*before, *NORM * 9, *after)) == [(2, 1), (9, 3), (1, 1)]
    assert definitions(chain(*NORM * 2)) == [(6, 1)] and 2 * len(NORM) < LEAST


def test_what_every_layer_reads_does_not_count_as_passing_a_cut() -> None:
    rotated = tuple(f"add({body}, t0[p0])" for body in NORM)
    program = chain("sin({0}[p0])", *rotated * 8)
    assert definitions(program)[0][1] == 1 and max(uses for _, uses in definitions(program)) >= 2
    reads = {name for stretch in cut(program) for use in stretch.uses[1:] for name in use.names.values()}
    assert "t0" in reads


def test_what_is_made_of_indices_alone_is_in_every_stretch_that_reads_it() -> None:
    masked = tuple(body.replace("{0}[p0]", "select(m[p0], {0}[p0], const{{f32}}(0.0))") for body in NORM)
    (stretch,) = cut(chain(*masked * 6, first="  m[p0] : bool[8] = lt(index(p0), const{i64}(3))\n"))
    assert len(stretch.uses) == 2 and all("m" in use.names.values() for use in stretch.uses)
    assert "x" in stretch.uses[0].names.values() and not {"m", "x"} & {i.name for i in stretch.program.inputs}


def test_layers_that_differ_are_not_one_stretch() -> None:
    other = tuple(body.replace("add", "min") for body in NORM)
    assert definitions(chain(*NORM * 3, *other * 3)) == [(18, 1)]
    assert definitions(chain(*NORM * 6, *other * 6)) == [(9, 2), (9, 2)]


def test_forms_do_not_depend_on_names_and_tell_the_number_of_layers() -> None:
    def form(program: Program) -> list[str]:
        return list(composed(program.loop, program.stretches, program.regions).values())

    torch.manual_seed(1)
    model, example = decoder(2, TINY)
    renamed = compile(lambda a, c, b: model(a, c, b), *example)
    assert form(layers(2)) == form(renamed)
    assert form(layers(2)) != form(layers(3))
