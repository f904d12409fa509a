"""Blocks counted along one axis: a body that was written for a grid of three, in a grid of its own or as part of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from emmy.instructions.registers import Let
from emmy.ir import dtype as dt
from emmy.ir.kernel_ir import Apply, Block, Convert, Element, Expr, Stmt, Var, fold, subexpressions, walk

Grid = tuple[int, int, int]


def placed(body: tuple[Stmt, ...], grid: Grid, flat: Expr, stem: str) -> tuple[Stmt, ...]:
    """The body of a kernel of a grid for its block number `flat` (i32, x running fastest).  `stem` begins the names of its indices."""
    read = {x.axis for s in walk(body) for e in s.expressions for x in subexpressions(e) if isinstance(x, Block)}
    places = {0: flat % grid[0], 1: flat // grid[0] % grid[1], 2: flat // (grid[0] * grid[1])}
    if grid[1] == grid[2] == 1:
        places[0] = flat
    names = {axis: Var(f"{stem}_{'xyz'[axis]}", dt.i32) for axis in sorted(read)}
    return *(Let(var, places[axis]) for axis, var in names.items()), *(_within(s, names) for s in body)


def _within(s: Stmt, places: Mapping[int, Var]) -> Stmt:
    """The statement with the block's indices replaced."""
    def new(v: object) -> object:
        return tuple(_within(x, places) for x in v) if isinstance(v, tuple) else _at(v, places) if isinstance(v, Expr) else v
    return type(s)(*(new(getattr(s, f.name)) for f in fields(s)))


def _at(e: Expr, places: Mapping[int, Var]) -> Expr:
    match e:
        case Block(axis): return places[axis]
        case Apply(op, args): return fold(op, *(_at(a, places) for a in args))
        case Convert(element, x): return Convert(element, _at(x, places))
        case Element(array, element, index): return Element(array, element, _at(index, places))
    return e
