"""Launch plans: a compiled program as buffers and the launches over them, in order.

A plan is plain data: it holds neither device memory nor compiled code, goes to JSON and back unchanged, and needs neither torch nor CUDA.
Inputs and outputs have the types that eager gives them and are contiguous; those that eager has in channels_last have their dimensions in
the order of memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Literal

from emmy.ir import dtype as dt
from emmy.ir.dtype import DType
from emmy.ir.kernel_ir import TensorMap, Windows
from emmy.ir.node import IRError

Role = Literal["input", "weight", "constant", "held", "workspace", "scratch", "exchange", "signals", "output"]
Own = Literal["scratch", "exchange", "signals"]
OWN: tuple[Own, ...] = ("scratch", "exchange", "signals")       # of a kernel, and no tensors
ROLES: tuple[Role, ...] = ("input", "weight", "constant", "held", "workspace", *OWN, "output")
ALIGNMENT = 256  # bytes: what a CUDA allocation guarantees, and more than any vector access needs


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A contiguous tensor in device memory.  Scratch is filled with zeros before each launch that has it, and signals before the first,
    for a launch leaves them as it found them; exchange holds nothing before a launch.  What is held is written by launches that are done
    once, and stays."""

    name: str
    element: DType
    shape: tuple[int, ...]
    role: Role

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.element.bytes


@dataclasses.dataclass(frozen=True)
class Launch:
    """One kernel launch.  `arguments` are buffer names in parameter order, followed by `maps`, each of a buffer of the plan;
    `shared_bytes` is the dynamic part only.  An `early` one begins while those ahead of it end, and waits for them itself.  One that is
    done `once` reads weights, or inputs that are the same at most calls, and what such launches write: it is part of no call.

    `identity` is the digest that the kernel's measurements are filed under, `row` its schedule.  `bytes` is the traffic to
    device memory, `flops` the work in fp32 operations, `predicted_us` what the cost model expects."""

    kernel: str
    arguments: tuple[str, ...]
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int = 0
    identity: str = ""
    row: str = ""
    bytes: int = 0
    flops: float = 0.0
    predicted_us: float = 0.0
    maps: tuple[TensorMap, ...] = ()
    early: bool = False
    once: bool = False

    def fields(self) -> dict[str, Any]:
        """The launch as JSON values."""
        return vars(self) | {"maps": [_map_fields(m) for m in self.maps]}

    @staticmethod
    def from_fields(x: dict[str, Any]) -> Launch:
        """The inverse of `fields`, also after a trip through JSON text; TypeError or KeyError if they are not a launch's."""
        return Launch(**x | {"arguments": tuple(x["arguments"]), "grid": tuple(x["grid"]), "maps": tuple(map(_map, x.get("maps", ())))})


