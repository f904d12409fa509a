"""The smallest program that shows a failure.

A seed is made by choices among options, the simplest first; the numbers of the options chosen say the seed.  Fewer and smaller numbers are
a simpler seed: they are left out and lowered as long as the failure stays.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from emmy.check.trial import Failure, Trial
from emmy.check.world import Seed, World, world

INPUTS = 5      # settings of the inputs that a seed is tried with
FAILING = 6     # seeds of chance, of which the smallest is made simpler


class Choices:
    """Chooses by given numbers, then by chance, or without a source of it the first option; `made` are the numbers chosen."""

    def __init__(self, given: Sequence[int] = (), chance: random.Random | None = None):
        self.given, self.chance, self.made = given, chance, list[int]()

    def __call__(self, options: Sequence[Any]) -> Any:
        k = len(self.made)
        number = self.given[k] if k < len(self.given) else self.chance.randrange(len(options)) if self.chance else 0
        self.made.append(number % len(options))
        return options[self.made[-1]]


def size(failure: Failure) -> tuple[int, int]:
    """How much there is to read: characters of the program, or of its terms."""
    return (0, len(failure.example.text())) if failure.example else (1, len(str(failure.terms))) if failure.terms else (2, 0)


def smallest(trial: Trial, at: World, seeds: list[Seed], inputs: int, failure: Failure, seconds: float = 4.0) -> Failure:
    """The failure on the smallest seed found in so many seconds of the processor: one of those at hand, or one of chance, made simpler."""
    start = time.process_time()
    alone = [found._replace(terms=tuple(map(str, s.roots))) for s in seeds if (found := trial.round(at, [s], inputs)[1])]
    best = min([failure, *alone], key=size)
    numbers: list[int] | None = None
    chance, failed = random.Random(0), 0
    while failed < FAILING and time.process_time() < start + seconds / 2:
        choices = Choices(chance=chance)
        found = failing(trial, choices)
        failed += found is not None
        if found and (numbers is None or size(found) < size(best)):
            best, numbers = min(best, found, key=size), choices.made
    if numbers is None:
        return best
    improved = True
    while improved and time.process_time() < start + seconds:
        improved = False
        for fewer in simpler(numbers):
            if time.process_time() > start + seconds:
                break
            choices = Choices(fewer)
            found = failing(trial, choices)
            if found and (len(choices.made), choices.made) < (len(numbers), numbers):
                best, numbers, improved = min(found, best, key=size), choices.made, True
                break
    return best


def failing(trial: Trial, choices: Choices) -> Failure | None:
    """The failure of the seed that choices make, if it fails."""
    at = world(choices)
    seeds = trial.seeds(at, choices, 1, tries=1)
    found = next((f for k in range(INPUTS) if seeds and (f := trial.round(at, seeds, k)[1])), None)
    return found._replace(terms=tuple(map(str, seeds[0].roots))) if found else None


def simpler(numbers: list[int]) -> Iterator[list[int]]:
    """Lists with a stretch left out, then with one number lowered."""
    for length in (16, 8, 4, 2, 1):
        for k in range(0, len(numbers), max(1, length // 2)):
            yield numbers[:k] + numbers[k + length:]
    for k, n in enumerate(numbers):
        yield from (numbers[:k] + [m] + numbers[k + 1:] for m in {0, n // 2, n - 1} if 0 <= m < n)
