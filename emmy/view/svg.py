"""A picture as SVG: the extracted program and the members of its classes, as many as can be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from emmy.view import style
from emmy.view.arrange import Card, Line, arrange, extracted
from emmy.view.picture import Picture

CLASSES, ROWS = 60, 6       # how many classes, and members of each, are drawn unasked
MARGIN, CAPTION = 28, 80
LETTER = 6.65               # pixels that a letter is wide
STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1b2330 }
.paper { fill: #f6f7f9 } .card { fill: #fff } .outline { fill: none; stroke: #d3d9e2 } .line { fill: none; stroke: #b4bdca }
.dim { fill: #6b7686 } .name { font-weight: 600 } .kept { fill: #fff } .more { font-style: italic }
"""


def svg(picture: Picture, everything: bool = False) -> str:
    """The picture; `everything` draws every class with every member, however many."""
    rows = all_rows(picture) if everything else readable_rows(picture)
    cards, lines = arrange(picture, rows)
    left = min((card.x for card in cards.values()), default=0.0)
    width = max(max((card.x for card in cards.values()), default=0.0) + style.WIDTH - left, 640) + 2 * MARGIN
    height = max((card.y + card.height for card in cards.values()), default=0.0) + CAPTION + MARGIN
    title = _clip(" ".join(picture.title.split()), int((width - 2 * MARGIN) / LETTER))
    captions = [text(title, MARGIN, MARGIN, "name"), text(" · ".join((_counts(picture), *picture.settings)), MARGIN, MARGIN + 18, "dim"),
                text(left_out(picture, rows), MARGIN, MARGIN + 34, "dim")]
    drawn = sorted(lines, key=lambda line: bool(_kernels(picture, line)))       # chosen lines lie over the others
    shapes = [*(_line(picture, line) for line in drawn), *(_card(picture, c, card) for c, card in cards.items())]
    return document(picture.title, width, height, *captions, tag("g", *shapes, transform=f"translate({MARGIN - left:g} {CAPTION})"))


def all_rows(picture: Picture) -> dict[int, tuple[int, ...]]:
    """Every member of every class."""
    return {c: tuple(range(len(x.members))) for c, x in picture.classes.items()}


def readable_rows(picture: Picture) -> dict[int, tuple[int, ...]]:
    """The first classes of the extracted program with the members that extraction considers, a few of each; the chosen ones always."""
    out: dict[int, tuple[int, ...]] = {}
    for c, chosen in list(extracted(picture).items())[:CLASSES]:
        priced = [k for k, m in enumerate(picture.classes[c].members) if m.seconds is not None]
        out[c] = tuple(priced[:max(ROWS, len(chosen))])
    return out


def left_out(picture: Picture, rows: Mapping[int, tuple[int, ...]]) -> str:
    """What is not drawn, in words."""
    members, chosen = sum(len(x.members) for x in picture.classes.values()), len(extracted(picture))
    drawn = sum(map(len, rows.values()))
    if drawn == members:
        return "every class and every member is drawn"
    cut = f"; of the extracted program the first {len(rows)} of {chosen} classes are drawn" if len(rows) < chosen else ""
    return f"{len(picture.classes) - len(rows)} classes and {members - drawn} members are left out{cut} (--all draws them)"


def _counts(picture: Picture) -> str:
    amounts = ((len(picture.classes), "class", "classes"), (sum(len(x.members) for x in picture.classes.values()), "member", "members"),
               (len(picture.kernels), "kernel", "kernels"))
    seconds = math.fsum(k.seconds for k in picture.kernels)
    return " · ".join([*(f"{n} {one if n == 1 else many}" for n, one, many in amounts), f"predicted {style.duration(seconds)}"])


def _written(picture: Picture) -> dict[str, int]:
    """The kernel that writes a tensor."""
    return {w: n for n, k in enumerate(picture.kernels) for w in k.writes}


def _kernels(picture: Picture, line: Line) -> tuple[int, ...]:
    return picture.classes[line.source].members[line.row].kernels


def _line(picture: Picture, line: Line) -> str:
    """A line leaves its row level or the card's bottom upright, and ends upright; one through memory is dashed."""
    kernels = _kernels(picture, line)
    x, y, side = line.x1, line.y1, line.side
    path = [f"M{x:.1f} {y:.1f}"]
    for to, top, bottom in (*line.by, (line.x2, line.y2, line.y2)):
        down = min(max(abs(top - y) / 2, 20), 150)
        bend = f"{x + side * min(max(abs(to - x) * 0.7, 18), 140):.1f} {y:.1f}" if side else f"{x:.1f} {y + down:.1f}"
        path.append(f"C{bend} {to:.1f} {top - down:.1f} {to:.1f} {top:.1f}V{bottom:.1f}")
        x, y, side = to, bottom, 0
    paint = f"stroke:{style.colour(kernels[0])};stroke-width:1.6{';stroke-dasharray:7 5' * line.memory}" if kernels else ""
    return tag("path", class_="line", d="".join(path), style=paint)


