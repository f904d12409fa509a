"""A chart as SVG: steps of values that only fall, a line for each name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from emmy.view import style
from emmy.view.svg import document, tag, text

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 70, 50, 190, 50     # pixels, of which the margins


def chart(lines: Mapping[str, Sequence[float | None]], title: str, across: str, up: str) -> str:
    """An SVG of each line's values over their numbers, on a logarithmic scale; None is no value yet."""
    values = [y for line in lines.values() for y in line if y]
    least, most = (min(values), max(values)) if values else (1.0, 10.0)
    low, high = math.log10(least) - 0.02, math.log10(most) + 0.02
    count = max((len(line) for line in lines.values()), default=0)

    def at(k: float, y: float) -> tuple[float, float]:
        share = (math.log10(y) - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * k / max(count, 1), HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    shapes = [text(title, LEFT, 24, "name")]
    for y in ticks(least, most):
        x0, y0 = at(0, y)
        shapes += [tag("path", class_="outline", d=f"M{x0:.1f} {y0:.1f}H{WIDTH - RIGHT}"),
                   text(f"{y:.4g}", LEFT - 6, y0 + 4, "dim", end=True)]
    shapes += [text(up, 14, TOP - 8, "dim"), text(f"{across}: {count}", LEFT, HEIGHT - 16, "dim")]
    for n, (name, line) in enumerate(lines.items()):
        points = [(at(k + 1, y), at(k, y)) for k, y in enumerate(line) if y]
        if not points:
            continue
        path = f"M{points[0][1][0]:.1f} {points[0][1][1]:.1f}" + "".join(f"V{end[1]:.1f}H{end[0]:.1f}" for end, _ in points)
        shapes.append(tag("path", d=path, fill="none", style=f"stroke:{style.colour(n)};stroke-width:2"))
        best = min(y for y in line if y)
        shapes.append(tag("g", tag("rect", x=WIDTH - RIGHT + 14, y=TOP + 20 * n, width=12, height=12, fill=style.colour(n)),
                          text(f"{name}  {best:.4g}", WIDTH - RIGHT + 32, TOP + 10 + 20 * n, "")))
    return document(title, WIDTH, HEIGHT, *shapes)


def ticks(least: float, most: float) -> list[float]:
    """Some round values between two positive ones, ends included where they are few."""
    step = 10 ** math.floor(math.log10(max(most - least, least * 1e-3)))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if (most - least) / s <= 8)
    first = math.ceil(least / step)
    found = [step * k for k in range(first, math.floor(most / step) + 1) if k > 0]
    return found or [least]
