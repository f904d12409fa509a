"""The compiler on a page: a captured program through its IRs, one line a stage, each computed when first asked for."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emmy.egraph import rulebook
from emmy.egraph.budget import Budget
from emmy.egraph.regions import Stretch, cut
from emmy.egraph.saturate import saturate
from emmy.egraph.terms import Region
from emmy.errors import EmmyError
from emmy.ir import kernel_ir, kernel_text, loop_ir, loop_text, tensor_ir, tensor_text, tile_ir, tile_text, torch_ir
from emmy.lower import kernel_to_cuda, tensor_to_loop, tile_to_kernel, torch_to_tensor
from emmy.runtime.plan import Plan
from emmy.stage import stage
from emmy.tune.choose import Choice, choose
from emmy.tune.evidence import Evidence, here
from extract import hardware

if TYPE_CHECKING:
    from emmy.capture.export import Captured

STAGES = ("torch", "tensor", "loop", "tile", "kernel", "cuda")


class Program:
    """A compiled program.  Call it with tensors like the function it was captured from; `ir(stage)` prints a stage, `kernels` and `cuda`
    are its last ones.  On CPU tensors it runs on NumPy, on CUDA tensors on the GPU.  A `traced` one records which rule made what.
    `evidence` outranks predicted times; what the database knows of the target's GPU if it is not given."""

    def __init__(self, captured: Captured, target: str = "sm_90a", math: str = "fast", rules: Iterable[str | Path] = (), pins: str = "",
                 budget: str = "", traced: bool = False, evidence: Evidence | None = None):
        math = "tf32" if math == "fast" and captured.allows_tf32 else math
        self.captured, self.target, self.math, self.pins, self.traced = captured, target, math, pins, traced
        self._evidence = evidence
        self.budget = Budget.parse(budget)
        self.rules = rulebook.extra_rules(rules)
        rulebook.math_classes(math)
        rulebook.hardware_rules(target)

    @cached_property
    def torch(self) -> torch_ir.Program:
        return self.captured.program

    @stage
    def tensor(self) -> tensor_ir.Program:
        return torch_to_tensor.lower(self.torch)

    @stage
    def loop(self) -> loop_ir.Program:
        return tensor_to_loop.lower(self.tensor)

    @stage
    def stretches(self) -> tuple[Stretch, ...]:
        """The distinct parts of the program, and where each stands: one part, the whole, unless layers repeat."""
        return cut(self.loop, self.captured.unchanging)

    @stage
    def regions(self) -> tuple[Region, ...]:
        """The saturated region of each stretch."""
        return tuple(saturate(s.program, self.math, self.rules["loop"], self.budget, self.traced, s.weights)._replace(passed=s.passed)
                     for s in self.stretches)

    @property
    def region(self) -> Region:
        """The saturated region of a program that is one stretch; EmmyError if it is more."""
        if (places := sum(len(stretch.uses) for stretch in self.stretches)) > 1:
            raise EmmyError(f"the program is cut into {places} stretches, {len(self.stretches)} of them distinct",
                            "use Program.regions and Program.stretches")
        return self.regions[0]

    @cached_property
    def evidence(self) -> Evidence:
        """What is known of the target's GPU."""
        if self._evidence is None:
            return here(hardware.for_target(self.target).name, self.math)
        return self._evidence

    def knowing(self, evidence: Evidence) -> Program:
        """The same program, saturated once for both, chosen anew on evidence."""
        other = copy.copy(self)
        for later in ("choice", "tile", "kernels", "cuda", "plan", "evidence", "_on_gpu", "executable", "held"):
            vars(other).pop(later, None)
        other._evidence = evidence
        return other

    @stage
    def choice(self) -> Choice:
        return choose(self.loop, self.stretches, self.regions, self.target, self.math, self.pins, self.rules["tile"], self.evidence)

    @cached_property
    def tile(self) -> tile_ir.Program:
        return self.choice.program

    @stage
    def kernels(self) -> tuple[kernel_ir.Kernel, ...]:
        """Each distinct function once; a launch names its function, and an empty output needs none."""
        return tile_to_kernel.lower_launches(self.choice.launches, self.choice.early)

    @stage
    def cuda(self) -> str:
        return kernel_to_cuda.emit_module(self.kernels)

    @stage
    def plan(self) -> Plan:
        from emmy.runtime.assemble import assemble

        return assemble(self)

    @property
    def stages(self) -> dict[str, Callable[[], str]]:
        """How each stage prints."""
        return {"torch": lambda: torch_ir.print_program(self.torch), "tensor": lambda: tensor_text.print_program(self.tensor),
                "loop": lambda: loop_text.print_program(self.loop), "tile": lambda: tile_text.print_program(self.tile),
                "kernel": lambda: "\n".join(map(kernel_text.show, self.kernels)), "cuda": lambda: self.cuda}

    def ir(self, stage: str) -> str:
        """The text of a stage: torch, tensor, loop, tile, kernel or cuda."""
        if stage not in STAGES:
            raise EmmyError(f"unknown stage {stage!r}", f"the stages are {', '.join(STAGES)}")
        return self.stages[stage]()

    def __call__(self, *tensors: Any) -> Any:
        """The results as the captured function returns them; what it writes to of its arguments is written."""
        return self._on_gpu(*tensors) if tensors and getattr(tensors[0], "is_cuda", False) else self._execute(self, tensors)

    def renew(self) -> None:
        """Make what is held of weights anew at the next call: after writes to them that torch does not count, as through `.data` or by
        another library."""
        vars(self).pop("held", None)
        if run := vars(self).get("executable"):
            run.renew()

    @cached_property
    def _on_gpu(self) -> Callable[..., Any]:
        from emmy.runtime.execute import on_gpu

        return on_gpu(self)

    @cached_property
    def _execute(self) -> Callable[..., Any]:
        from emmy.runtime.execute import execute

        return execute


