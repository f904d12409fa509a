"""What is the same at every call: values that weights alone give, and which tensors of them may stay from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping

from emmy.egraph.terms import Region, Term

GROWTH, SPARE = 1.5, 1 << 16    # what a tensor may take to stay: so many times the bytes of the weights that it is made of, and these


def lasting(region: Region, homes: Mapping[str, int], bytes: Mapping[str, int]) -> frozenset[str]:
    """The tensors that are the same at every call and may stay: weights, and of those with `homes` what is made of weights alone where it
    is neither a result, of which each call has its own, nor much larger than they are.  `bytes`: of all tensors."""
    members = invariant(region)
    returned = {tensor for _, tensor in region.program.outputs} - region.passed

    def fits(tensor: str) -> bool:
        return bytes[tensor] <= GROWTH * sum(map(bytes.__getitem__, made_of(homes[tensor], members))) + SPARE

    return region.weights.union(n for n, c in homes.items() if c in members and n not in returned and fits(n))


def invariant(region: Region) -> dict[int, list[Term]]:
    """The classes that weights, numbers and indices alone give, each with its members of such."""
    users: dict[int, list[tuple[int, Term]]] = {}
    members: dict[int, list[Term]] = {}
    open_: list[tuple[int, Term]] = []
    for c, ts in region.terms.items():
        for t in ts:
            if t.kind != "Tensor" and (t.kind != "Input" or t.label in region.weights):
                for k in set(t.kids):
                    users.setdefault(k, []).append((c, t))
                if not t.kids:
                    open_.append((c, t))
    while open_:
        c, t = open_.pop()
        if all(k in members for k in t.kids):
            new = c not in members
            members.setdefault(c, []).append(t)
            open_ += users.get(c, ()) if new else ()
    return members


def made_of(c: int, members: dict[int, list[Term]]) -> set[str]:
    """The weights that some member of an invariant class is made of."""
    seen, stack = {c}, [c]
    found: set[str] = set()
    while stack:
        for t in members[stack.pop()]:
            found |= {t.label} if t.kind == "Input" else set()
            stack += set(t.kids) - seen
            seen |= set(t.kids)
    return found
