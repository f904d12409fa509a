"""Capture of source text: a snippet of torch code, or a name in a file.

    capture_snippet("nn.RMSNorm(2048)(torch.randn(1, 32, 2048))")

The source runs once with every call routed through a tape: random tensors and torch.tensor become the inputs, modules and
nn.Parameter the weights.  In that run inputs are tensors without values, so that what is made of them costs nothing, but for what a
weight is made of by calls of torch; a source that asks for other values runs once more with them.  Then it runs under torch.export,
where the tape hands out the program's inputs and the recorded modules instead.  A call is known by its place in the source and by how
many calls that place has made.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.util
import inspect
import linecache
import math
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map_only

from emmy.capture.export import Captured, as_forward, capture
from emmy.errors import EmmyError

_RANDOM = {id(getattr(torch, n)) for n in ("randn", "rand", "randint", "randperm", "randn_like", "rand_like", "randint_like", "normal",
                                           "bernoulli", "empty", "empty_like", "tensor", "as_tensor", "from_numpy")}
_LIKE = {id(getattr(torch, n)) for n in ("randn_like", "rand_like", "randint_like", "empty_like")}   # of a tensor, only its shape is asked
_CONVERSIONS = ("to", "half", "bfloat16", "float", "double", "eval", "cuda", "cpu", "requires_grad_", "contiguous")
_EXAMPLES = frozenset({"example_inputs", "get_inputs"})
_CALL, _RESULT = "__emmy_call__", "__emmy_result__"
Key = tuple[int, int]


class _Route(ast.NodeTransformer):
    """Every call `f(x)` becomes `__emmy_call__(site, f, x)`; `names` has the variable that a site's result is assigned to."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.sites = 0
        self.wanted: dict[ast.expr, str] = {}

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if len(node.targets) == 1:
            self.want(node.targets[0], node.value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.want(node.target, node.value)
        return self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.want(node.target, node.value)
        return self.generic_visit(node)

    def want(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for t, v in zip(target.elts, value.elts, strict=False):
                self.want(t, v)
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _CONVERSIONS:
            value = value.func.value
        name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else None
        if name and isinstance(value, ast.Call):
            self.wanted[value] = name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        site, self.sites = self.sites, self.sites + 1
        if node in self.wanted:
            self.names[site] = self.wanted[node]
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("super", "locals", "globals"):
            return node
        routed = ast.Call(ast.Name(_CALL, ast.Load()), [ast.Constant(site), node.func, *node.args], node.keywords)
        return ast.copy_location(routed, node)


class _Tape:
    """Records a run and replays it; see the module's text."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.depth = 0  # of module constructors in progress: what they call belongs to the module
        self.count: Counter[int] = Counter()
        self.given: dict[Key, torch.Tensor] = {}
        self.record(valued=True)
        self.mode = "pass"

    def record(self, valued: bool) -> None:
        """Begin a record.  Unless `valued`, the source is handed inputs without values."""
        self.start("record")
        self.kept: dict[Key, Any] = {}
        self.inputs: dict[Key, torch.Tensor] = {}
        self.owners: dict[Key, nn.Module | nn.Parameter] = {}
        self.shapes = None if valued else FakeTensorMode(allow_non_fake_inputs=True)
        self.values: dict[FakeTensor, torch.Tensor] = {}     # of those handed out
        self.calls: dict[FakeTensor, tuple[int, Any, Any, Any]] = {}     # of torch, by what they gave; and its version

    def value(self, shape: FakeTensor) -> torch.Tensor:
        """The tensor that stands behind one without values, made by the same call of the same values if it was handed out; `_Valueless` if
        it came about otherwise or has been written to since."""
        version, fn, args, kwargs = self.calls.get(shape, (-1, None, (), {}))
        if version != shape._version:
            raise _Valueless
        if shape not in self.values:
            of = getattr(fn, "__self__", None)
            fn = getattr(self.value(of), fn.__name__) if isinstance(of, FakeTensor) else fn
            args, kwargs = tree_map_only(FakeTensor, self.value, (args, kwargs))
            self.values[shape] = fn(*args, **kwargs)
        return self.values[shape]

    def __call__(self, site: int, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.mode == "pass" or self.depth:
            return fn(*args, **kwargs)
        key = (site, self.count[site])
        self.count[site] += 1
        if self.mode == "replay":
            return self.given[key] if key in self.given else self.kept[key] if key in self.kept else fn(*args, **kwargs)
        owner = getattr(fn, "__self__", None)
        is_module = isinstance(fn, type) and issubclass(fn, nn.Module)
        if is_module or isinstance(owner, nn.Module) or fn is nn.Parameter or id(fn) in _RANDOM:    # they keep the values they are given
            args, kwargs = tree_map_only(FakeTensor, _unwritten if id(fn) in _LIKE else self.value, (args, kwargs))
        self.depth += is_module
        try:
            made = fn(*args, **kwargs)
        finally:
            self.depth -= is_module
        if isinstance(made, nn.Module) and (is_module or made is owner):
            self.kept[key] = made.eval()
            if is_module:
                self.owners[key] = made
        elif fn is nn.Parameter:
            self.kept[key] = self.owners[key] = made
            for other in [k for k, t in self.inputs.items() if any(t is a for a in args)]:
                self.kept[other] = self.inputs.pop(other)  # the parameter's initial value is not an input
        elif id(fn) in _RANDOM and isinstance(made, torch.Tensor):
            self.inputs[key] = made = made.detach()
            if self.shapes is not None:
                shape = self.shapes.from_tensor(made, static_shapes=True)
                self.values[shape], self.calls[shape], made = made, (shape._version, fn, args, kwargs), shape
        elif isinstance(made, FakeTensor) and isinstance(fn, types.BuiltinFunctionType) and made not in self.calls:
            self.calls[made] = made._version, fn, args, kwargs
        return made

    def complete(self) -> bool:
        """Whether every module and parameter that was made has its values."""
        return not any(isinstance(x, FakeTensor) for o in self.owners.values()
                       for x in (tree_leaves([vars(m) for m in o.modules()]) if isinstance(o, nn.Module) else [o]))

    def start(self, mode: str) -> None:
        self.mode = mode
        self.count.clear()

    def input_names(self) -> list[str]:
        """The variable's name, made unique; x0, x1, ... where there is none."""
        taken: Counter[str] = Counter()
        names = []
        for k, (site, _) in enumerate(self.inputs):
            name = self.names.get(site, f"x{k}")
            names.append(f"{name}_{taken[name]}" if taken[name] else name)
            taken[name] += 1
        return names

    def weights(self) -> tuple[dict[str, nn.Module | nn.Parameter], Callable[[str], str]]:
        """The outermost owners of weights, by attribute name; and the name of each weight."""
        inside = {id(m) for o in self.owners.values() if isinstance(o, nn.Module) for m in [*o.modules(), *o.parameters()] if m is not o}
        tops = [(k, o) for k, o in self.owners.items() if id(o) not in inside
                and (isinstance(o, nn.Parameter) or any(True for _ in [*o.parameters(), *o.buffers()]))]
        alone = len(tops) == 1 and isinstance(tops[0][1], nn.Module)
        labels: dict[str, nn.Module | nn.Parameter] = {}
        for (site, _), owner in tops:
            label = self.names.get(site, "weight" if isinstance(owner, nn.Parameter) else type(owner).__name__.lower())
            unique, k = label, 0
            while unique in labels:
                k += 1
                unique = f"{label}_{k}"
            labels[unique] = owner
        return {f"owner_{k}": v for k, v in labels.items()}, lambda name: _shorten(name, alone)


class _Valueless(Exception):
    """The value is asked of a tensor that has none."""


def _unwritten(shape: FakeTensor) -> torch.Tensor:
    return torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype, device=shape.device)


def _shorten(name: str, alone: bool) -> str:
    owner, _, rest = name.removeprefix("owner_").partition(".")
    return rest if alone and rest else f"{owner}.{rest}" if rest else owner


class _Replay(nn.Module):
    """The source as a module: forward hands the tape its inputs and runs the source again."""

    def __init__(self, tape: _Tape, run: Callable[[], Any], owners: dict[str, nn.Module | nn.Parameter], what: str) -> None:
        super().__init__()
        self.tape, self.run, self.__name__ = tape, run, what
        for name, owner in owners.items():
            setattr(self, name, owner)
        self.at = {id(p): p_name for p_name, p in owners.items() if isinstance(p, nn.Parameter)}

    def forward(self, *inputs: torch.Tensor) -> Any:
        self.tape.given = dict(zip(self.tape.inputs, inputs, strict=True))
        for key, owner in self.tape.owners.items():  # torch.export swaps a module's parameters for its own
            if id(owner) in self.at:
                self.tape.given[key] = getattr(self, self.at[id(owner)])
        self.tape.start("replay")
        try:
            return self.run()
        finally:
            self.tape.start("pass")


def _parse(source: str, filename: str) -> ast.Module:
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        return ast.parse(source, filename)
    except SyntaxError as problem:
        caret = f"\n    {(problem.text or '').rstrip()}\n    {' ' * max((problem.offset or 1) - 1, 0)}^"
        raise EmmyError(f"{filename}, line {problem.lineno}: {problem.msg}{caret}", "write valid Python") from None


def _compile(tree: ast.Module, filename: str) -> tuple[Any, _Tape]:
    route = _Route()
    routed = ast.fix_missing_locations(route.visit(tree))
    return compile(routed, filename, "exec").replace(co_name="forward"), _Tape(route.names)


def _run(what: str, filename: str, fn: Callable[[], Any]) -> Any:
    """fn(), with what it raises named by its own source line."""
    try:
        with torch.no_grad():
            return fn()
    except EmmyError:
        raise
    except (Exception, SystemExit) as problem:
        trace, line = problem.__traceback__, 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == filename else line
            trace = trace.tb_next
        place = f"\n    {filename}:{line}: {linecache.getline(filename, line).strip()}" if line else ""
        raise EmmyError(f"{what} raised {type(problem).__name__}: {problem}{place}", "make it run in PyTorch first") from problem


def _trace(what: str, filename: str, tape: _Tape, run: Callable[[], Any]) -> Captured:
    """Records `run`, then captures its replay."""
    result = _record(what, filename, tape, run)
    leaves = tree_leaves(result)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        kind = type(result).__name__ if not leaves else ", ".join(type(leaf).__name__ for leaf in leaves)
        raise EmmyError(f"the result of {what} is {kind}, not a tensor", "end with an expression or assignment whose value is a tensor")
    owners, rename = tape.weights()
    captured = capture(_Replay(tape, run, owners, what), list(tape.inputs.values()), tape.input_names(), rename)
    if captured.mutated:
        raise EmmyError(f"{what} writes to its input {captured.mutated[0]}", "use the operator that returns its result: add for add_")
    return captured


def _record(what: str, filename: str, tape: _Tape, run: Callable[[], Any]) -> Any:
    """What `run` returns, recorded: on inputs without values if that serves, and else, also where it fails, on inputs with them."""
    def recorded(valued: bool) -> Any:
        torch.manual_seed(0)
        tape.record(valued)
        return _run(what, filename, run)

    with torch.random.fork_rng(devices=[]):
        try:
            with contextlib.suppress(EmmyError):
                result = recorded(valued=False)
                if tape.complete():
                    return result
            return recorded(valued=True)
        finally:
            tape.start("pass")


def capture_snippet(source: str, filename: str = "<snippet>") -> Captured:
    """The program of a snippet, with torch, nn, F and math in scope; its result is its last expression or assignment.

    EmmyError where the source is not Python, raises, has no tensor for result, or cannot be traced."""
    tree = _parse(source, filename)
    match tree.body[-1] if tree.body else None:
        case ast.Expr(value=value) as last: pass
        case ast.Assign(targets=[*_, value]) | ast.AnnAssign(target=value) as last: pass
        case _: raise EmmyError("the snippet has no result", "end it with an expression, or an assignment, whose value is a tensor")
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], value), last)
    else:
        read = ast.parse(ast.unparse(value), mode="eval").body
        tree.body.append(ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], read), last))
    code, tape = _compile(tree, filename)

    def run() -> Any:
        scope = {"torch": torch, "nn": nn, "F": functional, "math": math, _CALL: tape, "__name__": "__emmy__"}
        exec(code, scope)  # the user's own code, which is what the command compiles
        return scope[_RESULT]

    return _trace("the snippet", filename, tape, run)


