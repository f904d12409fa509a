from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from emmy.pipeline import compile_snippet
from emmy.tune.search import FIRST, LEAST, Search, described
from emmy.tune.tasks import Option, tasks


@pytest.fixture(scope="module")
def options() -> tuple[Option, ...]:
    (task,) = tasks(compile_snippet("torch.randn(512, 2048).softmax(-1)"))
    return task.options


def searched(options: tuple[Option, ...], truth: Callable[[Option], float | None], seed: int = 0) -> tuple[list[int], int | None]:
    """The order in which options are measured, and after how many the search would end."""
    search, order, ended = Search(options, seed), list[int](), None
    while (k := search.take()) is not None:
        order.append(k)
        search.tell(k, truth(options[k]))
        ended = len(order) if ended is None and search.hopeless() else ended
    return order, ended


def biased(o: Option) -> float:
    """A device on which every row takes twice what is predicted, and rows of blocks eight times."""
    return o.seconds * (8 if "REDUCE=coop" in o.row else 2)


def test_every_option_is_given_out_once_and_the_order_is_the_seeds(options: tuple[Option, ...]) -> None:
    first, again, other = (searched(options, biased, seed)[0] for seed in (0, 0, 5))
    assert sorted(first) == list(range(len(options))) and first == again != other
    assert first[:FIRST] == list(range(FIRST)), "the model's picks come first"


def test_the_order_learns_what_the_model_is_wrong_about(options: tuple[Option, ...]) -> None:
    best = min(range(len(options)), key=lambda k: biased(options[k]))
    assert "REDUCE=coop" in options[0].row and best > 8
    order, ended = searched(options, biased)
    assert order.index(best) < best and ended is not None and order.index(best) < ended


def test_a_search_ends_when_the_rest_is_hopeless_and_not_before_enough_is_known(options: tuple[Option, ...]) -> None:
    _, ended = searched(options, lambda o: o.seconds)
    assert ended is not None and LEAST <= ended < len(options)


def test_rows_that_fail_teach_nothing_and_end_nothing(options: tuple[Option, ...]) -> None:
    order, ended = searched(options, lambda o: None)
    assert sorted(order) == list(range(len(options))) and ended is None
    search = Search(options)
    search.tell(0, None)
    assert search.best is None and search.take() != 0


def test_expectations_are_those_of_the_model_until_something_is_known(options: tuple[Option, ...]) -> None:
    search = Search(options)
    mean, deviation = search.expected()
    assert np.allclose(mean, [math.log(o.seconds) for o in options]) and (deviation > 0.3).all()
    for k in range(0, len(options), 2):
        search.tell(k, 2 * options[k].seconds)
    mean, narrowed = search.expected()
    assert np.allclose(mean, [math.log(2 * o.seconds) for o in options], atol=0.1) and (narrowed < deviation).all()


def test_descriptions_are_standardised(options: tuple[Option, ...]) -> None:
    x = described(options)
    assert (x[:, 0] == 1).all() and np.allclose(x[:, 1:].mean(axis=0), 0) and np.allclose(x[:, 1:].std(axis=0), 1)
    assert described(options[:1]).shape == (1, 1)
