"""The trees of a traced region: bodies as written, as extracted and in between, and instances of rules' patterns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from emmy.egraph.pattern import Atom, Bindings, Computed, Form, Hole, Pattern
from emmy.egraph.problem import Outlined
from emmy.egraph.provenance import Edge, ENode
from emmy.egraph.rulefile import Rule
from emmy.egraph.terms import Term
from emmy.egraph.trees import Tree, walk
from emmy.ir import loop_ir as loop
from emmy.ir.index import Ax, IxConst
from emmy.ir.loop_ir import Value
from emmy.lower.tensor_to_loop import rename
from extract.partition import Kernel

BOOKKEEPING = ("index", "push", "replace")      # phases that say what instances of templates and replaced axes are
KEPT = "Kept"       # a load of a tensor that the rules derived: its name, and axes for its own


Trees = dict[str, Tree | tuple[Tree, ...]]      # of variables: one that stands for operands in no order has several


class Forest:
    """The trees of one region."""

    def __init__(self, outlined: Outlined):
        assert outlined.region.provenance is not None, "the region is traced"
        self.outlined, self.region, self.provenance = outlined, outlined.region, outlined.region.provenance
        edges = [e for es in self.provenance.edges.values() for e in es if self.bookkeeping(e.rule) and isinstance(e.left, Form)]
        self.administrative = {e.source.op for e in edges if e.source}
        self.pushes: dict[ENode, list[Edge]] = defaultdict(list)
        for e in edges:
            if e.source:
                self.pushes[e.source].append(e)
        self.named = {(c, term): node for node, term in self.provenance.term.items() for c in [self.provenance.home[node]]}
        self.smallest: dict[int, Tree] = {}
        self.values: dict[Tree, Value] = {}
        self.indexed: dict[int, Tree] = {}
        self.reads: dict[str, dict[Tree, Tree]] = {}        # of a derived tensor: what it is where it is read, and that load
        self.found: dict[tuple[int, Value], Tree | None] = {}
        self.members: dict[int, list[tuple[Term, ENode]]] = defaultdict(list)
        for (c, term), node in self.named.items():
            self.members[c].append((term, node))

    @staticmethod
    def bookkeeping(rule: Rule) -> bool:
        return rule.phase in BOOKKEEPING

    def home(self, tree: Tree) -> Atom:
        """The class of a tree."""
        return self.provenance.home[tree.node]

    # -- instances of patterns ----------------------------------------------------------------------------------
    def classes[T](self, op: str, args: Sequence[T]) -> tuple[T, ...]:
        """The arguments that are classes of Value."""
        return tuple(args[k] for k in self.provenance.values.get(op, ()))

    def made(self, node: ENode, kids: tuple[Tree, ...]) -> Tree:
        """A tree; of an instance of a template or a value with an axis replaced, what it is."""
        tree = Tree(node, kids)
        for edge in self.pushes.get(node, ()):
            trees = self.match(edge.left, edge.bindings, tree)
            if trees is not None:
                found = self.instance(edge.right, edge.bindings, trees)
                assert isinstance(found, Tree)
                return found
        return tree

    def instance(self, pattern: Pattern, env: Bindings, trees: Trees) -> Tree:
        """`pattern` with its variables replaced: by `trees`, or else by the smallest tree of their class."""
        if isinstance(pattern, Form):
            node = self.provenance.node(pattern, env)
            several = (k for k in pattern.args if isinstance(k, Computed) and k.name in env and self.bag(pattern.op))
            kids = [*(self.instance(k, env, trees) for k in self.classes(pattern.op, pattern.args)),
                    *(tree for k in several for tree in self.operands(k, env, trees))]
            return self.made(node, tuple(kids))
        tree = trees.get(pattern.name) if isinstance(pattern, Hole) else None
        return tree if isinstance(tree, Tree) else self.default(self.provenance.atom(pattern, env))

    def bag(self, op: str) -> bool:
        """Whether a constructor has operands in no order: its last argument is all of them."""
        return op in self.provenance.bags

    def operands(self, pattern: Computed, env: Bindings, trees: Trees) -> list[Tree]:
        """Trees of the classes that operands in no order are, taken from those that they are computed of."""
        pool: dict[Atom, list[Tree]] = defaultdict(list)
        for name in pattern.of:
            found = trees.get(name, ())
            for tree in (found,) if isinstance(found, Tree) else found:
                pool[self.home(tree)].append(tree)
        return [pool[c].pop() if pool[c] else self.default(c) for c in env[pattern.name]]

    def match(self, pattern: Pattern, env: Bindings, tree: Tree) -> Trees | None:
        """The trees that variables stand for where `tree` is the instance of `pattern` under these bindings; None if it is not."""
        trees: Trees = {}
        return trees if self.matches(pattern, env, tree, trees) else None

    def matches(self, pattern: Pattern, env: Bindings, tree: Tree, trees: Trees) -> bool:
        if isinstance(pattern, Hole):
            return trees.setdefault(pattern.name, tree) is tree
        if not isinstance(pattern, Form):
            return True
        if pattern.op in self.administrative and pattern.op != tree.node.op:
            return self.instance(pattern, env, trees) is tree
        if self.provenance.node(pattern, env) != tree.node:
            return False
        inner = self.classes(pattern.op, pattern.args)
        if not all(self.matches(p, env, kid, trees) for p, kid in zip(inner, tree.kids, strict=False)):
            return False
        if self.bag(pattern.op):
            self.spread(pattern.args[-1], env, tree.kids, trees)
        if pattern.name:
            trees[pattern.name] = tree
        return True

    def spread(self, pattern: Pattern, env: Bindings, kids: tuple[Tree, ...], trees: Trees) -> None:
        """Share operands in no order out to the variables that they are computed of."""
        if isinstance(pattern, Hole):
            trees[pattern.name] = kids
        rest = list(kids)
        for name in sorted(pattern.of, key=lambda n: isinstance(env.get(n), tuple)) if isinstance(pattern, Computed) else ():
            if isinstance(c := env.get(name), int):
                found = next((k for k in rest if self.home(k) == c), None)
                if found is not None and name not in trees:
                    trees[name] = found
                    rest.remove(found)
            elif isinstance(c, tuple):
                trees[name] = tuple(rest)

    def unpushed(self, tree: Tree, image: ENode) -> Tree | None:
        """The tree whose `image` is `tree`, an administrative node over its class."""
        for edge in self.pushes[image]:
            assert isinstance(edge.left, Form)
            (inner,) = self.classes(edge.left.op, edge.left.args)
            trees: Trees = {}
            if isinstance(edge.right, Form) and edge.target == tree.node and self.unmatched(edge.right, edge.bindings, tree, trees):
                return self.instance(inner, edge.bindings, trees)
            if edge.right == inner:
                return tree
        return None

    def unmatched(self, pattern: Form, env: Bindings, tree: Tree, trees: Trees) -> bool:
        """Whether `tree` is an instance of `pattern`, whose operands are images of what its variables stand for."""
        for operand, kid in zip(self.classes(pattern.op, pattern.args), tree.kids, strict=True):
            if isinstance(operand, Form) and operand.op in self.administrative:
                (inner,) = self.classes(operand.op, operand.args)
                found = self.unpushed(kid, self.provenance.node(operand, env))
                if found is None or not isinstance(inner, Hole) or trees.setdefault(inner.name, found) is not found:
                    return False
            elif not self.matches(operand, env, kid, trees):
                return False
        return True

    def images(self, c: Atom) -> list[ENode]:
        """The administrative nodes of a class over another class."""
        return [n for n in self.pushes if self.provenance.home[n] == c and self.provenance.values[n.op] and c not in n.args]

    def sources(self, image: ENode, root: ENode) -> list[ENode]:
        """The members whose image has this root."""
        lefts = ((e.left, e.bindings) for e in self.pushes[image] if e.target == root)
        return [self.provenance.node(inner, env) for left, env in lefts if isinstance(left, Form)
                for inner in self.classes(left.op, left.args) if isinstance(inner, Form)]

    def image(self, of: ENode, tree: Tree) -> Tree:
        """The image of a tree under the administrative constructor of a node, whose other arguments are the node's."""
        (k,) = self.provenance.values[of.op]
        return self.made(ENode(of.op, (*of.args[:k], self.home(tree), *of.args[k + 1:])), (tree,))

    def pushed(self, node: ENode) -> ENode:
        """The root of what an instance of a template is; any other node itself."""
        return self.made(node, ()).node if node.op in self.administrative and not self.provenance.values[node.op] else node

    def default(self, c: Atom) -> Tree:
        """The smallest tree of a class; KeyError if it has none."""
        if not self.smallest:
            self._settle()
        return self.smallest[c]

    def _settle(self) -> None:
        size: dict[Atom, int] = {}
        nodes = sorted((n for n in self.provenance.term if not self.bag(n.op)), key=repr)
        changed = True
        while changed:
            changed = False
            for node in nodes:
                c, kids = self.provenance.home[node], self.classes(node.op, node.args)
                if all(k in size for k in kids) and (total := 1 + sum(size[k] for k in kids)) < size.get(c, total + 1):
                    size[c], changed = total, True
                    self.smallest[c] = Tree(node, tuple(self.smallest[k] for k in kids))

    # -- bodies -------------------------------------------------------------------------------------------------
    @cached_property
    def bodies(self) -> dict[str, Tree]:
        """The body of each tensor that the outputs need, at its own axes, as the program writes it, in the program's order."""
        found: dict[str, Tree] = {}
        pending = [tensor for _, tensor in self.region.program.outputs]
        while pending:
            tensor = pending.pop()
            if tensor not in found and tensor in self.region.home:
                found[tensor] = self.fused(self.kept(tensor))
                pending += self.loads((found[tensor],))
        return {d.name: found[d.name] for d in self.region.program.definitions if d.name in found}

    def fused(self, load: Tree) -> Tree:
        """The body of a tensor where it is loaded."""
        name, point = load.node.args
        body = self.provenance.home[ENode("Definition", (name,))]
        return self.made(ENode("At", (body, point)), ())

    def goal(self, kernels: Mapping[str, Kernel], tensor: str) -> Tree:
        """The body that the kernel of a tensor computes, with the tensors that the rules derived in their place."""
        made: dict[tuple[str, int], Tree] = {}

        def build(writes: str, c: int) -> Tree:
            if (writes, c) not in made:
                spelling = dict(kernels[writes].body)[c].spelling
                term = next(t for t in self.outlined.terms[c] if repr(t) == spelling)
                if term.kind == "Tensor" and term.label not in self.region.home and term.label not in self.region.copies:
                    made[writes, c] = self.inlined(build(self.outlined.stands(term.label), self.outlined.kept[term.label].home), c, term)
                else:
                    node = self.named[c, term]
                    made[writes, c] = Tree(node, tuple(build(writes, k) for k in self.classes(node.op, node.args)))
                    self.indexed |= {k: build(writes, k) for k in term.indexed}
            return made[writes, c]

        whole = self.outlined.stands(tensor)
        return build(whole, kernels[whole].root(whole) if tensor == whole else self.outlined.kept[tensor].home)

    def inlined(self, body: Tree, c: int, load: Term) -> Tree:
        """The body of a derived tensor where class `c` loads it, at axes of its own: the load itself if no member of `c` says so.  At an
        index it is any of the class, which has it there by a rule."""
        kept, at = self.outlined.kept[load.label], tuple(x for x in load.at if not isinstance(x, IxConst))
        read = Tree(ENode(KEPT, (load.label, *(x.a if isinstance(x, Ax) else x for x in at))), ())
        axes = tuple(x.a for x in at if isinstance(x, Ax))
        if axes == kept.axes:
            tree = body
        elif len(axes) == len(at):
            tree = self.tree_of(c, rename(self.value(body), dict(zip(kept.axes, axes, strict=True)))) or read
        else:
            tree = self.default(c)
        self.reads.setdefault(load.label, {})[tree] = read
        return tree

    def tree_of(self, c: int, value: Value) -> Tree | None:
        """The tree of a class that is a value, if its members make one."""
        if (c, value) not in self.found:
            self.found[c, value] = None
            for term, node in self.members[c]:
                if len(term.kids) != len(value.operands) or term.indexed:
                    continue
                kids = [self.tree_of(k, x) for k, x in zip(term.kids, value.operands, strict=True)]
                tree = Tree(node, tuple(k for k in kids if k is not None))
                if all(kids) and self.value(tree) is value:
                    self.found[c, value] = tree
                    break
        return self.found[c, value]

    def copied(self, copy: str) -> Tree:
        """The body of a copy of an input: a load of that."""
        source, home, _ = self.region.copies[copy]
        return next(Tree(node, ()) for term, node in self.members[home] if (term.kind, term.label) == ("Input", source))

    def kept(self, tensor: str) -> Tree:
        """A load of a tensor at its own axes."""
        if tensor in self.region.home:
            at = tuple(map(Ax, self.region.output_axes[tensor]))
            return Tree(self.named[self.region.home[tensor], Term("Tensor", tensor, at=at)], ())
        return Tree(ENode(KEPT, (tensor, *self.outlined.kept[tensor].axes)), ())

    def loads(self, trees: Iterable[Tree]) -> list[str]:
        """The tensors other than inputs that trees load."""
        found = dict[str, None]()
        for tree in walk(trees):
            if tree.node.op in ("Tensor", KEPT):
                found[str(tree.node.args[0])] = None
            term = self.provenance.term.get(tree.node)
            for c in term.indexed if term else ():
                found |= dict.fromkeys(self.loads((self.index(c),)))
        return list(found)

    def index(self, c: int) -> Tree:
        """The tree of a value that is used as an index: the one extracted if there is one."""
        return self.indexed.get(c) or self.default(c)

    def value(self, tree: Tree) -> Value:
        """The Loop IR value of a tree.  KeyError if Loop IR has no such value."""
        for t in walk((tree,)):
            if t in self.values:
                continue
            if t.node.op == KEPT:
                name, *at = t.node.args
                self.values[t] = loop.Load(name, self.outlined.kept[name].element, self.outlined.point(name, at))
                continue
            term = self.provenance.term[t.node]
            kids = (*(self.values[k] for k in t.kids), *(self.value(self.index(c)) for c in term.indexed))
            element = self.outlined.tensors[term.label].element if term.kind in ("Input", "Tensor") else None
            self.values[t] = term.build(kids, element)
        return self.values[tree]
