"""A picture as one page that needs nothing but itself: search, rules, kernels, and a canvas that stays quick at thousands of members."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from emmy.view import style
from emmy.view.picture import EClass, Member, Picture

SCRIPTS = ("place.js", "shown.js", "draw.js", "panel.js", "page.js")


def page(picture: Picture, says: Mapping[str, str] | None = None) -> str:
    """The page; `says` is what each rule means, by its name."""
    folder = files("emmy.view") / "page"
    parts = {"title": html.escape(picture.title), "style": (folder / "page.css").read_text(),
             "script": "\n".join((folder / name).read_text() for name in SCRIPTS), "data": embedded(payload(picture, says or {}))}
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], (folder / "page.html").read_text())


def embedded(values: Any) -> str:
    """JSON that is inert inside a script element: no `<` is left that could end it."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def payload(picture: Picture, says: Mapping[str, str]) -> dict[str, Any]:
    """What the page's script draws, as JSON values."""
    made = {rule for x in picture.classes.values() for m in x.members for rule in m.rules}
    rules = [*picture.fired, *sorted(made - picture.fired.keys())]
    kernels = [{**k._asdict(), "time": style.duration(k.seconds), "colour": style.colour(n)} for n, k in enumerate(picture.kernels)]
    return {"title": picture.title, "settings": picture.settings, "metrics": style.METRICS, "extents": dict(picture.extents),
            "outputs": picture.outputs, "kernels": kernels, "time": style.duration(math.fsum(k.seconds for k in picture.kernels)),
            "rules": [{"name": rule, "matches": picture.fired.get(rule, 0), "says": says.get(rule, "")} for rule in rules],
            "members": sum(len(x.members) for x in picture.classes.values()),
            "classes": [_class(c, x) for c, x in picture.classes.items()]}


def _class(key: int, x: EClass) -> dict[str, Any]:
    return {"key": key, "element": x.element, "axes": x.axes, "form": x.form, "keeps": x.keeps, "members": [_member(m) for m in x.members]}


def _member(m: Member) -> dict[str, Any]:
    return {"text": m.text, "kids": m.kids, "cost": style.cost(m), "kernels": m.kernels, "rules": m.rules, "tensor": m.tensor}
