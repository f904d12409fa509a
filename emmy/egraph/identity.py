"""Identities of kernels: which kernels compute the same from tensors of the same types, whatever tensors and axes are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from emmy.egraph.canonical import Speller, digest
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.loop_ir import Value


class Identity(NamedTuple):
    """`digest`: of a kernel's bodies up to names and of its typed inputs and outputs.  `reads`: the tensors that it reads, in the order in
    which the bodies meet them, and `order`: its outputs by number; so kernels of one identity take their arguments in one order."""

    digest: str
    reads: dict[str, tile.Tensor]
    order: tuple[int, ...]


def identify(values: Sequence[Value], outputs: Sequence[tile.Tensor], axes: tuple[int, ...], extents: dict[int, int],
             tensors: dict[str, tile.Tensor]) -> Identity:
    """The identity of the kernel that computes `values` at every point of `axes` and stores them as `outputs`, in whatever order."""
    start = _Spelled(Speller({a: k for k, a in enumerate(axes)}, extents), (), (), ())
    loads = [{v.tensor for v in loop.walk((value,)) if isinstance(v, loop.Load)} for value in values]
    spelled = _least(start, [f"{o.element}{list(o.shape)}" for o in outputs], values, loads)
    inputs = [f"{short}:{tensors[name].element}{list(tensors[name].shape)}" for name, short in spelled.speller.tensors.items()]
    text = "\n".join([*inputs, *spelled.types, *spelled.speller.text, *spelled.names])
    return Identity(digest(text), {name: tensors[name] for name in spelled.speller.tensors}, spelled.order)


class _Spelled(NamedTuple):
    """Some outputs spelled, one after another, and the types and names of their values."""

    speller: Speller
    order: tuple[int, ...]
    types: tuple[str, ...]
    names: tuple[str, ...]

    def then(self, number: int, kind: str, value: Value) -> _Spelled:
        speller = self.speller.copy()
        name = speller.value(value)
        return _Spelled(speller, (*self.order, number), (*self.types, kind), (*self.names, name))

    @property
    def text(self) -> tuple[object, ...]:
        return self.types, self.names, self.speller.text


def _least(done: _Spelled, types: Sequence[str], values: Sequence[Value], loads: Sequence[set[str]]) -> _Spelled:
    """All outputs spelled, the one of least text next.  Of several that are spelled alike, any will do if what each brings in is its own:
    they can be exchanged; else the one that leads to the least text in the end."""
    left = [k for k in range(len(values)) if k not in done.order]
    if not left:
        return done
    further = [done.then(k, types[k], values[k]) for k in left]
    least = min(further, key=lambda s: s.text)
    alike = [s for s in further if s.text == least.text]

    def own(s: _Spelled) -> bool:
        brought = s.speller.tensors.keys() - done.speller.tensors.keys()
        return not any(brought & loads[k] for k in left if k != s.order[-1])

    ways = alike[:1] if all(map(own, alike)) else alike
    return min((_least(s, types, values, loads) for s in ways), key=lambda s: s.text)