@dataclasses.dataclass(frozen=True)
class Plan:
    """A compiled program.  `inputs` in call order, `outputs` in return order (one buffer may be returned twice).  Launches that are done
    once come first; `calls` are the others.

    `source` is the CUDA text of every kernel, `target` such as "sm_90a", `math` "exact", "fast" or "tf32".  IRError if malformed."""

    name: str
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str
    target: str
    math: str

    def __post_init__(self) -> None:
        verify(self)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name; IRError if there is none."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise IRError(f"plan {self.name} has no buffer {name!r}; it has {', '.join(b.name for b in self.buffers)}")

    @property
    def calls(self) -> tuple[Launch, ...]:
        """The launches of each call."""
        return tuple(x for x in self.launches if not x.once)

    def of(self, *roles: Role) -> tuple[Buffer, ...]:
        """The buffers with one of those roles, in the plan's order."""
        return tuple(b for b in self.buffers if b.role in roles)

    def fields(self) -> dict[str, Any]:
        """The plan as JSON values."""
        buffers = [vars(b) | {"element": b.element.name} for b in self.buffers]
        return vars(self) | {"buffers": buffers, "launches": [x.fields() for x in self.launches]}

    @staticmethod
    def from_fields(fields: Any) -> Plan:
        """The inverse of `fields`, also after a trip through JSON text; IRError if they are not a plan's."""
        try:
            buffers = tuple(Buffer(**b | {"element": dt.named(b["element"]), "shape": tuple(b["shape"])}) for b in fields["buffers"])
            launches = tuple(map(Launch.from_fields, fields["launches"]))
            names = {"inputs": tuple(fields["inputs"]), "outputs": tuple(fields["outputs"])}
            return Plan(**fields | names | {"buffers": buffers, "launches": launches})
        except (TypeError, KeyError) as error:
            raise IRError(f"not a launch plan: {error}") from error

    def to_json(self) -> str:
        return json.dumps(self.fields(), indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """The inverse of `to_json`; IRError if the text is not a plan."""
        try:
            return Plan.from_fields(json.loads(text))
        except json.JSONDecodeError as error:
            raise IRError(f"not a launch plan: {error}") from error


def _map_fields(m: TensorMap) -> dict[str, Any]:
    return {"name": m.name, "buffer": m.buffer, "element": m.element.name, "shape": list(m.shape), "box": list(m.box), "swizzle": m.swizzle,
            "start": m.start, "pitches": list(m.pitches), "windows": m.windows and list(map(list, m.windows.numbers))}


def _map(x: dict[str, Any]) -> TensorMap:
    return TensorMap(**x | {"element": dt.named(x["element"]), "shape": tuple(x["shape"]), "box": tuple(x["box"]),
                            "pitches": tuple(x.get("pitches", ())),
                            "windows": Windows(*map(tuple, windows)) if (windows := x.get("windows")) else None})


def verify(plan: Plan) -> None:
    """IRError unless all names that launches, inputs and outputs use are buffers of the right role, and CUDA accepts every launch."""
    roles = {b.name: b.role for b in plan.buffers}
    if len(roles) != len(plan.buffers):
        raise IRError(f"plan {plan.name}: two buffers have one name")
    for b in plan.buffers:
        if b.role not in ROLES or any(n < 0 for n in b.shape):
            raise IRError(f"plan {plan.name}: buffer {b.name} has role {b.role!r} and shape {b.shape}")
    for wanted, role in ((plan.inputs, "input"), (plan.outputs, "output")):
        if {n for n, r in roles.items() if r == role} != set(wanted):
            raise IRError(f"plan {plan.name}: {role}s {', '.join(wanted)} are not its buffers with that role")
    for x in plan.launches:
        if unknown := [a for a in x.arguments if a not in roles]:
            raise IRError(f"plan {plan.name}: launch of {x.kernel} reads or writes {', '.join(unknown)}, which no buffer is")
        for m in x.maps:
            of = plan.buffer(m.buffer)
            if m.buffer not in x.arguments or of.element is not m.element.stored or prod(of.shape) < m.reach:
                raise IRError(f"plan {plan.name}: launch of {x.kernel} maps {m.buffer} as {m.element}{list(m.shape)}; "
                              f"it is {of.element}{list(of.shape)}, and has to be an argument too")
        if x.early and (x.once or x is plan.calls[0]):
            raise IRError(f"plan {plan.name}: launch of {x.kernel} is early, and none is ahead of it")
        if x.once and (other := next((a for a in x.arguments if roles[a] == "output"), None)):
            raise IRError(f"plan {plan.name}: launch of {x.kernel} is done once, and {other} is another tensor at each call")
        if len(x.grid) != 3 or min(x.grid) < 1 or not 1 <= x.block <= 1024:
            raise IRError(f"plan {plan.name}: launch of {x.kernel} has grid {x.grid} and block {x.block}; leave out a launch without work")
    if any(later.once and not x.once for x, later in pairwise(plan.launches)):
        raise IRError(f"plan {plan.name}: launches that are done once come before the others")


def held_offsets(plan: Plan) -> tuple[dict[str, int], int]:
    """Where each tensor that is held lies (bytes from the start of their memory), and how many bytes they take."""
    return offsets(plan.of("held"))


def offsets(buffers: Sequence[Buffer]) -> tuple[dict[str, int], int]:
    """Where each buffer lies, one behind the other (bytes from the start of their memory), and how many bytes they take."""
    ends = list(accumulate((-(-b.bytes // ALIGNMENT) * ALIGNMENT for b in buffers), initial=0))
    return dict(zip((b.name for b in buffers), ends, strict=False)), ends[-1]


def workspace_offsets(plan: Plan) -> tuple[dict[str, int], int]:
    """Where each workspace lies in one arena (bytes from its start), and the arena's size.

    A workspace, scratch or exchange is alive from the first launch that names it to the last; two that are never alive together may share
    memory.  First fit, largest first: launches on one stream run in order, so a later tenant cannot meet an earlier one."""
    life: dict[str, list[int]] = {}
    for k, x in enumerate(plan.launches):
        for a in x.arguments:
            life.setdefault(a, [k, k])[1] = k
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, list[int]]] = []
    for b in sorted(plan.of("workspace", "scratch", "exchange"), key=lambda b: (-b.bytes, b.name)):
        first, last = span = life.get(b.name, [0, -1])
        at = 0
        for start, stop, other in sorted(placed):
            if first <= other[1] and other[0] <= last and at + b.bytes > start:
                at = max(at, stop)
        offsets[b.name] = at
        placed.append((at, -(-(at + b.bytes) // ALIGNMENT) * ALIGNMENT, span))
    return offsets, max((stop for _, stop, _ in placed), default=0)
