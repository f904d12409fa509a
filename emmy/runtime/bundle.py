"""Bundles: a compiled program and its proof in one file, run by a machine that has neither the compiler nor nvcc.

A bundle is a zip archive:

    manifest.json            format, plan, targets, reports, meta, and what the arrays are or the recipe they come from
    source.cu                the CUDA text of every kernel
    cubins/<target>.cubin    its machine code, for one or more targets
    arrays/<group>/<n>.npy   weights (constants among them), example inputs, float64 references; bf16, e4m3 and e5m2 as their bits

Large programs store a recipe in place of arrays: the snippet they were captured from.  Where the bundle runs, the snippet makes
its tensors anew from torch's seeded generator, on the device at once, and the float64 reference is computed from them there.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from emmy.errors import EmmyError
from emmy.evaluate.error import Error, compare, tolerance
from emmy.runtime import archive
from emmy.runtime.archive import array_of, npy
from emmy.runtime.arrays import element_of, to_torch
from emmy.runtime.plan import Launch, Plan

FORMAT = 4
ARRAY_LIMIT = 8 << 20  # bytes of arrays above which a bundle with a recipe stores the recipe alone
GROUPS = ("weights", "inputs", "references")
Arrays = dict[str, Any]
Reports = dict[str, dict[str, dict[str, int]]]


class Example(NamedTuple):
    """A call to run and what it should give: torch tensors by buffer name, `references` in float64, constants among the `weights`.

    `program` is the Torch IR program where a recipe was captured anew, else None."""

    inputs: Arrays
    weights: Arrays
    references: Arrays
    program: Any


class RunResult(NamedTuple):
    """What a run gave: `outputs` by name on the device, the `errors` of each, and the plan's launches.

    `device_us` (cold L2, CUDA graph) and `call_us` (host time of one call) are None unless the numbers are right."""

    outputs: Arrays
    errors: dict[str, Error]
    correct: bool
    kernels: tuple[Launch, ...]
    device_us: float | None
    call_us: float | None


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A loaded bundle.  Arrays are NumPy arrays by buffer name, and empty where `recipe` (a snippet) stands for them.

    `reports[target][kernel]` counts registers and bytes of shared memory, spills and stack; `meta` is the builder's own, JSON values.
    `runners`: for each launch of the plan those that may stand in its place, kernels with other rows, whose code the cubins have too."""

    plan: Plan
    cubins: dict[str, bytes]
    reports: Reports
    weights: Arrays
    inputs: Arrays
    references: Arrays
    recipe: str | None
    meta: dict[str, Any]
    runners: tuple[tuple[Launch, ...], ...] = ()

    def example(self, device: Any) -> Example:
        """The example call on `device`."""
        if self.recipe is None:
            inputs, weights, references = ({n: to_torch(x, element_of(x), device) for n, x in group.items()}
                                           for group in (self.inputs, self.weights, self.references))
            return Example(inputs, weights, references, None)
        import torch

        from emmy.capture.snippet import capture_snippet
        from emmy.evaluate.reference import evaluate_torch

        with torch.device(device):
            captured = capture_snippet(self.recipe)
        inputs = {n: x.detach().to(device) for n, x in captured.inputs.items()}
        weights = {n: x.detach().to(device) for n, x in {**captured.weights, **captured.constants}.items()}
        results = evaluate_torch(captured.program, inputs | weights, float64=True)
        return Example(inputs, weights, dict(zip(self.plan.outputs, results, strict=True)), captured.program)

    def executable(self, weights: Mapping[str, Any], device: Any = "cuda", launches: tuple[Launch, ...] | None = None) -> Any:
        """An `Executable` of the plan on a GPU, by its own `launches` or others; EmmyError if the bundle has no code for that GPU."""
        from emmy.runtime.launch import Executable, cuda_device

        device = cuda_device(device)
        import torch

        plan = self.plan if launches is None else dataclasses.replace(self.plan, launches=launches)
        return Executable(plan, self.cubins[pick(self.cubins, torch.cuda.get_device_capability(device))], weights, device)

    def run(self, device: Any = "cuda", repeats: int = 7) -> RunResult:
        """Run on the example inputs, compare with float64, and time (`repeats` medians, 0 for none) if the numbers are right."""
        from emmy.runtime.launch import cuda_device
        from emmy.runtime.timing import call_us, device_us

        device = cuda_device(device)
        example = self.example(device)
        run = self.executable(example.weights, device)
        arguments = tuple(example.inputs[n] for n in self.plan.inputs)
        outputs, errors = check(run, arguments, example.references)
        correct = all(e.within(tolerance(self.plan.buffer(n).element, self.plan.math)) for n, e in errors.items())
        timed = correct and repeats > 0
        call = functools.partial(run, *arguments)
        times = (device_us(call, repeats=repeats), call_us(call)) if timed else (None, None)
        return RunResult(outputs, errors, correct, self.plan.launches, *times)


