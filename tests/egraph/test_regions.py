"""Programs of repeating layers: where they are cut, that nothing but names differs, and that numbers stay right."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.nn import functional

from benchmarks.decoder import TINY, decoder
from emmy.egraph.canonical import composed
from emmy.egraph.regions import LEAST, Stretch, Use, cut
from emmy.egraph.saturate import saturate
from emmy.errors import EmmyError
from emmy.evaluate.loop import evaluate_loop
from emmy.evaluate.reference import evaluate_torch
from emmy.ir import loop_ir as loop
from emmy.ir import tile_text
from emmy.ir.loop_text import parse, print_program
from emmy.pipeline import Program, compile
from emmy.runtime.arrays import to_numpy
from emmy.runtime.execute import arguments, on_simulator
from emmy.tune.choose import Choice, choose


@cache
def decoded(count: int) -> Program:
    model, example = decoder(count, TINY)
    return compile(model, *example)


@cache
def layers(count: int) -> Program:
    """Layers of two products with a softmax between, and a residual."""
    torch.manual_seed(0)
    weights = [(torch.randn(8, 16) / 3, torch.randn(16, 8) / 4) for _ in range(count)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        for up, down in weights:
            x = x + (x @ up).softmax(-1) @ down
        return x

    return compile(fn, torch.randn(4, 8))


def chain(*bodies: str, first: str = "") -> loop.Program:
    """Definitions t0, t1, … of vectors, each of the one before it, {0}."""
    names = ["x", *(f"t{k}" for k in range(len(bodies)))]
    lines = [f"  {new}[p0] : f32[8] = {body.format(old)}\n" for old, new, body in zip(names, names[1:], bodies, strict=False)]
    return parse(f"loop {{\n  input x : f32[8]\n  input w : f32[8, 8]\n  axis a0 < 8\n{first}{''.join(lines)}  return y = {names[-1]}\n}}")


MIX = ("reduce.add{{a0}}(mul({0}[a0], w[p0, a0]))", "exp({0}[p0])", "sub({0}[p0], reduce.max{{a0}}({0}[a0]))")


def definitions(program: loop.Program) -> list[tuple[int, int]]:
    return [(len(stretch.program.definitions), len(stretch.uses)) for stretch in cut(program)]


def test_layers_of_a_decoder_are_one_stretch() -> None:
    program = decoded(3)
    (stretch,) = program.stretches
    assert [use.place for use in stretch.uses] == [0, 1, 2] and len(program.loop.definitions) > 2 * len(stretch.program.definitions)
    first, second, third = (use.names for use in stretch.uses)
    ((_, out),) = stretch.program.outputs
    assert "x" in first.values() and first[out] in second.values() and second[out] in third.values() and first[out] not in third.values()


def test_a_stretch_is_a_program_that_computes_its_part_of_the_whole() -> None:
    program = layers(4)
    arrays = {name: to_numpy(x) for name, x in program.captured.tensors.items()}
    for stretch, use in sorted(((s, u) for s in program.stretches for u in s.uses), key=lambda pair: pair[1].place):
        loop.verify(stretch.program)
        found = evaluate_loop(stretch.program, {i.name: arrays[use.names[i.name]] for i in stretch.program.inputs})
        arrays |= {use.names[tensor]: value for (_, tensor), value in zip(stretch.program.outputs, found, strict=True)}
    whole = evaluate_loop(program.loop, {i.name: arrays[i.name] for i in program.loop.inputs})
    for (_, tensor), value in zip(program.loop.outputs, whole, strict=True):
        assert (arrays[tensor] == value).all()


def test_a_program_of_layers_is_right_and_has_each_kernel_once() -> None:
    program = layers(6)
    (stretch,) = program.stretches
    (exact,) = evaluate_torch(program.torch, program.captured.tensors, float64=True)
    assert torch.allclose(program(*program.captured.inputs.values()).double(), exact, atol=1e-5)
    assert len(program.plan.launches) == len(program.tile.kernels) >= len(stretch.uses) * len(program.kernels)
    assert program.cuda.count("__global__") == len(program.kernels) == len({x.kernel for x in program.plan.launches})
    assert len({t.name for k in program.tile.kernels for t in k.outputs}) == len(program.tile.kernels)
    assert tile_text.parse(program.ir("tile")) is program.tile
    simulated = on_simulator(program, arguments(program))
    assert torch.allclose(torch.from_numpy(simulated[program.plan.outputs[0]]).double(), exact, atol=1e-5)


def test_a_cut_loses_nothing_that_was_taken_before() -> None:
    weights = [torch.randn(8, 8) for _ in range(8)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = x + functional.gelu(x @ w)
        return x

    program = compile(fn, torch.randn(4, 8))
    whole = Stretch(program.loop, (Use(0, {t.name: t.name for t in program.loop.everything}),))
    uncut = choose(program.loop, [whole], [saturate(program.loop)], program.target)

    def seconds(choice: Choice) -> float:
        return sum(choice.scheduled[k.name].seconds for k in choice.program.kernels)

    assert [len(stretch.uses) for stretch in program.stretches] == [2]
    assert seconds(program.choice) <= 1.01 * seconds(uncut)


def test_rows_that_do_not_meet_are_not_cut_for_one_kernel_does_all_their_layers() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x + torch.sin(x).softmax(-1)
        return x

    program = compile(fn, torch.randn(4, 8))
    assert len(program.loop.definitions) > 3 * LEAST and program.region is program.regions[0]


def test_a_program_of_one_layer_or_of_few_definitions_is_one_region() -> None:
    program = decoded(1)
    assert [s.program for s in program.stretches] == [program.loop] and program.region is program.regions[0]
    few = chain(*MIX)
    assert [s.program for s in cut(few)] == [few]
    with pytest.raises(EmmyError, match="2 stretches, 1 of them distinct"):
        _ = layers(4).region
    with pytest.raises(EmmyError, match="an e-graph of its own"):
        _ = layers(4).choice.outlined


def test_short_layers_are_taken_several_at_a_time_and_what_is_left_stands_alone() -> None:
    before, after = ("sin({0}[p0])", "mul({0}[p0], reduce.min{{a0}}({0}[a0]))"), ("cos({0}[p0])",)
    assert definitions(chain(*before, *MIX * 9, *after)) == [(2, 1), (9, 3), (1, 1)]
    assert definitions(chain(*MIX * 2)) == [(6, 1)] and 2 * len(MIX) < LEAST


def test_what_every_layer_reads_does_not_count_as_passing_a_cut() -> None:
    rotated = tuple(f"add({body}, t0[p0])" for body in MIX)
    program = chain("sin({0}[p0])", *rotated * 8)
    assert definitions(program)[0][1] == 1 and max(uses for _, uses in definitions(program)) >= 2
    assert "t0" in {name for stretch in cut(program) for use in stretch.uses[1:] for name in use.names.values()}


MASK, MASKED = "  m[p0] : bool[8] = lt(index(p0), const{i64}(3))\n", "select(m[p0], {0}[p0], const{{f32}}(0.0))"


def test_what_is_made_of_indices_alone_is_in_every_stretch_that_reads_it() -> None:
    (stretch,) = cut(chain(*(body.replace("{0}[p0]", MASKED) for body in MIX * 6), first=MASK))
    assert len(stretch.uses) == 2 and all("m" in use.names.values() for use in stretch.uses)
    assert "x" in stretch.uses[0].names.values() and not {"m", "x"} & {i.name for i in stretch.program.inputs}


def test_what_is_made_of_indices_alone_dissolves_where_it_is_read_once() -> None:
    layers = MIX[0], MIX[1].replace("{0}[p0]", MASKED), MIX[2], *MIX * 2
    (stretch,) = cut(chain(*layers * 2, first=MASK))
    assert len(stretch.uses) == 2 and not any("m" in use.names.values() for use in stretch.uses)
    assert "lt(index(p0), const{i64}(3))" in print_program(stretch.program)


def test_layers_that_differ_are_not_one_stretch() -> None:
    other = tuple(body.replace("add", "min") for body in MIX)
    assert definitions(chain(*MIX * 3, *other * 3)) == [(18, 1)]
    assert definitions(chain(*MIX * 6, *other * 6)) == [(9, 2), (9, 2)]


def test_forms_do_not_depend_on_names_and_tell_the_number_of_layers() -> None:
    def form(program: Program) -> list[str]:
        return list(composed(program.loop, program.stretches, program.regions).values())

    program = decoded(2)
    model, example = decoder(2, TINY)
    renamed = compile(lambda a, c, b: model(a, c, b), *example)
    assert program.loop is not renamed.loop and form(program) == form(renamed)
    (two,), (three,) = form(program), form(decoded(3))
    assert two.count("= f0(") == 2 and three.count("= f0(") == 3 and three.startswith(two[:two.index("%0 = f0(")])


def test_weights_and_what_passes() -> None:
    """Of a stretch that repeats they are its inputs that are weights wherever it stands, and outputs that are results nowhere."""
    program = layers(4)
    assert program.captured.constants
    *_, stretch = sorted(program.stretches, key=lambda s: len(s.uses))
    assert len(stretch.uses) > 1
    names = {new: {use.names[new] for use in stretch.uses} for new in (*(i.name for i in stretch.program.inputs),
                                                                      *(t for _, t in stretch.program.outputs))}
    assert stretch.weights == {new for new, of in names.items() if of <= program.captured.constants.keys()} != set()
    results = {t for _, t in program.loop.outputs}
    assert stretch.passed == {t for _, t in stretch.program.outputs if names[t].isdisjoint(results)}
    (whole,) = cut(chain(*MIX), {"w"})
    assert whole.weights == {"w"} and whole.passed == set()
