"""A pack: the compiled candidates of some kernels in one file, to be measured by a machine that has no compiler.

A pack is a zip archive:

    manifest.json       format, target, math, compiler, revision; kernels (identity, Tile IR text, their tensors); candidates
    cubins/<n>.cubin    machine code of one or more candidates
    tables/<n>.npy      the values that stand for a tensor
"""

from __future__ import annotations

import multiprocessing
import os
import random
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emmy.errors import EmmyError
from emmy.evaluate.drawn import Drawn
from emmy.ir.dtype import named
from emmy.runtime import archive
from emmy.runtime.archive import array_of, npy
from emmy.runtime.plan import Plan
from emmy.tune.candidate import Candidate, Compiled, Problem, build

if TYPE_CHECKING:
    from emmy.tune.tasks import Task

FORMAT = 1
BATCH = 8       # candidates that are compiled as one module
Kernels = tuple[tuple[Problem, tuple[Compiled, ...]], ...]


class Pack(NamedTuple):
    """Problems, the candidates of each, and what compiled them."""

    target: str
    math: str
    compiler: str
    revision: str
    kernels: Kernels


def save(path: Path, pack: Pack) -> None:
    """Write a pack."""
    files: dict[str, bytes] = {}

    def kept(folder: str, content: bytes, suffix: str) -> str:
        for name, other in files.items():
            if other == content and name.startswith(folder):
                return name
        files[name := f"{folder}/{len(files)}.{suffix}"] = content
        return name

    def tensor(x: Drawn) -> dict[str, Any]:
        return {"shape": x.shape, "element": x.element.name, "seed": x.seed, "table": kept("tables", npy(x.table), "npy")}

    def candidate(c: Compiled) -> dict[str, Any]:
        return c.candidate._asdict() | {"plan": c.plan.fields() | {"source": ""}, "cubin": kept("cubins", c.cubin, "cubin"),
                                        "registers": c.registers, "spill_bytes": c.spill_bytes}

    kernels = [{"identity": p.identity, "text": p.text, "tensors": [tensor(x) for x in p.tensors], "candidates": [candidate(c) for c in cs]}
               for p, cs in pack.kernels]
    manifest = {"format": FORMAT, **pack._asdict(), "kernels": kernels}
    archive.write(path, manifest, files)


def load(path: Path) -> Pack:
    """Read a pack; EmmyError if it is none, or a newer version wrote it."""
    with archive.reading(path, "pack", FORMAT, "`emmy tune --pack`") as (held, manifest):
        return _read(held, manifest)


def _read(held: zipfile.ZipFile, manifest: dict[str, Any]) -> Pack:
    target, math = manifest["target"], manifest["math"]
    cubins: dict[str, bytes] = {}

    def tensor(x: dict[str, Any]) -> Drawn:
        return Drawn(tuple(x["shape"]), named(x["element"]), array_of(held.read(x["table"]), x["element"]), x["seed"])

    def candidate(c: dict[str, Any]) -> Compiled:
        if c["cubin"] not in cubins:
            cubins[c["cubin"]] = held.read(c["cubin"])
        return Compiled(Candidate(*(c[f] for f in Candidate._fields)), Plan.from_fields(c["plan"]), cubins[c["cubin"]], c["registers"],
                        c["spill_bytes"])

    kernels: list[tuple[Problem, Sequence[Compiled]]] = []
    for k in manifest["kernels"]:
        problem = Problem(k["identity"], k["text"], tuple(map(tensor, k["tensors"])), target, math)
        kernels.append((problem, tuple(map(candidate, k["candidates"]))))
    return Pack(target, math, manifest["compiler"], manifest["revision"], tuple((p, tuple(cs)) for p, cs in kernels))


def compiled(found: Sequence[Task], most: int, seed: int, processes: int | None,
             watch: Callable[[Sequence[Future[Any]]], Iterable[Future[Any]]] = iter) -> tuple[Kernels, list[tuple[str, str]]]:
    """The kernels of tasks with their candidates compiled, `most` of each (0: all): the cheapest predicted, and others drawn at random; and
    the rows that do not compile, with the reason."""
    chosen = {t.problem: drawn_rows(t, most, seed) for t in found}
    batches = [(p, cs[k:k + BATCH]) for p, cs in chosen.items() for k in range(0, len(cs), BATCH)]
    made: dict[Problem, list[Compiled]] = {p: [] for p in chosen}
    failed: list[tuple[str, str]] = []
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(batch, cs, p.target, p.math) for p, cs in batches]
        for (p, _), future in zip(batches, watch(futures), strict=True):
            right, wrong = future.result()
            made[p] += right
            failed += wrong
    return tuple((p, tuple(cs)) for p, cs in made.items()), failed


def drawn_rows(task: Task, most: int, seed: int) -> list[Candidate]:
    """The first option of a task and others drawn at random, in the order of the options."""
    rest = list(range(1, len(task.options)))
    picked = [0, *rest] if not most else [0, *sorted(random.Random(seed).sample(rest, min(most - 1, len(rest))))]
    return [task.candidate(task.options[k]) for k in picked]


def batch(candidates: Sequence[Candidate], target: str, math: str) -> tuple[list[Compiled], list[tuple[str, str]]]:
    """Candidates compiled as one module or, should that not compile, one by one; and the rows that do not, with the reason."""
    try:
        return build(candidates, target, math), []
    except EmmyError as error:
        if len(candidates) == 1:
            return [], [(candidates[0].row, error.message)]
    halves = [batch([c], target, math) for c in candidates]
    return [c for right, _ in halves for c in right], [w for _, wrong in halves for w in wrong]
