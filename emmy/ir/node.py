"""Frozen, interned nodes: the base of every IR.

Two nodes built from equal fields are the same object, so equality is identity, hashing is constant time and a term
is a DAG without further work.  Fields must be hashable; sequences are tuples.  A float is never a field: constants
hold their bits (see `emmy.ir.dtype`), because 0.0 == -0.0 and NaN != NaN would make interning wrong.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any, dataclass_transform

_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()


@dataclass_transform(frozen_default=True, eq_default=False)
class _Interned(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        return dataclasses.dataclass(frozen=True, eq=False, repr=False)(super().__new__(mcs, name, bases, namespace))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # 1 == True == 1.0, so a key has the types of the fields beside them
        if not kwargs and (known := _TABLE.get((cls, args, *map(type, args)))) is not None:
            return known        # of fields all given, as its key has them
        made = super().__call__(*args, **kwargs)
        fields = tuple([getattr(made, name) for name in made.__match_args__])
        return _TABLE.setdefault((cls, fields, *map(type, fields)), made)


class Node(metaclass=_Interned):
    """Base of interned dataclasses.  Subclass and annotate fields; `__post_init__` may raise `IRError`."""

    def __repr__(self) -> str:
        fields = ", ".join(repr(getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, it is built from its fields again: it is interned in the process that reads it, too."""
        return type(self), tuple(getattr(self, f.name) for f in dataclasses.fields(self))

    def replace(self, **changes: Any) -> Any:
        """The node with some fields changed."""
        return dataclasses.replace(self, **changes)


def members(node: Node) -> Iterator[Any]:
    """The values of a node's fields, those of tuples one by one."""
    names: tuple[str, ...] = node.__match_args__
    for name in names:
        value = getattr(node, name)
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def postorder[T: Hashable](roots: Iterable[T], operands: Callable[[T], Sequence[T]]) -> tuple[T, ...]:
    """Everything below the roots once, operands before users, in the order of a depth-first walk."""
    order: dict[T, None] = {}
    opened: set[T] = set()
    stack = [*roots][::-1]
    while stack:
        x = stack[-1]
        if x in order:
            stack.pop()
        elif x in opened:
            order[stack.pop()] = None
        else:
            opened.add(x)
            stack.extend(reversed(operands(x)))
    return tuple(order)


def unwound[T](call: Generator[Any, Any, T]) -> T:
    """What a recursive function returns, written as a generator that yields its calls to itself and is sent what they return: on a stack
    of its own, for Python's is short, and shorter still inside torch.compile."""
    stack: list[Generator[Any, Any, Any]] = [call]
    result: Any = None
    while stack:
        try:
            stack.append(stack[-1].send(result))
            result = None
        except StopIteration as returned:
            stack.pop()
            result = returned.value
    return result       # type: ignore[no-any-return]


class IRError(ValueError):
    """A node, or a program of nodes, that breaks a rule of its IR; the message names the node and the rule."""
