"""Evidence outranks the model: what a kernel's rows take where they were measured, what they are expected to take where they were not.

A row that was measured and right takes what was measured.  One that was wrong, crashed, ran out of time or did not compile is left out,
unless no other row is there.  Any other row takes what the model predicts, times what measured rows of the kernel took of their
predictions in the median, but no less than the best of them: guesses do not outrank measurements.  A kernel that was never measured
takes what the model predicts, times what the kernels that were took of their predictions in the median, if they are enough to tell what
the device is off by from what they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from emmy.errors import EmmyError

if TYPE_CHECKING:
    from emmy.tune.database import Measurement

ENOUGH = 3      # kernels that a device is known by


class Evidence:
    """The newest measurements of a device, by kernel and row.  An empty one changes no price."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self.found: dict[str, dict[str, Measurement]] = {}
        self._share: float | None = None
        for m in sorted(measurements, key=lambda m: m.at):
            self.add(m)

    def add(self, m: Measurement) -> None:
        """A measurement more, newer than all others of its row."""
        self.found.setdefault(m.identity, {})[m.row] = m
        self._share = None

    @property
    def share(self) -> float:
        """What a kernel of the device takes of its prediction, in the median."""
        if self._share is None:
            kernels = ([m.us / m.predicted_us for m in rows.values() if m.us and m.predicted_us] for rows in self.found.values())
            medians = [median(shares) for shares in kernels if shares]
            self._share = median(medians) if len(medians) >= ENOUGH else 1.0
        return self._share

    def of(self, identity: str) -> Mapping[str, Measurement]:
        """The measurements of a kernel, by row."""
        return self.found.get(identity, {})

    def prices(self, identity: str, predicted: Sequence[tuple[object, float]]) -> list[float]:
        """The seconds of each (row, predicted seconds) of a kernel, the row by itself or as text; infinite for a row to be left out."""
        if not self.found:
            return [seconds for _, seconds in predicted]
        spelled, known = [(str(row), seconds) for row, seconds in predicted], self.of(identity)
        taken = {row: m.us * 1e-6 for row, m in known.items() if m.status == "right" and m.us is not None}
        shares = [taken[row] / seconds for row, seconds in spelled if row in taken and seconds > 0]
        share = median(shares) if shares else self.share
        least = min((taken[row] for row, _ in spelled if row in taken), default=0.0)

        def price(row: str, seconds: float) -> float:
            if row in known:
                return taken.get(row, math.inf)
            return max(seconds * share, least * (1 + 1e-9))

        found = [price(row, seconds) for row, seconds in spelled]
        return found if any(map(math.isfinite, found)) else [seconds for _, seconds in predicted]


def here(device: str, math: str) -> Evidence:
    """What the database where it usually is says of a device, if there is one and it is not switched off: of the compiler in use where
    there is one, else of any."""
    from emmy.runtime.build import compiler
    from emmy.tune.database import Database, default_path

    path = default_path()
    if path is None or not path.exists():
        return Evidence()
    try:
        by = compiler()
    except EmmyError:
        by = None
    return Evidence(Database(path).get(device=device, math=math, compiler=by))