def check(run: Any, arguments: tuple[Any, ...], references: Mapping[str, Any]) -> tuple[Arrays, dict[str, Error]]:
    """The outputs of an executable by name and their errors; memory is poisoned first, so that an element nobody wrote is seen."""
    names = tuple(dict.fromkeys(run.plan.outputs))
    results = dict(zip(run.plan.outputs, run(*arguments, out=run.poisoned()), strict=True))
    return results, {n: compare(results[n], references[n]) for n in names}


def pick(targets: Mapping[str, Any], capability: tuple[int, int]) -> str:
    """The best of `targets` ("sm_90a", "sm_80", ...) for a GPU: code runs on its own major version from its minor version on, and code
    with the suffix "a" on its own version only.  EmmyError naming both if none runs."""
    def version(target: str) -> tuple[int, int, bool]:
        digits = target.removeprefix("sm_").rstrip("af")
        return int(digits[:-1]), int(digits[-1]), target.endswith("a")

    def runs(major: int, minor: int, own: bool) -> bool:
        return (major, minor) == capability or (major == capability[0] and minor < capability[1] and not own)

    able = [t for t in targets if runs(*version(t))]
    if not able:
        name = f"sm_{capability[0]}{capability[1]}"
        raise EmmyError(f"the bundle has code for {', '.join(sorted(targets)) or 'no GPU'}, and this GPU is {name}",
                        f"Build the program for {name}, or run the bundle on a GPU that it was built for.")
    return max(able, key=version)


def save(path: str | os.PathLike[str], plan: Plan, cubins: Mapping[str, bytes], *, reports: Mapping[str, Mapping[str, Any]] | None = None,
         weights: Mapping[str, Any] | None = None, inputs: Mapping[str, Any] | None = None, references: Mapping[str, Any] | None = None,
         recipe: str | None = None, meta: Mapping[str, Any] | None = None, runners: Sequence[Sequence[Launch]] = ()) -> None:
    """Write a bundle, whole or not at all; equal contents give equal bytes.

    Arrays may be NumPy or torch; `weights` holds constants too.  With a `recipe`, arrays are left out if they are above ARRAY_LIMIT or
    not given.  A report is a mapping or a dataclass of integers by name."""
    groups: dict[str, Mapping[str, Any]] = dict(zip(GROUPS, (weights or {}, inputs or {}, references or {}), strict=True))
    size = sum(x.nbytes for group in groups.values() for x in group.values())
    if recipe is not None and not (groups["references"] and size <= ARRAY_LIMIT):
        groups, data = {}, {"kind": "snippet", "source": recipe}
    else:
        required = {"weights": [b.name for b in plan.of("weight", "constant")], "inputs": plan.inputs, "references": plan.outputs}
        if missing := [f"{n!r} among {g}" for g in GROUPS for n in required[g] if n not in groups[g]]:
            raise EmmyError(f"bundle of {plan.name} lacks {', '.join(missing)}", "Give every array, or a recipe.")
        data = {"kind": "arrays"}
    files = {"source.cu": plan.source.encode(), **{f"cubins/{target}.cubin": cubin for target, cubin in cubins.items()}}
    index: dict[str, dict[str, dict[str, str]]] = {g: {} for g in groups}
    for g, group in groups.items():
        for k, (name, array) in enumerate(group.items()):
            index[g][name] = {"file": f"arrays/{g}/{k}.npy", "dtype": element_of(array).name}
            files[index[g][name]["file"]] = npy(array)
    counts = {target: {kernel: dict(r) if isinstance(r, Mapping) else dataclasses.asdict(r) for kernel, r in of.items()}
              for target, of in (reports or {}).items()}
    manifest = {"format": FORMAT, "plan": plan.fields() | {"source": ""}, "targets": list(cubins), "reports": counts,
                "meta": dict(meta or {}), "data": data | {"arrays": index}, "runners": [[x.fields() for x in those] for those in runners]}
    archive.write(path, manifest, files)


def load(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle; EmmyError if there is no such file, it is not a bundle, it is damaged, or a newer version wrote it."""
    with archive.reading(path, "bundle", FORMAT, "`emmy build`") as (held, manifest):
        plan = Plan.from_fields(manifest["plan"] | {"source": held.read("source.cu").decode()})
        cubins = {t: held.read(f"cubins/{t}.cubin") for t in manifest["targets"]}
        index = manifest["data"]["arrays"]
        arrays = {g: {n: array_of(held.read(x["file"]), x["dtype"]) for n, x in index.get(g, {}).items()} for g in GROUPS}
        runners = tuple(tuple(map(Launch.from_fields, those)) for those in manifest.get("runners", ()))
        return Bundle(plan, cubins, manifest["reports"], **arrays, recipe=manifest["data"].get("source"), meta=manifest["meta"],
                      runners=runners)