def compile(fn: Callable[..., Any], *example_inputs: Any, target: str = "sm_90a", math: str = "fast", rules: Sequence[str | Path] = (),
            pins: str = "", budget: str = "") -> Program:
    """Capture `fn` (a function or module) on example tensors and compile it.

    `target`: "sm_90a", "sm_80", "sm_89" or "sm_120".  `math`: "exact" (rules that keep every bit), "fast" (equal over the reals),
    or "tf32" (fast, and products of fp32 may round their factors to tf32), which "fast" is where torch allows tf32 in products.
    `rules`: further rule files (paths), loaded after the house's.  `pins`: fields of the schedule row to fix, as "WORK=t256,TILE=v4".
    `budget`: what each phase of saturation may spend, as "NODES" or "NODES,SECONDS"; an EmmyWarning tells where one has.
    EmmyError for what cannot be captured or compiled.
    """
    from emmy.capture.export import capture

    return Program(capture(fn, example_inputs), target, math, rules, pins, budget)


def compile_snippet(source: str, target: str = "sm_90a", math: str = "fast", rules: Sequence[str | Path] = (), pins: str = "",
                    budget: str = "") -> Program:
    """Compile a snippet, as `emmy compile -c` does."""
    from emmy.capture.snippet import capture_snippet

    return Program(capture_snippet(source), target, math, rules, pins, budget)


def compile_captured(captured: Captured) -> Callable[..., tuple[Any, ...]]:
    """The compiled form of a captured graph: takes its tensors, returns a tuple of them as the graph does."""
    program = Program(captured)
    _ = program.tile    # compile now, so that an operator it does not cover is an error here
    return program


def build_bundle(source: str, path: Path, target: str = "sm_90a", math: str = "fast", pins: str = "", runners: int = 0) -> Program:
    """Compile a snippet to machine code for `target` and write a bundle that runs without Emmy's compiler or nvcc."""
    program = compile_snippet(source, target, math, pins=pins)
    write_bundle(program, path, [target], source, runners)
    return program


def write_bundle(program: Program, path: Path, targets: Sequence[str], recipe: str | None = None, runners: int = 0,
                 distinct: bool = False) -> None:
    """Write the bundle of a program: its machine code for `targets`, its tensors (or `recipe`, if large) and float64 references; and up to
    `runners` further rows of each kernel (of different kinds, if `distinct`), to be run in its place."""
    from emmy.evaluate.reference import evaluate_torch
    from emmy.runtime import bundle
    from emmy.runtime.assemble import own
    from emmy.runtime.build import build
    from emmy.tune.runners import runners_up

    functions, instead = runners_up(program, runners, distinct) if runners else ((), ())
    source = kernel_to_cuda.emit_module((*program.kernels, *functions)) if functions else program.plan.source
    built = {target: build(source, target) for target in targets}
    captured = program.captured
    small = sum(t.nbytes for t in captured.tensors.values()) <= bundle.ARRAY_LIMIT
    references: dict[str, Any] = {}
    if small or recipe is None:
        references = dict(zip(program.plan.outputs, evaluate_torch(captured.program, captured.tensors, float64=True), strict=True))
    plan = dataclasses.replace(program.plan, source=source, buffers=(*program.plan.buffers, *(b for f in functions for b in own(f))))
    bundle.save(path, plan, {t: b.cubin for t, b in built.items()}, reports={t: b.functions for t, b in built.items()},
                weights={**captured.weights, **captured.constants}, inputs=captured.inputs, references=references, recipe=recipe,
                meta={"case": recipe or program.plan.name}, runners=instead)
