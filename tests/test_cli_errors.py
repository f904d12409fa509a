"""What bad input, internal failures and closed pipes end in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.said import Said, assert_bad, no_gpu, shell

__all__ = ["no_gpu"]    # a fixture of every test here
ADD = ("-c", "torch.randn(4, 4) + 1")
BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "syntax": (("compile", "-c", "x = torch.randn(4"), ("line 1", "never closed")),
    "raises": (("compile", "-c", "nonsense(3)"), ("NameError", "nonsense")),
    "no tensor": (("compile", "-c", "3"), ("int, not a tensor",)),
    "empty": (("compile", "-c", ""), ("no result",)),
    "operator": (("compile", "-c", "torch.erfinv(torch.rand(4))"), ("aten.erfinv.default", "<snippet>:1: torch.erfinv")),
    "dtype": (("compile", "-c", "torch.randn(4, dtype=torch.complex64)"), ("torch.complex64",)),
    "self-decomposing operator": (("compile", "-c", "torch.linalg.svd(torch.randn(4, 4))[1]"), ("aten.linalg_svd.default", "<snippet>")),
    "shape of values": (("compile", "-c", "torch.randn(5).nonzero()"), ("aten.nonzero.default", "dynamic shape", "torch.where")),
    "branch on values": (("compile", "-c", "x = torch.randn(3); x if x.sum() > 0 else -x"), ("trace the snippet", "a tensor's values")),
    "number of a tensor": (("compile", "-c", "x = torch.randn(3); x * x.sum().item()"),
                           ("a number out of a tensor", "<snippet>:1", "keep it a tensor")),
    "exits": (("compile", "-c", "exit(3)"), ("SystemExit: 3", "<snippet>:1")),
    "target": (("compile", *ADD, "--target", "sm_70"), ("'sm_70'", "sm_90a")),
    "stage": (("compile", *ADD, "--ir", "ptx"), ("'ptx'", "torch, tensor, loop, tile, kernel, cuda")),
    "math": (("canon", *ADD, "--math", "loose"), ("'loose'", "exact, fast")),
    "device": (("run", *ADD, "--device", "tpu"), ("'tpu'", "numpy, simulate, cuda")),
    "index out of bounds": (("run", "-c", "F.embedding(torch.tensor([9]), torch.randn(4, 3))", "--device", "numpy"),
                            ("IndexError", "<snippet>:1: F.embedding", "PyTorch first")),
    "cuda": (("run", *ADD, "--device", "cuda"), ("no GPU", "numpy")),
    "knob": (("compile", *ADD, "--knobs", "COLOUR=red", "--ir", "torch"), ("COLOUR=red", "WORK=")),
    "knob without value": (("run", *ADD, "--knobs", "WORK"), ("'WORK'",)),
    "illegal pin": (("compile", *ADD, "--knobs", "WORK=t4096"), ("WORK=t4096", "FitsThreads")),
    "pin of no row": (("compile", *ADD, "--knobs", "TILE=v3"), ("TILE=v3", "Divides")),
    "no file": (("compile", "absent.py:f"), ("absent.py",)),
    "no name": (("compile", "absent"), ("'absent' is not FILE.py:NAME",)),
    "nothing": (("compile",), ("no program is given", "-c SNIPPET")),
    "both": (("run", "f.py:f", *ADD), ("both a snippet and f.py:f",)),
    "no rule file": (("explain", *ADD, "--rules", "absent.egg"), ("absent.egg",)),
    "no bundle": (("run", "absent.emmy"), ("no bundle absent.emmy", "emmy build")),
    "no folder": (("compile", *ADD, "--ir", "torch", "-o", "absent/x.cu"), ("absent/x.cu",)),
    "no folder for a bundle": (("build", *ADD, "-o", "absent/x.emmy"), ("no folder absent",)),
    "phase": (("rules", "list", "--phase", "lunch"), ("'lunch'", "algebra")),
    "no snippets": (("canon",), ("-c SNIPPET",)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    words, named = BAD[case]
    assert_bad(Said(*words), *named)


def test_a_knob_of_the_environment_is_checked_too() -> None:
    assert_bad(Said("run", *ADD, env={"EMMY_KNOBS": "SHAPE=round"}), "SHAPE=round", "EMMY_KNOBS")


@pytest.mark.parametrize("text, named", [("(rewrite (Unary", "broken.egg"),
                                         ('(rewrite (Nothing x) x :ruleset algebra-real :name "n")', "Nothing")])
def test_a_broken_rule_file(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "broken.egg").write_text(text)
    assert_bad(Said("compile", *ADD, "--rules", tmp_path / "broken.egg"), named, f"mend {tmp_path / 'broken.egg'}")


def test_rules_of_one_name_and_rulesets_that_nothing_declares(tmp_path: Path) -> None:
    def bad(text: str, *named: str) -> None:
        (tmp_path / "mine.egg").write_text(text)
        assert_bad(Said("compile", *ADD, "--rules", tmp_path / "mine.egg"), "mine.egg:1: rule", *named)

    twice = '(birewrite (Unary "exp" x) x :ruleset algebra-real :name "{}")'
    bad(twice.format("factor-out"), "loop/algebra.egg:4", "a name of its own")
    bad('(rewrite (Unary "exp" x) x :ruleset algebra-exact :name "a")', "(ruleset algebra-exact)", "algebra-real")


def test_a_rule_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.egg").write_text('\ufeff(rewrite (Unary "neg" (Unary "neg" x)) x :ruleset normalize-exact :name "twice")', "utf-8")
    Said("compile", *ADD, "--rules", tmp_path / "mine.egg").well()


@pytest.mark.parametrize("declared, end, named", [("", ':name "a"', "no ruleset"),
                                                    ("(ruleset mine)", ':name "a" :ruleset mine', "the ruleset mine")])
def test_a_rule_that_would_never_run(declared: str, end: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "idle.egg").write_text(f'{declared}(rewrite (Unary "log" (Unary "exp" x)) x {end})')
    assert_bad(Said("compile", *ADD, "--rules", tmp_path / "idle.egg"), "idle.egg", named, "algebra-real")


def test_a_name_that_the_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def plus(x):\n    return x + 1\n")
    assert_bad(Said("compile", f"{tmp_path / 'model.py'}:minus"), "defines no minus", "plus")


@pytest.mark.parametrize("words", [("compile", *ADD, "--bogus"), ("frobnicate",), ("build", *ADD), ("explain", *ADD, "--rows", "many")])
def test_usage_errors(words: tuple[str, ...]) -> None:
    said = Said(*words)
    assert (said.code, said.out) == (2, "") and any(word in said.err for word in ("--bogus", "frobnicate", "-o", "--rows"))


def test_an_internal_failure_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the sky\nfell")

    monkeypatch.setattr("emmy.cli.options.captured", fail)
    said = Said("compile", *ADD)
    assert said.code == 70 and said.err == ("internal failure: RuntimeError: the sky fell\n  remedy: please report it with the output of "
                                            "`emmy --debug …`, the command and its input\n")


def test_debug_shows_the_traceback() -> None:
    done = shell(sys.executable, "-m", "emmy", "--debug", "compile", *ADD, "--target", "sm_1")
    assert done.returncode == 2 and "Traceback" in done.stderr and "unknown target 'sm_1'" in done.stderr


def test_a_closed_pipe_is_no_failure() -> None:
    done = shell("bash", "-c", f"{sys.executable} -m emmy rules list | head -1")
    assert done.stdout.startswith("rule") and "internal" not in done.stderr and "Traceback" not in done.stderr
