"""Bodies to fold trees: folds where their axes put them, twists joined, and no axis both folded and written."""

from __future__ import annotations

from emmy.ir import dtype as dt
from emmy.ir import loop_ir as loop
from emmy.ir import tile_ir as tile
from emmy.ir.index import Ax, IxConst
from emmy.lower.loop_to_tile import kernel

X = tile.Tensor("x", (4, 8), dt.f32)


def x(row: int, column: int) -> loop.Value:
    return loop.Load("x", dt.f32, (Ax(row), Ax(column)))


def test_a_fold_over_an_axis_of_the_output_takes_its_own() -> None:
    total = loop.Reduce("add", 1, x(0, 1))
    made = kernel("k", (loop.Apply("div", (x(0, 1), total)),), (tile.Tensor("y", (4, 8), dt.f32),), (0, 1), {0: 4, 1: 8}, {"x": X})
    (fold,) = made.folds
    assert fold.axis not in made.outer and made.extents[fold.axis] == 8 and fold.span == {0}
    assert fold.lifts == (x(0, fold.axis),) and made.results == (loop.Apply("div", (x(0, 1), fold.result())),)


def test_channels_of_one_score_are_one_fold_and_one_that_reads_its_pivot_comes_later() -> None:
    score = x(0, 2)
    one = loop.Const(dt.f32, dt.bits(dt.f32, 1.0))
    pivot, count = loop.Pivot("softmax", 2, score), loop.Channel("softmax", 2, score, one)
    late = loop.Channel("softmax", 2, score, loop.Apply("sub", (x(0, 2), pivot)))
    body = loop.Apply("add", (late, loop.Apply("div", (pivot, count))))
    made = kernel("k", (body,), (tile.Tensor("y", (4,), dt.f32),), (0,), {0: 4, 2: 8}, {"x": X})
    assert [(f.kind, f.axis, len(f.lifts)) for f in made.folds] == [("twist", 2, 2), ("twist", 2, 2)]
    tile.verify(made)


def test_what_is_written_along_an_axis_of_one_point_reads_what_was_folded_at_0() -> None:
    wide = tile.Tensor("x", (1, 8), dt.f32)
    fixed = loop.Load("x", dt.f32, (IxConst(0), Ax(2)))
    made = kernel("k", (loop.Apply("div", (x(0, 1), loop.Reduce("add", 2, fixed))),), (tile.Tensor("y", (1, 8), dt.f32),), (0, 1),
                  {0: 1, 1: 8, 2: 8}, {"x": wide})
    assert made.results == (loop.Apply("div", (loop.Load("x", dt.f32, (IxConst(0), Ax(1))), made.folds[0].result())),)
    folded = kernel("k", (loop.Apply("div", (x(0, 1), loop.Reduce("add", 2, x(0, 2)))),), (tile.Tensor("y", (1, 8), dt.f32),), (0, 1),
                    {0: 1, 1: 8, 2: 8}, {"x": wide})
    assert folded.folds[0].span == {0} and folded.results == (loop.Apply("div", (x(0, 1), folded.folds[0].result())),)