def capture_file(spec: str) -> Captured:
    """The program of "FILE.py:NAME".  NAME takes nothing (traced like a snippet), or the file has its example inputs: `example_inputs`
    or `get_inputs`, a tuple of tensors or a function that returns one (`get_init_inputs`: a class's arguments)."""
    path, _, name = spec.rpartition(":")
    if not path or not name:
        raise EmmyError(f"{spec!r} is not FILE.py:NAME", "name a function, module or class of the file, as in model.py:Model")
    scope, tape = _load(path)
    if name not in scope:
        known = [k for k, v in scope.items() if callable(v) and getattr(v, "__module__", None) == scope["__name__"]]
        raise EmmyError(f"{path} defines no {name}", f"name one of {', '.join(known) or 'its functions'}")
    target = scope[name]
    if not callable(target):
        raise EmmyError(f"{name} of {path} is {type(target).__name__}, which cannot be called", "name a function, module or class")
    least, most = _arity(target)
    inputs = _inputs(scope, path) if most else None
    if inputs is None:
        if least:
            raise EmmyError(f"{path} has no example inputs for {name}", "define example_inputs, a tuple or a function returning one")
        return _trace(f"{name} of {path}", path, tape, as_forward(target))
    if isinstance(target, type):
        arguments = scope["get_init_inputs"]() if "get_init_inputs" in scope else ()
        target = _run(f"{name} of {path}", path, lambda: target(*arguments))
    captured = capture(target, inputs)
    if captured.mutated:
        raise EmmyError(f"{name} of {path} writes to its input {captured.mutated[0]}", "return the result instead")
    return captured


