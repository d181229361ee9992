"""A pair of equal programs as a rule file, with its tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from mlirules.drivers.discover.opsets import OpSet
from mlirules.drivers.discover.programs import Writer, in_order
from mlirules.drivers.discover.terms import (
    Axis,
    Code,
    Ref,
    Scalar,
    Sizes,
    Term,
    dims_in,
    refs,
    renamed,
    written,
)
from mlirules.drivers.prove.expr import Int, Poly

#: Sizes of the programs in tests.
TEST_SIZES = (4, 6, 5, 3, 2, 7)
TEST_NUMBERS = {"c": 0.5, "d": 1.5}

_LEAVES = ("x", "w", "v", "u", "z", "b", "a", "g", "h")


@dataclass
class Pair:
    """Two programs that compute the same: what is found, and what is put there."""

    terms: Sequence[Term]
    left: int
    right: int
    ops: OpSet
    commuting: frozenset[str]
    #: The dim that stands for any number of dims, where one does; ``*``: all dims do.
    pack: str = ""
    #: What stands in the file besides: summary, reason, notes.
    said: dict[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> list[int]:
        """The inputs in the order in which the left side reads them."""
        return [t for t in in_order(self.terms, self.left) if not self.terms[t].op]

    @property
    def name(self) -> str:
        """A name from the ops of both sides."""
        left, right = (_words(self.terms, t) for t in (self.left, self.right))
        return "-".join(["torch", *left, "to", *(right or ["operand"])])[:90].rstrip("-")


def _words(terms: Sequence[Term], root: int) -> list[str]:
    """A program's ops from its result on, as words."""
    ops = [terms[t].op for t in reversed(in_order(terms, root)) if terms[t].op]
    words = []
    for op in ops:
        short = op.removeprefix("torch.aten.").strip("_").split(".")
        tail = [w for w in short[1:] if w in ("Scalar", "ScalarOther", "ScalarSelf")]
        words.append(re.sub(r"[^a-z0-9]+", "-", "-".join([short[0], *tail]).lower()).strip("-"))
    return words


def spelt(terms: Sequence[Term], root: int, names: Mapping[int, str] | None = None) -> str:
    """A program as one expression of short op names."""
    term = terms[root]
    if not term.op:
        return str((names or {}).get(root, term.args[0]))

    def one(a: object) -> str:
        if isinstance(a, Ref):
            return spelt(terms, a.term, names)
        if isinstance(a, tuple):
            return "[" + ", ".join(map(one, a)) + "]"
        if isinstance(a, Sizes):
            return "[" + ", ".join(map(written, a.dims)) + "]"
        if isinstance(a, Axis):
            return str(a.value)
        if isinstance(a, Scalar):
            return a.text
        return _literal(a.value if isinstance(a, Code) else a)

    args = [one(a) for a in term.args]
    while args and args[-1] == "none":
        args.pop()
    short = term.op.removeprefix("torch.aten.").split(".")[0]
    if short in ("add", "sub") and args[2:] == ["1"]:
        args.pop()  # what the second operand is multiplied by
    return f"{short}({', '.join(args)})"


def _literal(a: object) -> str:
    if a is None:
        return "none"
    if isinstance(a, bool):
        return str(a).lower()
    return f'"{a}"' if isinstance(a, str) else repr(a)


