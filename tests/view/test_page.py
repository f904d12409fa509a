"""The page in Chromium: it opens by itself, draws what Python draws, finds, opens, and keeps up at five thousand members."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emmy.egraph.problem import mirrored
from emmy.view.arrange import arrange, extracted
from emmy.view.html import page
from emmy.view.picture import Picture
from emmy.view.svg import all_rows
from tests.view.browser import CHROMIUM, Page
from tests.view.pictures import BLOCK, CHAIN, drawn, program, repeated, with_rules

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt install chromium)")
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
PAN = """new Promise(done => {
  const took = [];
  const step = () => {
    const start = performance.now();
    look.x += 8 / look.scale; look.y += 5 / look.scale;
    draw();
    pen.getImageData(0, 0, 1, 1);
    took.push(performance.now() - start);
    took.length < 30 ? requestAnimationFrame(step) : done(took.sort((a, b) => a - b)[15]);
  };
  requestAnimationFrame(step);
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def show(browser: Page, tmp_path: Path) -> Any:
    def opened(picture: Picture, fragment: str = "") -> Page:
        path = tmp_path / "graph.html"
        path.write_text(page(picture))
        browser.open(path, fragment)
        browser.ready = browser.run(DRAWN)
        assert browser.requests == [path.as_uri()], "it asks for nothing but itself"
        assert browser.complaints == []
        return browser

    return opened


def colours(tab: Page) -> int:
    """How many colours the canvas has."""
    return tab.run("new Set(new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size")


def at(tab: Page, c: int, row: int | None = None) -> tuple[float, float]:
    """Where a class's head, or one of its rows, is on the screen."""
    y = "M.head / 2" if row is None else f"M.head + M.row * {row + 0.5}"
    x, y = tab.run(f"""(() => {{ const c = cards.get(rankOf.get({c}));
        return [(c.x + 40 - look.x) * look.scale, (c.y + {y} - look.y) * look.scale]; }})()""")
    return x, y


def test_it_opens_on_the_extracted_program(show: Any) -> None:
    found = drawn(BLOCK)
    tab = show(found)
    assert tab.run("[...cards.keys()].map(i => classes[i].key)") == list(extracted(found))
    assert tab.run("document.title") == BLOCK and f"{len(found.classes)} classes" in tab.run("$('stats').textContent")
    assert colours(tab) > 20, "cards, text and lines are drawn"
    assert tab.run("[...document.querySelectorAll('#kernels .name')].map(e => e.textContent)") == [k.name for k in found.kernels]


@pytest.mark.parametrize("whole", [False, True])
def test_the_page_lays_out_as_the_picture_does(show: Any, whole: bool) -> None:
    found = drawn(BLOCK)
    cards, lines = arrange(found, all_rows(found) if whole else extracted(found))
    tab = show(found, "#all=1" if whole else "")
    assert tab.run("[...cards.values()].map(c => [classes[c.i].key, c.x, c.y, c.h])") \
        == [[c, pytest.approx(card.x), card.y, card.height] for c, card in cards.items()]
    there = tab.run("edges.map(e => [classes[e.i].key, e.row, classes[e.k].key, e.memory, e.side, e.x1, e.y1, e.x2, e.y2])")
    assert there == [[*line[:5], *map(pytest.approx, line[5:9])] for line in lines]
    assert tab.run("edges.map(e => e.by)") == [[pytest.approx(lane) for lane in line.by] for line in lines]
    assert any(line.by for line in lines)


def test_a_search_finds_members_by_operator_class_and_tensor(show: Any) -> None:
    found = drawn(BLOCK)
    tab = show(found)
    result = found.outputs[0][1]
    fits = {"rsqrt": lambda c, m: "rsqrt" in m.text, "reduce.add r0": lambda c, m: "reduce.add" in m.text and "r0" in m.text,
            f"%{result}": lambda c, m: c == result, "rmsnorm.weight": lambda c, m: "rmsnorm.weight" in m.text}
    for query, fit in fits.items():
        wanted = [[c, k] for c, x in found.classes.items() for k, m in enumerate(x.members) if fit(c, m)]
        tab.run(f"$('query').value = {json.dumps(query)}; $('query').dispatchEvent(new Event('input'))")
        assert tab.run("matches.map(([i, k]) => [classes[i].key, k])") == wanted and wanted
        assert f"{len(wanted)} member" in tab.run("$('found').textContent")
        assert tab.run("$('matches').children.length") == min(len(wanted), 200)
    tab.run("$('query').value = 'no such thing'; $('query').dispatchEvent(new Event('input'))")
    assert tab.run("$('found').textContent") == "no member matches"


def test_what_a_search_finds_out_of_sight_is_opened(show: Any) -> None:
    found = drawn(BLOCK)
    hidden = next(c for c, x in found.classes.items() if c not in extracted(found))
    tab = show(found, f"#q=%25{hidden}")
    assert tab.run("$('found').textContent").endswith("1 of them not shown yet")
    tab.run("document.querySelector('#matches button').click()")
    assert tab.run(f"cards.has(rankOf.get({hidden})) && classes[state.picked].key === {hidden}")
    assert f"class={hidden}" in tab.run("location.hash")


def test_a_rule_marks_the_members_that_it_made(show: Any) -> None:
    outlined = program(CHAIN).choice.outlined
    made = {(c, t): ("commute",) for c, ts in outlined.terms.items() for t in ts if mirrored(t, ts)}
    found = with_rules(CHAIN, made)
    tab = show(found, "#rule=commute")
    assert tab.run("matches.length") == len(made) and tab.run("matches.every(([i, k]) => classes[i].members[k].rules[0] === 'commute')")
    assert tab.run("$('no-rules').hidden")
    pressed = "[...document.querySelectorAll('#rules button[aria-pressed=true] .name')].map(e => e.textContent)"
    assert tab.run(pressed) == ["commute"]
    tab.run("$('rule-list').open = true; document.querySelector('#rules button[aria-pressed=true]').click()")
    assert tab.run(pressed) == [] and tab.run("matches.length") == 0
    tab.run("state.query = 'mul'; search({ rule: 'commute' })")
    assert 0 < tab.run("matches.length") < len(made) + 1


def test_a_kernel_marks_its_body(show: Any) -> None:
    found = drawn(CHAIN)
    tab = show(found)
    tab.run("document.querySelectorAll('#kernels button')[1].click()")
    assert tab.run("matches.map(([i]) => classes[i].key)") == [c for c, x in found.classes.items() for m in x.members if 1 in m.kernels]


def test_a_click_shows_a_class_and_a_second_one_opens_it(show: Any) -> None:
    found = drawn(CHAIN)
    ((_, result),) = found.outputs
    tab = show(found)
    x = found.classes[result]
    tab.click(*at(tab, result))
    said = tab.run("$('class').innerText")
    assert all(m.text in said.replace("\n", "") for m in x.members) and all(f"{axis} < {found.extents[axis]}" in said for axis in x.axes)
    assert "written by " + found.kernels[1].name in said and f"%{result} = {x.members[x.form].text}" in said
    tab.click(*at(tab, result), times=2)
    tab.run(DRAWN)
    below = {k for m in x.members for k in m.kids}
    assert below <= set(tab.run("[...cards.keys()].map(i => classes[i].key)")) and not below <= set(extracted(found))
    assert tab.run(f"cards.get(rankOf.get({result})).rows.length") == len(x.members)
    tab.click(*at(tab, result), times=2)
    assert tab.run("[...cards.keys()].map(i => classes[i].key)") == list(extracted(found)), "and closes again"


def test_dragging_moves_and_the_wheel_zooms_where_it_points(show: Any) -> None:
    tab = show(drawn(CHAIN))
    before = tab.run("[look.x * look.scale, look.y * look.scale]")
    tab.mouse("Pressed", 700, 600, button="left", clickCount=1)
    tab.mouse("Moved", 640, 570, button="left", buttons=1)
    tab.mouse("Released", 640, 570, button="left")
    assert tab.run("[look.x * look.scale, look.y * look.scale]") == pytest.approx([before[0] + 60, before[1] + 30])
    point = "[look.x + 500 / look.scale, look.y + 300 / look.scale, look.scale]"
    x, y, scale = tab.run(point)
    tab.mouse("Wheel", 500, 300, deltaX=0, deltaY=-200)
    tab.run(DRAWN)
    after = tab.run(point)
    assert after[2] > scale and after[:2] == pytest.approx([x, y])


def test_five_thousand_members_are_interactive_within_two_seconds(show: Any, tmp_path: Path) -> None:
    found = drawn(BLOCK)
    times = 1 + 5000 // sum(len(x.members) for x in found.classes.values())
    many = repeated(found, times)
    assert sum(len(x.members) for x in many.classes.values()) >= 5000
    tab = show(many, "#all=1")
    assert tab.ready < 2000, "milliseconds from the start of loading until it is drawn"
    assert tab.run("cards.size") == len(many.classes) and colours(tab) > 5
    for scale in (0.05, 0.2, 0.5, 1):
        tab.run(f"look.scale = {scale}; draw()")
        assert tab.run(PAN) < 100, scale
    found_in = tab.run("(() => { const start = performance.now(); search({ query: 'mul' }); return performance.now() - start; })()")
    assert found_in < 500 and tab.run("matches.length") == sum("mul" in m.text for x in many.classes.values() for m in x.members)