def programs(path: str) -> list[str]:
    """The names in a Python file that `capture_file` takes, in its order: the functions, modules and classes of modules that it defines,
    as far as they take nothing or the file has example inputs.  A name that begins with an underscore is the file's own affair."""
    scope, _ = _load(path)
    given = not _EXAMPLES.isdisjoint(scope)

    def is_program(name: str, value: Any) -> bool:
        if name.startswith("_") or name in (*_EXAMPLES, "get_init_inputs"):
            return False
        if isinstance(value, nn.Module):
            return given
        defined = isinstance(value, types.FunctionType) or isinstance(value, type) and issubclass(value, nn.Module)
        return defined and value.__module__ == scope["__name__"] and (given or not _arity(value)[0])

    return [name for name, value in scope.items() if is_program(name, value)]


def _load(path: str) -> tuple[dict[str, Any], _Tape]:
    """What a Python file defines, run with its calls routed through the tape."""
    if not os.path.isfile(path):
        raise EmmyError(f"there is no file {path}", "give the path of a Python file")
    with open(path, encoding="utf-8") as file:
        code, tape = _compile(_parse(file.read(), path), path)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(os.path.basename(path)[:-3], None, origin=path))
    scope = vars(module)
    scope.update({_CALL: tape, "__file__": path})
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        _run(path, path, lambda: exec(code, scope))  # the user's own code
    finally:
        sys.path.pop(0)
    return scope, tape


def _arity(target: Callable[..., Any]) -> tuple[int, float]:
    """The least and the most arguments of a call; a class or module takes some, and so may a function written in C++."""
    try:
        parameters = [] if isinstance(target, nn.Module | type) else [*inspect.signature(target).parameters.values()]
    except ValueError:
        parameters = []
    if not parameters and not isinstance(target, types.FunctionType):
        return 1, math.inf
    taken = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    return sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in taken), len(taken)


def _inputs(scope: dict[str, Any], path: str) -> Sequence[Any] | None:
    given = scope.get("example_inputs", scope.get("get_inputs"))
    if given is None:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = _run(f"the example inputs of {path}", path, given) if callable(given) else given
    return (made,) if isinstance(made, torch.Tensor) else tuple(made)
