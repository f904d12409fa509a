"""Device time on a GPU: CUDA-graph replay with a cold L2 cache, candidates alternated in one run.

For each candidate a graph of n x {overwrite a scratch buffer of at least twice the L2; run} is captured, and one of n x {overwrite}
alone.  The time of a run is the difference of their replays over n.  Launch latency and the overwriting cancel; so do the dirty lines
that the run evicts, because it leaves as many fewer for the next overwriting.  Replays of all candidates take turns, in an order
that rotates, so that clocks and temperature serve all alike; the figure is the median over the turns.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any, NamedTuple

from emmy.errors import EmmyError

Run = Callable[[], object]
TURN_US = 20_000.0  # device time that one replay aims at, unless told otherwise
INNER = (1, 50)  # least and most runs in a graph
CALLS_S = 1.0  # seconds after which calls are no longer repeated


class Timing(NamedTuple):
    """Microseconds of device time: the median over the turns, and the distance between their quartiles."""

    us: float
    spread_us: float


def device_us(run: Run, *, repeats: int = 7) -> float:
    """The median device time of `run`, in microseconds."""
    return device_times({"run": run}, repeats=repeats)["run"].us


def device_times(candidates: Mapping[str, Run], *, repeats: int = 7, turn_us: float = TURN_US) -> dict[str, Timing]:
    """The device time of each candidate, from `repeats` replays of about `turn_us` of device time.  A candidate launches on torch's
    current stream and may allocate, but must not synchronize."""
    import torch

    flush = _flusher()
    graphs: dict[str, tuple[Any, Any, int]] = {}
    baselines: dict[int, Any] = {}
    for name, run in candidates.items():
        _warm_up(run)
        once = _elapsed_us(_graph([flush, run]))
        inner = min(max(round(turn_us / max(once, 1.0)), INNER[0]), INNER[1])
        if inner not in baselines:
            baselines[inner] = _graph([flush] * inner)
        try:
            graphs[name] = (_graph([flush, run] * inner), baselines[inner], inner)
        except RuntimeError as error:
            raise EmmyError(f"{name} cannot be captured in a CUDA graph: {error}",
                            "Time only work that neither synchronizes nor copies to the host.") from error
    turns: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(repeats):
        order = list(graphs)
        for name in order[turn % len(order):] + order[:turn % len(order)]:
            graph, baseline, inner = graphs[name]
            turns[name].append((_elapsed_us(graph) - _elapsed_us(baseline)) / inner)
    torch.cuda.synchronize()
    return {name: Timing(median(xs), _quartile_distance(xs)) for name, xs in turns.items()}


def call_us(run: Run, *, calls: int = 200) -> float:
    """Host time of one asynchronous call, in microseconds: the median over `calls`, the device's queue kept short."""
    import torch

    _warm_up(run)
    times: list[float] = []
    began = time.perf_counter()
    for k in range(calls):
        if k % 20 == 0:
            torch.cuda.synchronize()
            if times and time.perf_counter() - began > CALLS_S:
                break
        start = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - start) / 1000)
    torch.cuda.synchronize()
    return median(times)


@functools.cache
def _flusher() -> Run:
    """Overwrites a buffer of twice the L2's size, and of 64 MiB at least."""
    import torch

    l2 = torch.cuda.get_device_properties("cuda").L2_cache_size
    scratch = torch.empty(max(2 * l2, 64 << 20) // 4, dtype=torch.int32, device="cuda")
    return lambda: scratch.fill_(1)


def _warm_up(run: Run, calls: int = 3) -> None:
    """Compile, load and choose algorithms outside the measurement, on a stream of its own as capture asks."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(calls):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _graph(runs: list[Run]) -> Any:
    """The runs in order as one CUDA graph, replayed once."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _elapsed_us(graph: Any) -> float:
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1000


def _quartile_distance(xs: list[float]) -> float:
    first, _, third = quantiles(xs, n=4) if len(xs) > 1 else (0.0, 0.0, 0.0)
    return third - first
