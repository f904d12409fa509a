"""The grammar of schedule rows, as docs/schedules.md has it: what it generates reads back, and every legal row is of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emmy.egraph.rows import FORMS
from emmy.egraph.schedule import PREMISES, schedules
from emmy.ir.node import IRError
from emmy.ir.tile_ir import ROW_FIELDS, Row, parse_row
from emmy.pipeline import compile_snippet

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()


def grammar() -> dict[str, str]:
    """Each name of the page's grammar as a regular expression."""
    (text,) = re.findall(r"^```ebnf\n(.*?)^```$", PAGE, re.M | re.S)
    rules = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*;", re.sub(r"\(\*.*?\*\)", "", text), re.M | re.S))

    def spelled(name: str) -> str:
        if name == "digit":
            return "[0-9]"
        out = ""
        for token in re.findall(r'"[^"]*"|\w+|[|\[\]{}]', rules[name]):
            brackets = {"|": "|", "[": "(?:", "]": ")?", "{": "(?:", "}": ")*"}
            out += re.escape(token[1:-1]) if token[0] == '"' else brackets[token] if token in brackets else spelled(token)
        return f"(?:{out})"

    return {name: spelled(name) for name in rules}


GRAMMAR = grammar()
ORDER = re.findall(r'"([A-Z]+)="', PAGE.partition("```ebnf")[2].partition("```")[0])
ROWS = st.fixed_dictionaries({}, optional={f: st.from_regex(GRAMMAR[f], fullmatch=True) for f in ROW_FIELDS})


def test_the_page_has_every_field_form_and_premise() -> None:
    assert set(ROW_FIELDS) == set(ORDER) <= GRAMMAR.keys()
    assert all(re.search(rf"^\| {form} \|", PAGE, re.M) for form in FORMS.values())
    assert all(f"| `{premise}` |" in PAGE for premise in PREMISES)


@given(ROWS)
def test_what_is_printed_reads_back(fields: dict[str, str]) -> None:
    row = parse_row(",".join(f"{name}={value}" for name, value in fields.items()))
    assert parse_row(str(row)) is row and [part.partition("=")[0] for part in str(row).split(",") if part] == [
        f for f in ORDER if f in fields]
    assert not fields or re.fullmatch(GRAMMAR["row"], str(row))


@given(ROWS, st.randoms())
def test_order_and_blanks_do_not_matter(fields: dict[str, str], random: object) -> None:
    parts = [f"{name}={value}" for name, value in fields.items()]
    shuffled = list(parts)
    random.shuffle(shuffled)    # type: ignore[attr-defined]
    assert parse_row("  " + " , ".join(shuffled)) is parse_row(",".join(parts))


@given(ROWS.filter(bool), st.sampled_from(["{0},{0}", "{0},NOPE=1", "{0},WORK", "{0},TILE="]))
def test_what_is_no_row_is_refused(fields: dict[str, str], broken: str) -> None:
    with pytest.raises(IRError, match="the fields are WORK=…"):
        parse_row(broken.format(",".join(f"{name}={value}" for name, value in fields.items())))


SNIPPETS = ("torch.randn(8, 64).exp()", "torch.randn(64, 8, 64).transpose(0, 2) + 1", "torch.randn(16, 256).softmax(-1)",
            "torch.randn(64, 128).sum(0)", "torch.randn(64, 64) @ torch.randn(64, 64)",
            "torch.randn(64, 64, dtype=torch.float16) @ torch.randn(64, 64, dtype=torch.float16)",
            "q = torch.randn(2, 64, 64, dtype=torch.bfloat16); F.softmax(q @ q.transpose(-2, -1), -1) @ q",
            "torch.randn(4, 300).cumsum(-1)")


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_every_legal_row_is_of_the_grammar(snippet: str) -> None:
    for scheduled in compile_snippet(snippet).choice.scheduled.values():
        for target in ("sm_80", "sm_90a"):
            rows = [s.row for s in schedules(scheduled.kernel.replace(schedule=None), target)]
            assert [str(r) for r in rows if not re.fullmatch(GRAMMAR["row"], str(r))] == []
            assert all(parse_row(str(r)) is r and isinstance(r, Row) for r in rows)


def test_the_rows_that_the_page_shows_are_rows() -> None:
    shown = re.findall(r"`(WORK=[^`@…]+)`", PAGE)
    assert len(shown) > 8 and [row for row in shown if not re.fullmatch(GRAMMAR["row"], row)] == []
