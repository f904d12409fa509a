"""Cards and lines of the classes that are shown: what `page/shown.js` does for the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emmy.view import style
from emmy.view.layout import Edge, place
from emmy.view.picture import Member, Picture


class Card(NamedTuple):
    """A class where it lies: its upper left corner, its height, the members that have a row, and how many further ones it has."""

    rows: tuple[int, ...]
    more: int
    x: float
    y: float
    height: int


class Line(NamedTuple):
    """From a row of a class to a child: an operand, or through `memory` the class that a kernel computed for it to load.

    It runs from (x1, y1), on the left of the row (side -1), its right (1) or the card's bottom (0), down the lanes `by`, each a (middle,
    top, bottom), to (x2, y2) on top of the child."""

    source: int
    row: int
    target: int
    memory: bool
    side: int
    x1: float
    y1: float
    x2: float
    y2: float
    by: tuple[tuple[float, float, float], ...]


def extracted(picture: Picture) -> dict[int, tuple[int, ...]]:
    """The classes of the extracted program, in the order of the drawing, with the members chosen."""
    chosen = {c: tuple(k for k, m in enumerate(x.members) if m.kernels) for c, x in picture.classes.items()}
    return {c: rows for c, rows in chosen.items() if rows}


def below(picture: Picture, c: int, m: Member) -> list[tuple[int, bool]]:
    """What a member leads to: its operands, and the class that a kernel computes for it to load (through memory, true)."""
    written = {w: root for k in picture.kernels for w, root in zip(k.writes, k.roots, strict=True)}
    kept = written.get(m.tensor, c) if m.kernels else c
    return [*((k, False) for k in dict.fromkeys(m.kids)), *[(kept, True)] * (kept != c)]


def arrange(picture: Picture, rows: Mapping[int, Sequence[int]]) -> tuple[dict[int, Card], list[Line]]:
    """The cards of the classes of `rows`, which come in the order of the drawing, and the lines between their rows."""
    links: list[tuple[int, int, int, bool]] = []
    weights: dict[tuple[int, int], float] = {}
    heights: dict[int, float] = {}
    for c, mine in rows.items():
        heights[c] = style.height(len(mine) + (len(mine) < len(picture.classes[c].members)))
        for row in mine:
            m = picture.classes[c].members[row]
            for k, memory in below(picture, c, m):
                if k in rows:
                    weights[c, k] = max(weights.get((c, k), 0.0), _weight(picture, c, row))
                    links.append((c, row, k, memory))
    rank = {c: n for n, c in enumerate(picture.classes)}
    edges = [Edge(c, k, weight) for (c, k), weight in weights.items()]
    places = place(heights, edges, rank, style.WIDTH, style.LANE, style.APART, style.GAP)
    cards = {c: Card(tuple(mine), len(picture.classes[c].members) - len(mine), *places.corners[c], int(heights[c]))
             for c, mine in rows.items()}
    return cards, [_line(cards, c, row, k, memory, places.between(c, k)) for c, row, k, memory in links]


def _weight(picture: Picture, c: int, row: int) -> float:
    return style.CHOSEN if picture.classes[c].members[row].kernels else style.OTHER


def _line(cards: Mapping[int, Card], source: int, row: int, target: int, memory: bool, by: tuple[tuple[float, float, float], ...]) -> Line:
    start, end = cards[source], cards[target]
    first, last = (by[0][0], by[-1][0]) if by else (end.x + style.WIDTH / 2, None)      # where it wants to leave, and to arrive
    if len(start.rows) == 1:
        side, x, y = 0, _inside(first, start), start.y + start.height
    else:
        side = 1 if first >= start.x + style.WIDTH / 2 else -1
        x, y = start.x + (style.WIDTH if side > 0 else 0), start.y + style.HEAD + style.ROW * (start.rows.index(row) + 0.5)
    return Line(source, row, target, memory, side, x, y, _inside(x + side * 22 if last is None else last, end), end.y, by)


def _inside(x: float, card: Card) -> float:
    """The nearest place to x at the edge of a card, off its corners."""
    return min(max(x, card.x + 16), card.x + style.WIDTH - 16)
