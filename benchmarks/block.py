"""The search for a partition beside an exact run on a Llama block: `python -m benchmarks.block [--seconds 60] [--columns 1000]`.

The exact run chooses among candidate kernels as columns (`extract.columns`): those that the search looked at, and more
extracted breadth-first from the outputs.  It reports what it found and the bound that it proved for all partitions among them.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

from benchmarks.decoder import LLAMA, Shape, decoder
from emmy.egraph.problem import outline, problem
from emmy.pipeline import compile
from emmy.tune.choose import Rows
from extract import columns, partition
from extract.kernels import Kernels


class Compared(NamedTuple):
    """What the search found, in so many seconds, and the exact run beside it."""

    search: partition.Solution
    took: float
    proof: columns.Proof


def compare(shape: Shape, seconds: float, most: int) -> Compared:
    """The search, and an exact run of so many seconds over `most` columns, on one block of a decoder."""
    block, inputs = decoder(1, shape)
    outlined = outline(compile(block, *inputs).region)
    rows = Rows("sm_90a")
    kernels = Kernels(problem(outlined, rows.gpu), rows.price(outlined))
    start = time.perf_counter()
    found, = partition.explore(kernels, 1)
    took = time.perf_counter() - start
    columns.widen(kernels, found.seconds, most)
    return Compared(found, took, columns.solve(kernels, found, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block", description="The search beside an exact run on a Llama block.")
    parser.add_argument("--seconds", type=float, default=60.0, help="wall-clock of the exact run (default 60)")
    parser.add_argument("--columns", type=int, default=1000, help="candidate kernels (default 1000)")
    given = parser.parse_args()
    found, took, proof = compare(LLAMA, given.seconds, given.columns)
    print(f"search: {found.seconds * 1e6:.1f} µs, {len(found.kernels)} kernels, in {took:.1f} s")
    print(f"exact over {proof.columns} columns: {proof.solution.seconds * 1e6:.1f} µs, at least {proof.bound * 1e6:.1f} µs"
          f"{', proven' if proof.proven else ''}")
    print(f"search / exact: {found.seconds / proof.solution.seconds:.4f}; search / bound: {found.seconds / proof.bound:.4f}")


if __name__ == "__main__":
    main()
