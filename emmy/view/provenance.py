"""Which rules made which member of a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from emmy.egraph.terms import Term

if TYPE_CHECKING:
    from emmy.pipeline import Program

MadeBy = Mapping[tuple[int, Term], tuple[str, ...]]
"""The names of the rules that made a member of a class, by (class, member); a member that no known rule made is left out."""


def made_by(program: Program) -> MadeBy:
    """The rules that made each member, as far as the saturated graph of `program` records them: it keeps no record of its matches."""
    return {}
