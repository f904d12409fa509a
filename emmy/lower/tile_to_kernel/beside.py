"""Several kernels in one launch: the blocks of each lie beside those of the others in one grid, and a block's index says whose it is.

All have blocks of as many threads.  Every thread of a block takes the same branch, so barriers stay where all threads of a block reach
them; the shared buffers of the kernels lie over each other, for a block has those of one kernel only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from math import prod

from emmy.instructions.control import If
from emmy.ir.kernel_ir import Block, GlobalBuffer, Kernel, SharedBuffer, Stmt, verify
from emmy.ir.node import IRError
from emmy.lower.tile_to_kernel.blocks import placed


def beside(name: str, parts: Sequence[Kernel]) -> Kernel:
    """The kernel that runs `parts`, the blocks of the first before those of the second.  Its parameters are theirs, one part after another,
    each named after its own with the part's letters before it.  IRError if their blocks have different numbers of threads, or one has
    tensor maps or clusters."""
    if len({p.block for p in parts}) != 1:
        raise IRError(f"{name}: kernels beside each other have blocks of as many threads, not {', '.join(str(p.block) for p in parts)}")
    if alone := next((p.name for p in parts if p.maps or p.cluster != 1), None):
        raise IRError(f"{name}: {alone} has tensor maps or clusters, and is launched alone")
    letters = [_letters(k) for k in range(len(parts))]
    own = [_own(part, f"{letter}_") for letter, part in zip(letters, parts, strict=True)]
    ends = list(accumulate(prod(p.grid) for p in parts))
    body: tuple[Stmt, ...] = ()
    for part, start, end, letter in reversed([*zip(own, [0, *ends[:-1]], ends, letters, strict=True)]):
        inside = placed(part.body, part.grid, Block(0) - start, f"{letter}_at")
        body = (If(Block(0) < end, inside, body),) if end < ends[-1] else inside
    made = Kernel(name, tuple(b for p in own for b in p.parameters), tuple(b for p in own for b in p.shared), (ends[-1], 1, 1),
                  parts[0].block, body)
    verify(made)
    return made


def _letters(k: int) -> str:
    """a, b, …, z, ba, bb, …"""
    return (_letters(k // 26) if k >= 26 else "") + chr(97 + k % 26)


def _own(part: Kernel, stem: str) -> Kernel:
    """The kernel with its buffers named apart, and the shared ones at their places from the first byte on."""
    names = {name: f"{stem}{name}" for name in part.types}
    places = zip(part.shared, part.shared_offsets, strict=False)
    shared = tuple(SharedBuffer(names[b.name], b.element, b.length, b.alignment, start) for b, start in places)
    parameters = tuple(GlobalBuffer(names[b.name], b.element, b.length, b.access) for b in part.parameters)
    return Kernel(part.name, parameters, shared, part.grid, part.block, tuple(_renamed(s, names) for s in part.body))


def _renamed(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement on buffers of other names."""
    def new(v: object) -> object:
        return tuple(_renamed(x, names) for x in v) if isinstance(v, tuple) else names.get(v, v) if isinstance(v, str) else v
    return type(s)(*(new(getattr(s, f.name)) for f in fields(s)))
