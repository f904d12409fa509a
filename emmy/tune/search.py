"""In which order a kernel's rows are measured: the model's, corrected by what the rows measured so far took.

The logarithm of measured over predicted time is taken to be linear in what a row does (its features, its fields), with a normal prior
on every weight, and to miss that by a normal error of its own: Bayesian linear regression, whose posterior has a mean and a standard
deviation for each row, the size of the error being that under which the measurements are likeliest (Bishop, "Pattern Recognition and
Machine Learning", 3.3 and 3.5).  The next row is that of the lowest bound; one in EXPLORE is drawn at random, because the model may be
blind to what matters.  The search may end when no bound of a row left is below the best time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from emmy.ir import tile_ir as tile
from emmy.tune.tasks import Option

FIRST = 3               # rows that are measured in the model's order
EXPLORE = 8             # one row in so many is drawn at random
LEAST = 24              # rows that are measured before a search may end early
PRIOR = 0.4             # standard deviation of the logarithm that the regression explains
ERRORS = (0.03, 0.06, 0.12, 0.25, 0.5)      # those of what it does not, to choose from
CAUTION = 2.0           # standard deviations below the mean that a bound lies


class Search:
    """A search over the options of a kernel.  `take` gives out the number of an option once, `tell` says what it took."""

    def __init__(self, options: Sequence[Option], seed: int = 0) -> None:
        self.options = options
        self.random = np.random.default_rng(seed)
        self.left = list(range(len(options)))
        self.seconds: dict[int, float | None] = {}
        self.predicted = np.log([max(o.seconds, 1e-12) for o in options])
        self.inputs = described(options)
        self._posterior: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def best(self) -> tuple[int, float] | None:
        """The option that took least so far, and its seconds."""
        right = [(s, k) for k, s in self.seconds.items() if s is not None]
        return (min(right)[1], min(right)[0]) if right else None

    def tell(self, k: int, seconds: float | None) -> None:
        """Option `k` took `seconds`; None if its numbers were not right or it never ended."""
        if k in self.left:
            self.left.remove(k)
        self.seconds[k] = seconds
        self._posterior = None

    def take(self) -> int | None:
        """The option to measure next; None if all were given out."""
        if not self.left:
            return None
        given = len(self.options) - len(self.left)
        if given < FIRST:
            k = min(self.left, key=lambda k: (self.predicted[k], k))
        elif given % EXPLORE == EXPLORE - 1:
            k = self.left[int(self.random.integers(len(self.left)))]
        else:
            mean, deviation = self.expected()
            k = min(self.left, key=lambda k: (mean[k] - deviation[k], k))
        self.left.remove(k)
        return k

    def hopeless(self) -> bool:
        """Whether no option left is likely to be better than the best."""
        if self.best is None or len(self.seconds) < LEAST:
            return False
        mean, deviation = self.expected()
        return all(mean[k] - CAUTION * deviation[k] > math.log(self.best[1]) for k in self.left)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the logarithm of each option's seconds, the mean and the standard deviation."""
        if self._posterior is None:
            known = [k for k, s in self.seconds.items() if s is not None]
            ratio = np.array([math.log(self.seconds[k] or 1.0) - self.predicted[k] for k in known])
            x, prior = self.inputs, PRIOR**2 / self.inputs.shape[1]
            kernel = prior * x[known] @ x[known].T

            def surprise(error: float) -> float:
                """Minus the logarithm of the measurements' density, up to a constant."""
                factor = np.linalg.cholesky(kernel + error**2 * np.eye(len(known)))
                return float(np.square(np.linalg.solve(factor, ratio)).sum() / 2 + np.log(np.diag(factor)).sum())

            error = min(ERRORS, key=surprise) if known else ERRORS[-1]
            covariance = np.linalg.inv(np.eye(x.shape[1]) / prior + x[known].T @ x[known] / error**2)
            weights = covariance @ x[known].T @ ratio / error**2
            self._posterior = self.predicted + x @ weights, np.sqrt(np.einsum("ij,jk,ik->i", x, covariance, x) + error**2)
        return self._posterior


def described(options: Sequence[Option]) -> np.ndarray:
    """A row of numbers for each option, each column of mean 0 and deviation 1 or constant 1: its features' logarithms, its fields'
    numbers' logarithms, and which words its fields are made of."""
    words = sorted({w for o in options for w in fields(o.schedule)[0]})
    table = []
    for o in options:
        mine, numbers = fields(o.schedule)
        table.append([*(math.log1p(abs(x)) for x in o.features), *numbers, *(float(w in mine) for w in words)])
    x = np.array(table).reshape(len(options), -1)
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0))[:, deviation > 1e-9] / deviation[deviation > 1e-9]
    return np.concatenate([np.ones((len(options), 1)), x], axis=1)


def fields(schedule: tile.Schedule) -> tuple[set[str], list[float]]:
    """The words of a schedule's fields, its form among them, and for each field the logarithms of the product and number of its numbers."""
    parts = dict(part.split("=", 1) for part in str(schedule.row).split(",") if part)
    words = {schedule.form} | {f"{name} {re.sub(r'[0-9]+', '#', value)}" for name, value in parts.items()}
    numbers = []
    for name in tile.ROW_FIELDS:
        found = [int(n) for n in re.findall(r"\d+", parts.get(name, ""))]
        numbers += [math.log1p(math.prod(found)) if found else 0.0, float(len(found))]
    return words, numbers