class _Lines:
    """The lines of one rule."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.terms = pair.terms
        self.names: dict[int, str] = {}
        self.types: dict[str, str] = {}
        self.where: list[str] = []
        self.match: list[str] = []
        self.rewrite: list[str] = []
        self.constants: list[str] = []
        self.scalars: dict[str, str] = {}
        self.dims: dict[str, str] = {}
        self.made = 0
        self.axes = 0
        self.coded = False
        self._dims()

    def _dims(self) -> None:
        """Dims in the order in which they occur: A, B, C."""
        free = iter("ABCDEFGH")
        for leaf in self.pair.inputs:
            for size in self.terms[leaf].type.shape:
                for d in dims_in(size):
                    if d not in self.dims:
                        self.dims[d] = next(free)

    @property
    def symbolic(self) -> bool:
        """Whether the element type is a symbol."""
        return len(self.pair.ops.dtypes) == 1

    def element(self, found: str) -> str:
        return "T" if self.symbolic and found == self.pair.ops.dtypes[0] else found

    def sizes(self, shape: Sequence[Int], *, matched: bool) -> list[str]:
        """Sizes in the notation of types; computed ones of the match get a name."""
        if self.pair.pack == "*":
            return ["S..."]
        out: list[str] = []
        for n, size in enumerate(shape):
            if n == 0 and self.pair.pack and dims_in(size) == [self.pair.pack]:
                out.append("S...")
                continue
            text = written(renamed(size, self.dims) if isinstance(size, Poly) else size)
            if matched and not text.isidentifier() and not text.isdigit():
                line = next((w for w in self.where if w.endswith(f" == {text}")), None)
                if line is None:
                    self.made += 1
                    line = f"P{self.made} == {text}"
                    self.where.append(line)
                text = line.split(" == ")[0]
            out.append(text)
        return out

    def declare(self, name: str, term: Term, *, matched: bool) -> None:
        parts = [*self.sizes(term.type.shape, matched=matched), self.element(term.type.element)]
        self.types[name] = f"vtensor<{' x '.join(parts)}>"

    def scalar(self, text: str, *, matched: bool) -> str:
        """A constant by its name in the rule; what is divided by is not 0."""

        def one(found: re.Match[str]) -> str:
            name = found[0]
            if name not in self.scalars:
                self.scalars[name] = "cdefgh"[len(self.scalars)]
                self.constants.append(self.scalars[name])
            return self.scalars[name]

        out = re.sub(r"[a-z]\w*", one, text)
        for divisor in re.findall(r"/ ([a-z]\w*)", out):
            if not matched and f"{divisor} != 0" not in self.where:
                self.where.append(f"{divisor} != 0")
        return out

    def operand(self, a: object, term: Term, *, matched: bool) -> str:
        if isinstance(a, Ref):
            return self.names[a.term]
        if isinstance(a, tuple):
            return "[" + ", ".join(self.operand(i, term, matched=matched) for i in a) + "]"
        if isinstance(a, Sizes):
            if matched:
                return "_"
            sizes = self.sizes(a.dims, matched=False)
            if sizes and sizes[0] == "S...":
                rest = ", ".join(sizes[1:])
                return f"concat(S, [{rest}])" if rest else "S"
            return "[" + ", ".join(sizes) + "]"
        if isinstance(a, Code):
            if not matched:
                self.coded = True
            return "_" if matched else str(a.value)
        if isinstance(a, Axis):
            tensors = refs(term.args)
            if not matched or not tensors:
                return str(a.value)
            self.axes += 1
            name = f"i{self.axes}"
            of = self.names[tensors[0]]
            self.types[name] = "constant int"
            self.where.append(f"axis({name}, {of}) == rank({of}) - {-a.value}")
            return name
        if isinstance(a, Scalar):
            return self.scalar(a.text, matched=matched)
        return _literal(a)

    def run(self) -> None:
        """Both sides, line by line."""
        pair, terms = self.pair, self.terms
        for n, leaf in enumerate(pair.inputs):
            self.names[leaf] = _LEAVES[n]
            self.declare(_LEAVES[n], terms[leaf], matched=True)
        ops = [t for t in in_order(terms, pair.left) if terms[t].op]
        for n, at in enumerate(ops):
            name = "y" if at == pair.left else f"t{n + 1}"
            args = ", ".join(self.operand(a, terms[at], matched=True) for a in terms[at].args)
            self.names[at] = name
            self.declare(name, terms[at], matched=True)
            self.match.append(f"{name} = {terms[at].op}({args})")
        kept: set[int] = set()
        made = [t for t in in_order(terms, pair.right) if terms[t].op]
        if not made:
            self.rewrite.append(f"y = {self.names[pair.right]}")
        shared = {t for t in made if t in self.names}
        needed = self._needed(pair.right, shared)
        for n, at in enumerate(t for t in made if t in needed):
            if at in shared:
                kept.add(at)
                continue
            args = ", ".join(self.operand(a, terms[at], matched=False) for a in terms[at].args)
            name = "y" if at == pair.right else f"n{n + 1}"
            self.names[at] = name
            if name != "y":
                self.declare(name, terms[at], matched=False)
            self.rewrite.append(f"{name} = {terms[at].op}({args})")
        if pair.right in shared:
            kept.add(pair.right)
            self.rewrite.append(f"y = {self.names[pair.right]}")
        if made:
            for at in ops[:-1]:
                if at in kept:
                    continue
                uses = sum(refs(terms[o].args).count(at) for o in ops)
                readers = sum(at in refs(terms[o].args) for o in ops)
                one = "one_use" if uses == 1 and readers == 1 else "inside"
                self.where.append(f"{one}({self.names[at]})")
        for c in self.constants:
            self.types[c] = "constant number"
        if self.symbolic and any(re.search(r"(<|x )T>$", t) for t in self.types.values()):
            main = pair.ops.dtypes[0]
            wide = main in ("f32", "f64") and not self.coded
            allowed = "f32, f64" if wide else main
            self.where.insert(0, f"T in [{allowed}]")

    def _needed(self, root: int, shared: set[int]) -> set[int]:
        """The ops of the right side that are read, shared ones as they are."""
        out: set[int] = set()
        stack = [root]
        while stack:
            at = stack.pop()
            if at in out:
                continue
            out.add(at)
            if at not in shared:
                stack.extend(refs(self.terms[at].args))
        return out


def rule_text(pair: Pair, name: str, negatives: Sequence[tuple[str, str]] = ()) -> str:
    """A rule file. ``negatives``: programs that the rule refuses, each with the line that does."""
    lines = _Lines(pair)
    lines.run()
    terms = pair.terms
    used = {terms[t].op for t in in_order(terms, pair.left) if terms[t].op}
    commutative = sorted(used & pair.commuting)
    short = spelt(terms, pair.left, lines.names), spelt(terms, pair.right, lines.names)
    data: dict[str, object] = {
        "rule": name,
        "kind": "fusion",
        "summary": pair.said.get("summary", f"Compute `{short[0]}` as `{short[1]}`."),
        "reason": pair.said.get("reason", "The same for less."),
    }
    if "notes" in pair.said:
        data["notes"] = pair.said["notes"]
    data["tags"] = ["found"]
    if commutative:
        data["commutative"] = commutative
    data |= {"types": lines.types, "match": lines.match}
    if lines.where:
        data["where"] = lines.where
    data["rewrite"] = lines.rewrite
    head = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=118)
    head = re.sub(r"(?m)^- ", "  - ", head)
    return head + _tests(pair, negatives)


def positive(pair: Pair) -> str:
    """The program of the rule's test."""
    terms = pair.terms
    dims = dict(zip(_dims_of(pair), TEST_SIZES, strict=False))
    after = ""
    floats = terms[pair.left].type.element in ("f16", "f32", "f64", "bf16")
    if not terms[pair.right].op and floats:
        # A function that gives back its argument computes nothing that could be compared.
        after = "torch.aten.relu"
    return Writer(terms, dims, TEST_NUMBERS).text(pair.left, pair.inputs, after=after)


