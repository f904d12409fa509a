"""The page of an e-graph as text: it is whole, safe, and has everything that its script draws."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from emmy.view.html import embedded, page
from tests.view.pictures import BLOCK, CHAIN, drawn, program, with_rules

EVIL = "x = torch.randn(4); x * len('</script><script>alert(1)</script><!--')"


class Parts(HTMLParser):
    """The text of each element by its tag, and every attribute that names a resource."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("type")
        self.open.append(f"{tag}:{kind}" if tag == "script" and kind else tag)
        self.resources += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)

    def handle_endtag(self, tag: str) -> None:
        self.open.append("")


def data(text: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found)


def test_the_data_are_the_picture() -> None:
    found, read = drawn(BLOCK), data(page(drawn(BLOCK), {"commute": "x + y = y + x"}))
    classes = {x["key"]: x for x in read["classes"]}
    assert list(classes) == list(found.classes)
    for c, x in found.classes.items():
        assert [(m["text"], tuple(m["kids"]), tuple(m["kernels"]), m["tensor"]) for m in classes[c]["members"]] \
            == [(m.text, m.kids, m.kernels, m.tensor) for m in x.members]
        assert (classes[c]["element"], tuple(classes[c]["axes"]), classes[c]["form"]) == (x.element, x.axes, x.form)
        assert tuple(classes[c]["keeps"]) == x.keeps
        assert [bool(m["cost"]) for m in classes[c]["members"]] == [m.seconds is not None for m in x.members]
    assert read["members"] == sum(len(x.members) for x in found.classes.values())
    kernels = [(k["name"], tuple(k["roots"]), tuple(k["writes"])) for k in read["kernels"]]
    assert kernels == [(k.name, k.roots, k.writes) for k in found.kernels]
    assert len({k["colour"] for k in read["kernels"]}) == len(found.kernels), "kernels are told apart"
    rules = {rule["name"]: rule for rule in read["rules"]}
    assert rules["commute"]["says"] == "x + y = y + x" and rules["commute"]["matches"] == found.fired["commute"]


def test_a_rule_that_made_members_is_listed_though_it_is_not_counted() -> None:
    c, terms = next(iter(program(CHAIN).choice.outlined.terms.items()))
    read = data(page(with_rules(CHAIN, {(c, terms[0]): ("of-my-own",)})))
    assert {"name": "of-my-own", "matches": 0, "says": ""} in read["rules"]


def test_the_page_needs_nothing_but_itself() -> None:
    text = page(drawn(CHAIN))
    assert Parts(text).resources == []
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|\bimport\s*\(|@import|url\(", text)


def test_a_program_cannot_end_the_script_that_it_lies_in() -> None:
    text = page(drawn(EVIL))
    assert data(text)["title"] == EVIL
    parts = Parts(text)
    assert parts.text["title"] == [EVIL] and len(parts.text["script"]) == 1 and "alert" not in parts.text["script"][0]
    assert text.count("</script") == 2
    assert "<" not in embedded({"</script>": ["<!--", "]]>"]}) and json.loads(embedded({"a": "<b>"})) == {"a": "<b>"}
