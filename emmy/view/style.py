"""What the page and the static picture share: sizes in pixels, colours, and how a card of a class stands."""

from __future__ import annotations

from emmy.view.picture import Member

WIDTH, HEAD, ROW, FOOT = 264, 24, 18, 5     # of a card: its width, the heights of its head and of a row, the room below its rows
LANE, APART, GAP = 4, 26, 46                # how wide a lane is; between cards and lanes of a layer; between layers
CHOSEN, OTHER = 4.0, 1.0                    # how much an edge wants to be short (emmy.view.layout)
METRICS = {"width": WIDTH, "head": HEAD, "row": ROW, "foot": FOOT, "lane": LANE, "apart": APART, "gap": GAP, "chosen": CHOSEN,
           "other": OTHER}
PALETTE = ("#2f6fde", "#d9702b", "#1f9d63", "#b5408f", "#7a5fd0", "#b8930f", "#1490a6", "#d2453f", "#67881f", "#8d6552")
"""The colours of kernels, in turn."""


def height(rows: int) -> int:
    """Pixels of a card with so many rows."""
    return HEAD + ROW * rows + FOOT


def colour(kernel: int) -> str:
    """The colour of a kernel by its number."""
    return PALETTE[kernel % len(PALETTE)]


def duration(seconds: float) -> str:
    """Three digits and a unit: 3.4e-06 is 3.4 µs."""
    for unit, size in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e12:.3g} ps" if seconds else "0"


def cost(member: Member) -> str:
    """A member's cost, or nothing for one that extraction does not consider."""
    return "" if member.seconds is None else duration(member.seconds)