def _dims_of(pair: Pair) -> list[str]:
    found: list[str] = []
    for leaf in pair.inputs:
        for size in pair.terms[leaf].type.shape:
            found += [d for d in dims_in(size) if d not in found]
    return found


#: What stands for the negative tests as long as there are none: every rule refuses it.
_NOTHING = "func.func @f() {\n  return\n}"


def _tests(pair: Pair, negatives: Sequence[tuple[str, str]]) -> str:
    right = [t for t in in_order(pair.terms, pair.right) if pair.terms[t].op]
    last = pair.terms[right[-1]].op if right else "torch.aten.relu"
    out = ["tests:", "  - name: the program that it was found for", "    input: |"]
    out += [f"      {row}" for row in positive(pair).splitlines()]
    out += ["    check: |", "      CHECK-LABEL: func.func @f", f"      CHECK: {last} %"]
    left = {pair.terms[t].op for t in in_order(pair.terms, pair.left)}
    gone = left - {pair.terms[t].op for t in right} - {"", last}
    out += [f"      CHECK-NOT: {op} %" for op in sorted(gone)]
    out += ["    run: {devices: [cpu]}"]
    for n, (text, because) in enumerate(negatives or [(_NOTHING, "")], 1):
        out += [f"  - name: refused {n}", "    unchanged: |"]
        out += [f"      {row}" for row in text.splitlines()]
        out += [f"    because: {_quoted(because)}"] * bool(because)
    return "\n".join(out) + "\n"


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, width=1000, default_style='"').strip()
