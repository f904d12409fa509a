"""A picture as the public extraction-gym format: JSON that egraph-serialize and `extract.read_gym` read.

    {"nodes": {"12.0": {"op": "mul", "children": ["3.0", "4.0"], "eclass": "12", "cost": 1.2e-09, "subsumed": false}, …},
     "root_eclasses": ["12"], "class_data": {"12": {"type": "f32", "axes": "i1<32 r0<2048"}, …}}

Costs are seconds, of a member alone.  An extraction computes each class once, so a cut is a member that stands for what it costs: a
load of a kept tensor t has for its child the class `keep t`, whose one node costs the launch and the traffic of writing t and has for
its child the class that computes t.  In that class itself there is nothing to load.
"""

from __future__ import annotations

import re
from typing import Any

from emmy.view.picture import Member, Picture

_OPERANDS = re.compile(r"\(%\d+(, %\d+)*\)$")


def gym(picture: Picture) -> dict[str, Any]:
    """The graph as JSON values; its roots are the classes of the results.  What extraction does not consider is left out."""
    members: dict[str, list[tuple[str, float, tuple[str, ...]]]] = {}
    for c, eclass in picture.classes.items():
        priced = [m for m in eclass.members if m.seconds is not None and m.tensor not in eclass.keeps]
        members[str(c)] = [(_OPERANDS.sub("", m.text), m.seconds or 0.0, _children(m, picture)) for m in priced]
    for name in sorted({m.tensor for x in picture.classes.values() for m in x.members} & picture.keeps.keys()):
        keep = picture.keeps[name]
        members[f"keep {name}"] = [(f"keep {name}", keep.seconds, (str(keep.home),))]
    nodes = {f"{c}.{k}": {"op": op, "children": [f"{below}.0" for below in children], "eclass": c, "cost": seconds, "subsumed": False}
             for c, ms in members.items() for k, (op, seconds, children) in enumerate(ms)}
    data = {str(c): {"type": x.element, "axes": " ".join(f"{a}<{picture.extents[a]}" for a in x.axes)} for c, x in picture.classes.items()}
    return {"nodes": nodes, "root_eclasses": [str(c) for c in dict.fromkeys(c for _, c in picture.outputs)], "class_data": data}


def _children(member: Member, picture: Picture) -> tuple[str, ...]:
    """The classes that a member is made of, the keeping of the tensor that it loads among them."""
    return (*map(str, member.kids), *[f"keep {member.tensor}"] * (member.tensor in picture.keeps))
