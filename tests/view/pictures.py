"""The pictures that the tests of this folder share."""

from __future__ import annotations

import re
from functools import cache

from emmy.pipeline import Program, compile_snippet
from emmy.view.picture import EClass, MadeBy, Picture, of_program, picture
from extract import hardware

CHAIN = "a, b, c = torch.randn(64, 256), torch.randn(256, 64), torch.randn(64, 256); (a @ b) @ c"
BLOCK = "x = torch.randn(8, 32); nn.RMSNorm(32)(x + nn.Linear(64, 32)(F.gelu(nn.Linear(32, 64)(nn.RMSNorm(32)(x)))))"


@cache
def program(source: str) -> Program:
    return compile_snippet(source)


@cache
def drawn(source: str) -> Picture:
    return of_program(program(source), source)


def with_rules(source: str, made: MadeBy) -> Picture:
    """The picture with another account of which rule made what."""
    found, choice = drawn(source), program(source).choice
    return picture(choice.outlined, choice.kernels, found.kernels, hardware.for_target("sm_90a"), made, found.title, found.settings)


def repeated(found: Picture, times: int) -> Picture:
    """The picture side by side with copies of itself, one after the other in the order of the drawing."""
    step = 1 + max(found.classes)
    classes: dict[int, EClass] = {}
    for by in range(0, times * step, step):
        for c, x in found.classes.items():
            members = tuple(m._replace(kids=tuple(k + by for k in m.kids), text=_shifted(m.text, by)) for m in x.members)
            classes[c + by] = x._replace(members=members, keeps=x.keeps if by == 0 else ())
    outputs = [(f"{name}_{n}", c + n * step) for n in range(times) for name, c in found.outputs]
    return found._replace(classes=classes, outputs=tuple(outputs))


def _shifted(text: str, by: int) -> str:
    return re.sub(r"%(\d+)", lambda m: f"%{int(m[1]) + by}", text)
