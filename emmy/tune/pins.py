"""Pinned fields of schedule rows: WORK=t256 wherever a kernel has such a row, TILE@SITE=v4 in the kernels at a site, which must.

A site is a kernel's identity or name, or the first four letters of either or more; the tensor that it writes; or a form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.ir.node import IRError

LEAST = 4       # letters of an identity or name that stand for it


class Pins(NamedTuple):
    """Fields as the text of a row: those pinned `everywhere`, and those of each site."""

    everywhere: str
    sites: Mapping[str, str]

    def at(self, names: Iterable[str]) -> tuple[str, str]:
        """The fields that a kernel of these names must have, and those that it is to have if it can, the former among them."""
        mine = [row for site, row in self.sites.items() if any(stands_for(site, name) for name in names)]
        must = merged(*mine)
        return must, merged(self.everywhere, must)


def parse(text: str) -> Pins:
    """The pins spelled `text`; EmmyError names what is none."""
    fields: dict[str, list[str]] = {"": []}
    try:
        for part in filter(None, re.split(r"[,\s]+", text.strip())):
            name, eq, value = part.partition("=")
            field, at, site = name.partition("@")
            if at and not site:
                raise IRError(f"{part!r} names no site after @")
            fields.setdefault(site, []).append(f"{field}{eq}{value}")
        rows = {site: str(tile.parse_row(",".join(parts))) for site, parts in fields.items()}
    except IRError as error:
        raise EmmyError(f"knobs: {error}", "give them in --knobs or EMMY_KNOBS as WORK=t256,TILE=v4, or for one kernel as "
                        "TILE@KERNEL=v4") from error
    return Pins(rows.pop(""), rows)


def merged(*rows: str) -> str:
    """The fields of all rows; of one that several have, the last."""
    found: dict[str, str] = {}
    for row in rows:
        found |= dict(part.split("=", 1) for part in filter(None, row.split(",")))
    return ",".join(f"{name}={found[name]}" for name in tile.ROW_FIELDS if name in found)


def stands_for(site: str, name: str) -> bool:
    """Whether a site is a name, or enough of its beginning."""
    return site == name or len(site) >= LEAST and bool(re.search(r"[0-9a-f]{12}$", name)) and name.startswith(site)
