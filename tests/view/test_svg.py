"""The static picture: well formed, what it shows, and what it says it leaves out."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from emmy.view import style, svg
from emmy.view.arrange import arrange, extracted
from tests.view.pictures import BLOCK, CHAIN, drawn

NAMES = {"": "http://www.w3.org/2000/svg"}


def cards(text: str) -> dict[int, ElementTree.Element]:
    root = ElementTree.fromstring(text)
    return {int(g.attrib["id"].removeprefix("class-")): g for g in root.iterfind(".//g[@id]", NAMES)}


def words(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iterfind(".//text", NAMES)]


def test_it_draws_the_extracted_program_and_what_else_its_classes_hold() -> None:
    found = drawn(CHAIN)
    shown = cards(svg.svg(found))
    assert list(shown) == list(extracted(found))
    for c, card in shown.items():
        said, x = words(card), found.classes[c]
        priced = [m for m in x.members if m.seconds is not None]
        assert all(m.text in said and style.cost(m) in said for m in priced)
        more = len(x.members) - len(priced)
        assert (f"+ {more} more member{'s' * (more > 1)}" in said) is (more > 0)
        colours = {rect.attrib["fill"] for rect in card.iterfind("rect[@width='3']", NAMES)}
        assert colours == {style.colour(k) for m in x.members for k in m.kernels}
    for n, kernel in enumerate(found.kernels):
        for tensor, c in zip(kernel.writes, kernel.roots, strict=True):
            head = shown[c].find("path", NAMES)
            assert head is not None and head.attrib["fill"] == style.colour(n)
            assert any(tensor in word for word in words(shown[c]))


def test_it_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found, members = drawn(BLOCK), sum(len(x.members) for x in drawn(BLOCK).classes.values())
    monkeypatch.setattr(svg, "CLASSES", 5)
    monkeypatch.setattr(svg, "ROWS", 1)
    text = svg.svg(found)
    drawn_rows = sum(len(rows) for rows in svg.readable_rows(found).values())
    assert len(cards(text)) == 5
    assert any(f"{len(found.classes) - 5} classes and {members - drawn_rows} members are left out" in word and "--all" in word
               for word in words(ElementTree.fromstring(text)))


def test_everything_is_every_class_and_every_member() -> None:
    found = drawn(BLOCK)
    text = svg.svg(found, everything=True)
    shown = cards(text)
    assert shown.keys() == found.classes.keys()
    assert all(len(words(card)) == 2 + 2 * len(found.classes[c].members) for c, card in shown.items())
    assert "every class and every member is drawn" in words(ElementTree.fromstring(text))


def test_titles_are_text() -> None:
    text = svg.svg(drawn(CHAIN)._replace(title="x < y & z > 'w'"))
    assert "x < y & z > 'w'" in words(ElementTree.fromstring(text))


def test_lines_end_on_the_cards_that_they_join() -> None:
    found = drawn(BLOCK)
    shown, lines = arrange(found, extracted(found))
    assert {(line.source, line.target) for line in lines if line.memory}, "a kernel reads what another one wrote"
    for line in lines:
        source, target = shown[line.source], shown[line.target]
        assert source.x <= line.x1 <= source.x + style.WIDTH and source.y < line.y1 <= source.y + source.height
        assert target.x < line.x2 < target.x + style.WIDTH and line.y2 == target.y >= source.y + source.height