def _card(picture: Picture, c: int, card: Card) -> str:
    """A class: its number, type and axes in the head, which has the colour of the kernel that writes it, then its rows."""
    x, written = picture.classes[c], _written(picture)
    tensor = next((t for t in x.keeps if t in written), "")
    kernel = written.get(tensor)
    chosen = next((m.kernels[0] for m in x.members if m.kernels), None)
    most = int((style.WIDTH - 24) / LETTER)
    name = _clip(f"%{c}" if kernel is None else f"%{c}  {tensor}", most - 8)
    about = _clip(f"{x.element}[{' '.join(x.axes)}]", most - len(name) - 2)
    shapes = [tag("rect", class_="card", width=style.WIDTH, height=card.height, rx=7)]
    if kernel is not None:
        head = f"M0 {style.HEAD}V7Q0 0 7 0H{style.WIDTH - 7}Q{style.WIDTH} 0 {style.WIDTH} 7V{style.HEAD}Z"
        shapes.append(tag("path", d=head, fill=style.colour(kernel)))
    shapes.append(text(name, 10, 16, "name" if kernel is None else "name kept"))
    shapes.append(text(about, style.WIDTH - 10, 16, "dim" if kernel is None else "kept", end=True))
    for r, k in enumerate(card.rows):
        shapes += _row(picture, c, k, style.HEAD + style.ROW * r)
    if card.more:
        last = style.HEAD + style.ROW * len(card.rows)
        shapes.append(text(f"+ {card.more} more member{'s' * (card.more > 1)}", 12, last + 13, "dim more"))
    paint = "" if chosen is None else f"stroke:{style.colour(chosen)};stroke-width:1.5"
    shapes.append(tag("rect", class_="outline", width=style.WIDTH, height=card.height, rx=7, style=paint))
    return tag("g", *shapes, id=f"class-{c}", transform=f"translate({card.x:.1f} {card.y:.1f})")


def _row(picture: Picture, c: int, k: int, y: int) -> list[str]:
    """A member: a bar for each kernel that chose it, a square if it loads what a kernel wrote, its text, its cost."""
    m, written = picture.classes[c].members[k], _written(picture)
    cut, cost = [style.colour(written[m.tensor])] if m.kernels and m.tensor in written else [], style.cost(m)
    left = 12 + 4 * max(0, len(m.kernels) - 1) + 13 * len(cut)
    said = _clip(m.text, int((style.WIDTH - 14 - left) / LETTER) - len(cost) - 1)
    wide, high, colours = style.WIDTH - 2, style.ROW - 2, [style.colour(kernel) for kernel in m.kernels]
    tint = [tag("rect", x=1, y=y, width=wide, height=style.ROW, fill=colour, opacity=0.13) for colour in colours[-1:]]
    bars = [tag("rect", x=1 + 4 * n, y=y + 1, width=3, height=high, fill=colour) for n, colour in enumerate(colours)]
    square = [tag("rect", x=left - 12, y=y + 5, width=8, height=8, rx=2, fill=colour) for colour in cut]
    words = [text(said, left, y + 13, "" if m.kernels else "dim"), text(cost, style.WIDTH - 10, y + 13, "dim", end=True)]
    return [*tint, *bars, *square, *words]


def document(title: str, width: float, height: float, *shapes: str) -> str:
    """The SVG of shapes on paper of so many pixels."""
    inside = (tag("title", escape(title)), tag("style", STYLE), tag("rect", class_="paper", width=width, height=height), *shapes)
    return tag("svg", *inside, xmlns="http://www.w3.org/2000/svg", width=width, height=height, viewBox=f"0 0 {width:g} {height:g}") + "\n"


def text(words: str, x: float, y: float, kind: str, end: bool = False) -> str:
    """Words of a kind (a class of `STYLE`) that begin, or end, at a place."""
    return tag("text", escape(words), class_=kind, x=x, y=y, text_anchor="end" if end else "")


def tag(name: str, *inside: str, **attributes: str | float) -> str:
    """An element; an attribute is named as in SVG with `_` for `-`, and left out if it is empty."""
    said = {k.rstrip("_").replace("_", "-"): v if isinstance(v, str) else f"{v:g}" for k, v in attributes.items()}
    return f"<{name}{''.join(f' {k}="{escape(v)}"' for k, v in said.items() if v)}>{''.join(inside)}</{name}>"


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[:max(most - 1, 1)] + "…"
