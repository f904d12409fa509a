"""A dot plot as SVG: a line for each name, and on it a dot for each of its values, along one logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from emmy.view import style
from emmy.view.svg import LETTER, document, tag, text

ACROSS, MARGIN, TOP, LINE = 480, 20, 66, 15     # pixels: of the axis, about all, above the lines, and of a line


def dots(values: Mapping[str, Sequence[float | None]], series: Sequence[str], title: str) -> str:
    """An SVG with a line for each name of `values`: its k-th value is a dot in the colour of `series[k]`, None is no dot.

    All values are positive; the axis has powers of two, and 1 is drawn through.
    """
    there = [math.log2(v) for of in values.values() for v in of if v] or [0.0]
    low, high = math.floor(min(*there, -0.5)), math.ceil(max(*there, 0.5))
    left = MARGIN + LETTER * max(map(len, values), default=0) + MARGIN / 2
    width, height = left + ACROSS + 2 * MARGIN, TOP + LINE * len(values) + MARGIN

    def at(power: float) -> float:
        return left + ACROSS * (power - low) / (high - low)

    shapes = [text(title, left, 20, "name")]
    for power in range(low, high + 1):
        label, weight = f"{2.0 ** power:g}", "2" if power == 0 else "0.5"
        shapes += [tag("path", class_="outline", d=f"M{at(power):.1f} {TOP - 6}V{height - MARGIN}", style=f"stroke-width:{weight}"),
                   text(label, at(power) - LETTER * len(label) / 2, TOP - 12, "dim")]
    for k, name in enumerate(series):
        x = left + ACROSS / 2 * k
        shapes += [tag("circle", cx=x + 5, cy=36, r=4, fill=style.colour(k)), text(name, x + 15, 40, "dim")]
    for n, (name, of) in enumerate(values.items()):
        y = TOP + LINE * n + LINE / 2
        shapes.append(text(name, left - MARGIN / 2, y + 4, "", end=True))
        for k, v in [*enumerate(of)][::-1]:
            if v:
                shapes.append(tag("circle", tag("title", escape(f"{name}: {series[k]} {v:.2f}")), cx=f"{at(math.log2(v)):.1f}", cy=f"{y:g}",
                                  r=4 if k == 0 else 3, fill=style.colour(k)))
    return document(title, width, height, *shapes)
