"""Capture: torch.export's graph of a function or module, as Torch IR.

Composite operators (linear, softmax, rms_norm, ...) stay whole.  Operators that write to their operands, and composite ones
that have no lowering, are decomposed by torch first; so the graph is always functional.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import logging
import os
import re
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils._pytree import TreeSpec, tree_structure, tree_unflatten

from emmy.errors import EmmyError
from emmy.ir import torch_ir
from emmy.ir.dtype import DType
from emmy.ir.torch_ir import Arg, Call, Input, Program, Type, Value, literal
from emmy.lower.torch_to_tensor import covered
from emmy.lower.torch_to_tensor.build import FROM_TORCH

_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking")
_OWN = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, os.path.dirname(torch.__file__) + os.sep)


@dataclasses.dataclass
class Captured:
    """A program and the tensors it was captured with, by the names that its text gives them.

    `inputs` are in call order (also those that the program does not read).  The first `len(mutated)` outputs of the program are
    the new values of the inputs named there; the rest are what the function returns, which `tree` says how to pack: a structure of torch's
    pytree, some of whose leaves may be no tensors but `fixed`, by their number.  `strides`: eager's strides of each output, in elements.
    `allows_tf32`: whether torch was told that products of fp32 may round their factors to tf32.

    The program takes tensors as they lie in memory, row-major.  Where the function's dimensions are in another order, as those of a
    channels_last tensor are, `orders` has them in that of memory by the name of the input, and the program begins by permuting them; so it
    ends where a result has torch's memory format channels_last, in `orders` by its number.

    `steady`: inputs that are weights of the caller's, most often the same tensors as at the call before."""

    program: Program
    inputs: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    constants: dict[str, torch.Tensor]
    mutated: tuple[str, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    tree: TreeSpec = tree_structure(())
    fixed: dict[int, Any] = dataclasses.field(default_factory=dict)
    orders: dict[str | int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    allows_tf32: bool = False
    steady: frozenset[str] = frozenset()

    @property
    def unchanging(self) -> frozenset[str]:
        """What the program reads that is the same at every call, or most often."""
        return self.steady.union(self.weights, self.constants)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything the program reads."""
        return {**self.weights, **self.constants, **self.inputs}

    @property
    def is_flat(self) -> bool:
        """Whether the function returns a tuple of tensors and does nothing besides."""
        return not self.mutated and not self.fixed and self.tree.type is tuple and self.tree.num_leaves == self.tree.num_children

    def packed(self, results: Sequence[Any]) -> Any:
        """The tensors that the function returns as it returns them: alone, or in tuples, lists and dictionaries."""
        left = iter(results)
        leaves = [self.fixed[k] if k in self.fixed else next(left) for k in range(self.tree.num_leaves)]
        return tree_unflatten(leaves, self.tree)


def dtype_of(dtype: torch.dtype, where: str) -> DType:
    """The Emmy dtype; EmmyError naming `where` if it is not supported."""
    if dtype not in FROM_TORCH:
        raise EmmyError(f"{where} has the unsupported dtype {dtype}", f"convert it to one of {', '.join(map(str, FROM_TORCH))}")
    return FROM_TORCH[dtype]


def memory_order(x: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor in the order of memory, outermost first, where they fill it in another order than their own; else ()."""
    order = tuple(sorted(range(x.dim()), key=lambda d: -x.stride(d)))
    return order if not x.is_contiguous() and x.permute(order).is_contiguous() else ()


def has_memory_format(x: torch.Tensor) -> bool:
    """Whether it lies in one of torch's memory formats other than the usual one: its channels, dimension 1, innermost."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])


class _Wrapper(torch.nn.Module):
    """A function as a module, which is what torch.export takes."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = as_forward(fn)

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def as_forward(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under the name that torch.fx looks for when it records source lines."""
    if not isinstance(fn, types.FunctionType):
        return fn
    named = types.FunctionType(fn.__code__.replace(co_name="forward"), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    named.__kwdefaults__ = fn.__kwdefaults__
    return named


def capture(fn: Callable[..., Any], example_inputs: Sequence[Any], names: Sequence[str] | None = None,
            rename: Callable[[str], str] = str) -> Captured:
    """The program that `fn`, a function or module, computes on tensors like `example_inputs`.

    A module is put in eval mode.  Inputs are named after forward's parameters unless `names` are given; `rename` maps a weight's qualified
    name to the name the program loads it by.  EmmyError where torch.export fails, a dtype is unsupported, or a result is no tensor.
    """
    for k, example in enumerate(example_inputs):
        if not isinstance(example, torch.Tensor):
            value = "" if isinstance(example, list | tuple | dict) else f" {example!r}"
            raise EmmyError(f"example input {k} is {type(example).__name__}{value}, not a tensor", "pass tensors; close over the rest")
    if not callable(fn):
        raise EmmyError(f"{fn!r} is {type(fn).__name__}, which cannot be called", "compile a function or module")
    module = fn.eval() if isinstance(fn, torch.nn.Module) else _Wrapper(fn)
    if names is None:
        names = _parameters(fn, len(example_inputs))
    examples = tuple(e.detach() for e in example_inputs)
    try:
        with torch.no_grad(), _quietly():
            exported = _functional(torch.export.export(module, examples, strict=False))
    except EmmyError:
        raise
    except Exception as problem:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise EmmyError(f"torch.export cannot trace {name}: {_first_line(problem)}", _remedy(problem)) from problem
    return _Builder(exported, dict(zip(names, examples, strict=True)), rename).captured()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warnings, logs and dumps of graphs: what fails is told by the error."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _parameters(fn: Callable[..., Any], count: int) -> list[str]:
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except ValueError:  # a function of torch's own, written in C++
        return [f"x{k}" for k in range(count)]
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    star = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    names = [p.name for p in positional][:count]
    if len(names) < count and star is None:
        raise EmmyError(f"{count} example inputs for a function of {len(names)} parameters", "give one example input a parameter")
    return names + [f"{star}{k}" for k in range(count - len(names))]


def _first_line(problem: BaseException) -> str:
    text = next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
    return f"{type(problem).__name__}: {text}"


def _remedy(problem: BaseException) -> str:
    text = f"{type(problem).__name__} {problem}".lower()
    if any(word in text for word in ("data-dependent", "datadependent", "unbacked", "nonzero", "to number")):
        return "a number, a shape or the control flow depends on a tensor's values: keep tensors, use torch.where or fixed shapes"
    return "run the function eagerly on these inputs first; then remove what torch.export does not support"


def _functional(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with functional operators only, and its uncovered ones decomposed where that leaves covered ones only."""
    if any(n.op == "get_attr" or _writes(n.target) or _trains(n) for n in exported.graph.nodes):
        exported = exported.run_decompositions({})
    if split := _covered(exported, left := _uncovered(exported)):
        return split
    for op in sorted(left, key=str) if len(left) > 1 else ():     # lowering names one of those that are left, as the user wrote it
        exported = _covered(exported, {op}) or exported
    return exported


def _covered(exported: torch.export.ExportedProgram, ops: set[torch._ops.OpOverload]) -> torch.export.ExportedProgram | None:
    """The program with these operators decomposed; None if that does not end in covered ones."""
    split, left, seen = exported, ops, _uncovered(exported) - ops
    while left:
        table = _decompositions(left - seen)
        if not table:
            return None
        seen |= left
        try:
            split = split.run_decompositions(table)
        except (RecursionError, AssertionError, RuntimeError):      # some of torch's decompositions write, or ask for values
            return None
        left = _uncovered(split) - (_uncovered(exported) - ops)
    return split


def _uncovered(exported: torch.export.ExportedProgram) -> set[torch._ops.OpOverload]:
    return {n.target for n in exported.graph.nodes
            if n.op == "call_function" and n.users and isinstance(n.target, torch._ops.OpOverload) and str(n.target) not in covered()}


def _writes(target: Any) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator) or (
        isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and str(target) != "aten.detach_.default")


def _trains(node: torch.fx.Node) -> bool:
    """Whether it is a batch norm that updates its statistics, though its schema does not say so."""
    return str(node.target) == "aten.batch_norm.default" and bool(node.args[3] is not None and node.args[5])


def _decompositions(ops: set[torch._ops.OpOverload]) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """torch's own decompositions of these operators, where it has any: a composite's kernel calls the operators that it is made of."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    kernels = {op: functools.partial(op._op_dk, composite) for op in ops if op.has_kernel_for_dispatch_key(composite)}
    return {op: decomposition_table.get(op) or kernels[op] for op in ops
            if not op._schema.is_mutable and (op in decomposition_table or op in kernels)}


class _Builder:
    """Reads an exported program into Torch IR."""

    def __init__(self, exported: torch.export.ExportedProgram, inputs: dict[str, torch.Tensor], rename: Callable[[str], str]) -> None:
        self.exported = exported
        self.inputs = inputs
        self.rename = rename
        self.values: dict[str, Value] = {}
        self.names: set[str] = set()
        self.weights: dict[str, torch.Tensor] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.nodes: list[Value] = []
        self.targets: dict[str, str] = {}
        self.orders: dict[str | int, tuple[int, ...]] = {}
        self.fixed: dict[int, Any] = {}

    def unique(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted)
        name, k = base, 0
        while name in self.names:
            k += 1
            name = f"{base}_{k}"
        self.names.add(name)
        return name

    def captured(self) -> Captured:
        placeholders = dict(zip((n.name for n in self.exported.graph.nodes if n.op == "placeholder"),
                                self.exported.graph_signature.input_specs, strict=True))
        given = iter(self.inputs)
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                value: Value | None = self.placeholder(node, placeholders[node.name], given)
            else:
                value = self.call(node) if node.op == "call_function" else None
            if value is not None:
                self.values[node.name] = value
                self.nodes.append(value)
        outputs, mutated, strides = self.outputs()
        program, tf32 = torch_ir.verify(Program(tuple(self.nodes), outputs)), torch.backends.cuda.matmul.allow_tf32
        tree = self.exported.call_spec.out_spec
        return Captured(program, self.inputs, self.weights, self.constants, mutated, strides, tree, self.fixed, self.orders, tf32)

    def placeholder(self, node: torch.fx.Node, spec: Any, given: Any) -> Value:
        """The tensor from outside; permuted, where its dimensions lie in another order in memory."""
        role: torch_ir.Role
        match spec.kind:
            case InputKind.USER_INPUT:
                target, role, group = next(given), "input", self.inputs
                tensor = group[target]
            case InputKind.PARAMETER | InputKind.BUFFER:
                target, role, group = self.rename(spec.target), "load", self.weights
                tensor = (self.exported.state_dict if spec.target in self.exported.state_dict else self.exported.constants)[spec.target]
            case InputKind.CONSTANT_TENSOR:
                target, role, group = f"c{len(self.constants)}", "constant", self.constants
                tensor = self.exported.constants[spec.target]
            case kind:
                raise EmmyError(f"the program takes {node.name}, a {kind.name}", "pass tensors only")
        self.targets[node.name], order = target, memory_order(tensor)
        group[target] = tensor.permute(order) if order else tensor
        made = Input(self.unique(target), target, Type(dtype_of(tensor.dtype, f"{role} {target}"), tuple(group[target].shape)), role)
        if not order:
            return made
        if role == "input":
            self.orders[target] = order
        self.nodes.append(made)
        return self.permuted(made, made.type, tuple(sorted(range(len(order)), key=order.__getitem__)))

    def permuted(self, x: Value, type: Type, order: tuple[int, ...]) -> Call:
        """A value with its dimensions in that order."""
        result = Type(type.dtype, tuple(type.shape[d] for d in order))
        return Call(self.unique(x.name), "aten.permute.default", (x, tuple(map(literal, order))), (), result, "")

    def call(self, node: torch.fx.Node) -> Value | None:
        value, source = node.meta.get("val"), _source(node)
        if value is None or (not node.users and not isinstance(value, tuple | list) and getattr(value, "dtype", None) not in FROM_TORCH):
            return None  # an assertion, or a result of an unsupported type that nothing reads
        where = f"{node.target} of %{node.name} ({source})"
        results: Type | tuple[Type, ...]
        if isinstance(value, torch.Tensor):
            results = self.type(value, where)
        elif isinstance(value, tuple | list):
            read = {u.args[1] for u in node.users if u.users}
            count = max((k + 1 for k, v in enumerate(value) if k in read or v.dtype in FROM_TORCH), default=0)
            results = tuple(self.type(v, where) for v in value[:count])
        else:
            raise EmmyError(f"{where} makes a number out of a tensor", "keep it a tensor: the value is not known when compiling")
        op = "operator.getitem" if getattr(node.target, "__name__", "") == "getitem" else str(node.target)
        kwargs = tuple((k, self.argument(v, where)) for k, v in node.kwargs.items() if k not in _PLACEMENT)
        return Call(self.unique(node.name), op, tuple(self.argument(a, where) for a in node.args), kwargs, results, source)

    def type(self, value: torch.Tensor, where: str) -> Type:
        if not all(isinstance(n, int) for n in value.shape):
            raise EmmyError(f"{where} has the dynamic shape {list(value.shape)}",
                            "keep shapes static (dynamic=False) and independent of values: use torch.where, or fixed indices")
        return Type(dtype_of(value.dtype, where), tuple(value.shape))

    def argument(self, arg: Any, where: str) -> Arg:
        match arg:
            case torch.fx.Node(): return self.values[arg.name]
            case list() | tuple(): return tuple(self.argument(a, where) for a in arg)
            case torch.dtype(): return dtype_of(arg, f"an argument of {where}")
            case bool() | int() | float() | str() | None: return literal(arg)
            case torch.device() | torch.layout() | torch.memory_format(): return literal(str(arg))
        raise EmmyError(f"{where} takes {type(arg).__name__} {arg!r}", "compile with static shapes and real numbers (dynamic=False)")

    def outputs(self) -> tuple[tuple[Value, ...], tuple[str, ...], tuple[tuple[int, ...], ...]]:
        """The tensors returned, the inputs that the first of them replace, and eager's strides of each."""
        nodes = {n.name: n for n in self.exported.graph.nodes}
        strides: list[tuple[int, ...]] = []
        outputs: list[Value] = []
        mutated: list[str] = []
        for place, spec in enumerate(self.exported.graph_signature.output_specs):
            if isinstance(spec.arg, ConstantArgument):
                self.fixed[place - len(mutated)] = spec.arg.value
                continue
            k = len(outputs)
            match spec.kind:
                case OutputKind.USER_OUTPUT: pass
                case OutputKind.USER_INPUT_MUTATION:
                    mutated.append(self.targets[str(spec.target)])
                case _: raise EmmyError(f"the program writes to {spec.target}", "do not update parameters or buffers in forward")
            value = self.values.get(getattr(spec.arg, "name", ""))
            if value is None:
                raise EmmyError(f"result {place - len(mutated)} is {spec.arg!r}, not a tensor", "return tensors only")
            result = nodes[spec.arg.name].meta["val"]
            if has_memory_format(result) and (order := memory_order(result)):
                self.orders[k] = order
                value = self.permuted(value, self.type(result, f"result {k - len(mutated)}"), order)
                self.nodes.append(value)
            outputs.append(value)
            strides.append(tuple(result.stride()))
        if not outputs:
            raise EmmyError("no result is a tensor, and no argument is written to", "return a tensor")
        return tuple(outputs), tuple(mutated), tuple(strides)


def _source(node: torch.fx.Node) -> str:
    """The innermost line outside torch and Emmy that made the call, as "file:line: code"."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n    ([^\n]*))?', node.meta.get("stack_trace") or "")
    own = [f for f in frames if not f[0].startswith(_OWN)]
    if not own:
        return ""
    file, line, code = own[-1]
    return f"{file if file.startswith('<') else os.path.basename(file)}:{line}" + (f": {code.strip()}" if code.strip() else "")
