from __future__ import annotations

import pytest
import torch

from emmy.errors import EmmyError
from emmy.ir import tile_ir as tile
from emmy.pipeline import Program, compile
from emmy.tune import pins

X, Y = torch.empty(64, 128), torch.empty(40, 96)


def rows(program: Program) -> dict[str, str]:
    return {t.name: str(k.schedule.row) for k in program.tile.kernels for t in k.outputs if k.schedule}


def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp(), y.softmax(-1)


def test_fields_everywhere_and_of_sites() -> None:
    found = pins.parse("WORK=t64, TILE@map=v2 WORK@fold_12ab=w4,REDUCE@fold_12ab=warp")
    assert found.everywhere == "WORK=t64" and found.sites == {"map": "TILE=v2", "fold_12ab": "WORK=w4,REDUCE=warp"}
    assert found.at(["map", "99"]) == ("TILE=v2", "WORK=t64,TILE=v2")
    assert found.at(["fold_12ab56cd78ef"]) == ("WORK=w4,REDUCE=warp", "WORK=w4,REDUCE=warp"), "what is of a site is for it"
    assert found.at(["cross"]) == ("", "WORK=t64") and pins.parse("").at(["map"]) == ("", "")


@pytest.mark.parametrize("text", ["WORK", "WORK@=t64", "NOPE=3", "WORK=t64,WORK=t32", "TILE@map=v2,TILE@map=v4", "WORK@map="])
def test_what_is_no_pin_is_named(text: str) -> None:
    with pytest.raises(EmmyError, match=r"knobs: .*\n.*WORK=t256"):
        pins.parse(text)


def test_a_site_is_a_name_or_four_letters_of_it() -> None:
    name = "fold_234b76bc70b0"
    assert pins.stands_for(name, name) and pins.stands_for("fold_234b", name) and pins.stands_for("234b", "234b76bc70b0")
    assert not pins.stands_for("234", "234b76bc70b0") and not pins.stands_for("soft", "softmax"), "a tensor is named in full"


def test_one_kernel_is_pinned_by_form_tensor_name_or_identity() -> None:
    free = compile(both, X, Y)
    (exp,) = (k for k in free.tile.kernels if k.outputs[0].name == "exp")
    identity, form = free.choice.scheduled[exp.name].identity, exp.schedule.form
    for site in ("exp", f"{form}_{identity}", f"{form}_{identity[:4]}", identity, identity[:5], form):
        found = rows(compile(both, X, Y, pins=f"WORK@{site}=t512"))
        assert found["exp"].startswith("WORK=t512") and "t512" not in found["softmax"], site


def test_sites_and_everywhere_go_together() -> None:
    found = rows(compile(both, X, Y, pins="TILE=v2,WORK@softmax=w8"))
    assert "TILE=v2" in found["exp"] and found["softmax"].startswith("WORK=w8,TILE=v2")
    found = rows(compile(lambda x, y: (*both(x, y), x.sum(-1)), X, Y, pins="REDUCE=coop,WORK@softmax=w8"))
    assert "REDUCE=warp" in found.pop("softmax") and any("REDUCE=coop" in row for row in found.values()), "a site's fields come first"


def test_an_illegal_pin_of_a_site_names_the_premise() -> None:
    with pytest.raises(EmmyError, match=r"no legal row of kernel \w+ has 'WORK=t2048'\n.*FitsThreads"):
        _ = compile(both, X, Y, pins="WORK@exp=t2048").tile
    with pytest.raises(EmmyError, match="has 'TILE=v8,REDUCE=cross'"):
        _ = compile(both, X, Y, pins="REDUCE@softmax=cross,TILE@softmax=v8").tile


def test_a_site_where_no_kernel_is() -> None:
    with pytest.raises(EmmyError, match=r"no kernel is at 'nowhere'\n.*map_"):
        _ = compile(both, X, Y, pins="WORK@nowhere=t64").tile


def test_merged_rows_keep_the_order_of_fields() -> None:
    assert pins.merged("STAGE=reg,", "WORK=t64", "TILE=v2,WORK=t32") == "WORK=t32,TILE=v2,STAGE=reg"
    assert tile.parse_row(pins.merged()) is tile.Row()
