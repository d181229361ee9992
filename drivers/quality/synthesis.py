"""Tests made from a rule: a program that must match, and one for each condition that refuses it.

The search is local, and the matcher is the judge: from a program at hand one value is changed at a
time, and what :meth:`~mlirules.drivers.match.matcher.Matcher.diagnose` says of each variant
leads on.
The first program is made from the rule's types alone, or taken from the inline tests.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Around, Diagnosis
from mlirules.drivers.quality.seeds import BUILTIN, ELEMENTS, extracted, initial
from mlirules.generator.programs import Leaf, Program, constant, emit, list_of
from mlirules.language.faults import MlirulesError
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import Line, Rule, nested_calls

# Its verifier reads what defines its operands without asking whether anything does.
_FRAGILE = frozenset(["torch.bind_symbolic_shape"])
BUDGET = 500  # programs tried for one condition


@dataclass
class Made:
    """A program made from a rule. ``line`` is the condition it violates; None: it must match."""

    line: Line | None
    text: str


@dataclass
class Synthesis:
    """What was made from a rule, and what could not be, with the reason."""

    rule: Rule
    positive: Made | None = None
    negatives: list[Made] = field(default_factory=list)
    missing: list[tuple[Line | None, str]] = field(default_factory=list)
    #: Whether the first program came from the types alone, or from the inline tests.
    source: str = ""


def synthesise(
    rule: Rule, session: Session | None = None, wanted: Callable[[Line], bool] | None = None
) -> Synthesis:
    """Make the programs of a rule, in ``session`` (default: that of this thread).

    ``wanted``: whether a program against a condition is looked for (default: against each). Raises
    nothing: what cannot be made is said with a reason."""
    return Search(rule, session=session).run(wanted)


def conditions(rule: Rule) -> list[Line]:
    """The lines of a rule that may refuse: conditions, types, and match lines that say more than
    the name of the root op."""
    lines = [line for line, _ in rule.where]
    # What kind of scalar an op gives is the op's own, and no rule's condition.
    given = {n for n in rule.root_results if n and rule.match}
    lines += [
        line
        for name, (line, decl) in rule.types.items()
        if not _accepts_all(decl) and (name not in given or decl.kind in ("vtensor", "tensor"))
    ]
    for n, pattern in enumerate(rule.match):
        calls = nested_calls(pattern.equation.call)
        values = [a for c in calls for a in c.args]
        wants = (
            n < len(rule.match) - 1
            or len(calls) > 1
            or any(isinstance(a, (ast.Literal, ast.ListExpr)) for a in values)
            or any(not isinstance(v, ast.Name) for c in calls for _, v in c.attrs)
        )
        if wants:
            lines.append(pattern.line)
    return lines + [line for line, _ in rule.index_match]


def _accepts_all(decl: ast.TypeDecl) -> bool:
    return decl.kind == "any" and not decl.constant


def around_of(rule: Rule, cpu: str | None = None) -> Around:
    """What kernels are chosen for: the CPU named, or the first that the rule's tests name.

    So that what is found out about a kernel for other CPUs does not depend on this machine's.
    """
    return Around(cpu=cpu or next((test.cpu for test in rule.tests if test.cpu), ""))


class Search:
    """Looks for programs around one rule. Keep one instance a rule: its verdicts are kept."""

    def __init__(self, rule: Rule, *, rewrite: bool = True, session: Session | None = None) -> None:
        self.rule = rule
        self.session = session or current()
        # Whether the rewrite is lowered as well before a rule is said to apply.
        self.rewrite = rewrite
        self.matcher = Matcher(rule, self.session.context)
        self.around = around_of(rule)
        self.by_result = self.matcher.structure.by_result
        self.numbers, self.strings = _literals(rule)
        # Only torch ops are written anew: they have no regions or operand groups, and verifiers of
        # others that find theirs missing may take the process along.
        self.plain = rule.equation is None and all(
            n.startswith("torch.") and n not in _FRAGILE for n in rule.op_names
        )
        self.tried = 0
        self.reason = ""
        self.watch: Callable[[Diagnosis], None] | None = None
        self.unverified: Counter[str] = Counter()
        self._applied: dict[str, bool] = {}

    # -- the whole

    def run(self, wanted: Callable[[Line], bool] | None = None) -> Synthesis:
        """A program that matches, and one for each condition that is wanted."""
        out = Synthesis(self.rule)
        seeds: list[Program | str] = []
        made = self.first()
        if made is not None:
            out.source = "types"
            seeds.append(made)
        for text in (t.input for t in self.rule.tests if t.input is not None):
            seeds += self.from_text(text)
            if not out.source and seeds:
                out.source = "inline test"
        if not seeds:
            out.missing.append(
                (None, "no program matches: neither the types nor an inline test gave one")
            )
            return out
        out.positive = Made(None, self._pretty(seeds[0]))
        for line in conditions(self.rule):
            if wanted is not None and not wanted(line):
                continue
            self.unverified.clear()
            found = self._violating(line, seeds)
            if found is None:
                out.missing.append((line, self.reason))
            else:
                out.negatives.append(Made(line, self._pretty(found)))
        return out

    def text(self, program: Program | str) -> str:
        """A program as MLIR."""
        return program if isinstance(program, str) else emit(self.rule, program)

    def _pretty(self, program: Program | str) -> str:
        """A program as a person would write it: in the ops' own form, values named for theirs."""
        if isinstance(program, str):
            return program
        module = ir.Module.parse(self.text(program), self.session.context)
        return "\n".join(str(op) for op in module.body.operations) + "\n"

    def judge(self, program: Program | str) -> Diagnosis | None:
        """How near the rule comes in a program; None when it is no program."""
        self.tried += 1
        try:
            text = self.text(program)
            module = ir.Module.parse(text, self.session.context)
        except ir.MLIRError as error:
            first = str(error).split("error:", 1)[-1].strip().split("\n", 1)[0]
            self.unverified[re.sub(r'^"-":\d+:\d+: ', "", first)[:160]] += 1
            return None
        except KeyError:
            return None
        self.module = module  # the ops of a diagnosis live in it
        found = [
            self.matcher.diagnose(op, self.around, rewrite=self.rewrite)
            for op in ops_below(module.operation)
            if op.name in self.rule.root_ops
        ]
        if self.watch is not None:
            for diagnosis in found:
                self.watch(diagnosis)
        return min(found, key=lambda d: d.rank) if found else None

    def applies(self, program: Program | str) -> bool:
        """Whether the rule matches somewhere in a program; the rewrite is not lowered for it."""
        try:
            text = self.text(program)
        except KeyError:
            return False
        known = self._applied.get(text)
        if known is None:
            try:
                module = ir.Module.parse(text, self.session.context)
            except ir.MLIRError:
                known = False
            else:
                roots = self.rule.root_ops
                known = any(
                    self.matcher.holds(op, self.around)
                    for op in ops_below(module.operation)
                    if op.name in roots
                )
            self._applied[text] = known
        return known

    # -- a first program

    def first(self) -> Program | None:
        """A program from the types alone, mended until the rule applies."""
        if not self.plain:
            return None
        try:
            program = initial(self.rule, self.by_result)
        except (KeyError, ValueError):
            return None
        best = self.judge(program)
        for _ in range(12):
            if best is not None and best.applies:
                return program
            better = None
            for variant in itertools.islice(self._variants(program, self._lines_of(best)), 300):
                found = self.judge(variant)
                if found is not None and (best is None or found.rank < best.rank):
                    best, better = found, variant
                    if found.applies:
                        return variant
            if better is None:
                return None
            program = better
        return None

    def from_text(self, text: str) -> list[Program | str]:
        """The places of an inline test at which the rule applies, each as a program."""
        try:
            module = parsed(text, "", self.session)
        except MlirulesError:
            return []
        out: list[Program | str] = []
        for op in ops_below(module.operation):
            if op.name not in self.rule.root_ops:
                continue
            if self.matcher.diagnose(op, self.around, rewrite=self.rewrite).applies:
                if not self.plain:
                    return [text]
                program = extracted(self.rule, self.by_result, op)
                found = self.judge(program) if program is not None else None
                out.append(program if program and found and found.applies else text)
        return out[:2]

    # -- violating one condition

    def _lines_of(self, diagnosis: Diagnosis | None) -> list[Line]:
        return [r.line for r in diagnosis.refusals if r.line] if diagnosis else []

    def _violating(self, line: Line, seeds: list[Program | str]) -> Program | str | None:
        """A program that only ``line`` refuses; None when there is none, and ``reason`` why."""
        others: Counter[str] = Counter()
        budget = self.tried + BUDGET
        near: list[tuple[int, Program | str, list[Line]]] = []
        for seed in seeds:
            for variant in self.changed(seed, [line]):
                if self.tried > budget:
                    break
                found = self.judge(variant)
                if found is None:
                    continue
                refused = {id(r.line): r.line for r in found.refusals if r.line is not None}
                if any(_same(x, line) for x in refused.values()):
                    rest = [x for x in refused.values() if not _same(x, line)]
                    if not rest:
                        return variant
                    others.update(str(x) for x in rest)
                    near.append((len(rest), variant, rest))
        if not near:
            found_pair = self._pairs(line, seeds[0], budget)
            if found_pair is not None:
                return found_pair
        near.sort(key=lambda n: n[0])
        for _, program, rest in near[:6]:
            for variant in itertools.islice(self.changed(program, rest), 120):
                found = self.judge(variant)
                if (
                    found
                    and found.refusals
                    and all(r.line is not None and _same(r.line, line) for r in found.refusals)
                ):
                    return variant
        if others:
            shown = " and ".join(f"`{x}`" for x, _ in others.most_common(2))
            self.reason = f"what violates it violates {shown} as well, in every program tried"
        elif self.unverified:
            self.reason = f"the op's verifier refuses it: {self.unverified.most_common(1)[0][0]}"
        else:
            self.reason = f"no program of the {self.tried - budget + BUDGET} tried violates it"
        return None

    def _pairs(self, line: Line, seed: Program | str, budget: int) -> Program | str | None:
        """A program with two changes that only ``line`` refuses: conditions on two values."""
        if isinstance(seed, str):
            return None
        named = self._names_in([line])
        for about, first in list(self._all_variants(seed)):
            if not about & named or len(about) > len(named):
                continue
            for also, second in self._all_variants(first):
                if not also & named or len(also) > len(named):
                    continue
                if self.tried > budget + BUDGET:
                    return None
                found = self.judge(second)
                if (
                    found
                    and found.refusals
                    and all(r.line is not None and _same(r.line, line) for r in found.refusals)
                ):
                    return second
        return None

    def changed(self, seed: Program | str, lines: list[Line]) -> Iterator[Program | str]:
        """Programs that differ from one in one thing; what has to do with ``lines`` first."""
        if isinstance(seed, str):
            yield from _text_variants(seed)
        else:
            yield from self._variants(seed, lines)

    def _variants(self, program: Program, lines: Iterable[Line]) -> Iterator[Program]:
        """Programs that differ in one thing; what has to do with ``lines`` first."""
        named = self._names_in(lines)
        every = list(self._all_variants(program))
        yield from (v for about, v in every if about & named or not named)
        yield from (v for about, v in every if named and not about & named)

    def _names_in(self, lines: Iterable[Line]) -> set[str]:
        """The values of a pattern that some lines speak of, through symbols as well."""
        words: set[str] = set()
        for line in lines:
            words |= set(re.findall(r"[A-Za-z_]\w*", str(line)))
            if line.section == "types":
                words.add(str(line.key))
        for name, line, _, _ in reversed(self.rule.let):
            if name in words:
                words |= set(re.findall(r"[A-Za-z_]\w*", str(line)))
        for name, (_, decl) in self.rule.types.items():
            if words & set(decl.symbols()):
                words.add(name)
        return words

    def _all_variants(self, program: Program) -> Iterator[tuple[set[str], Program]]:
        places = _tensors(self.rule, program)
        for name, leaf, put in places:
            for changed in self._tensor_variants(leaf):
                yield {name}, put(program, changed)
        # Together: a size, an element type, a rank wherever it stands.
        every = {name for name, _, _ in places}
        for old in {d for _, leaf, _ in places for d in leaf.dims or ()}:
            for new in (*self.numbers, 3, 5, 0, 1, 32, None):
                if new != old and (new is None or 0 <= new <= 4096):
                    yield (
                        every,
                        _everywhere(
                            program,
                            places,
                            lambda x, o=old, n=new: replace(
                                x,
                                dims=None
                                if x.dims is None
                                else tuple(n if d == o else d for d in x.dims),
                            ),
                        ),
                    )
        for kind in {leaf.element for _, leaf, _ in places}:
            for new_kind in ELEMENTS if _torch(places) else BUILTIN:
                if new_kind != kind:
                    yield (
                        every,
                        _everywhere(
                            program,
                            places,
                            lambda x, o=kind, n=new_kind: replace(
                                x, element=n if x.element == o else x.element
                            ),
                        ),
                    )
        yield (
            every,
            _everywhere(
                program, places, lambda x: replace(x, dims=None if x.dims is None else (2, *x.dims))
            ),
        )
        yield every, _everywhere(program, places, lambda x: replace(x, dims=(x.dims or ())[1:]))
        for name, leaf in program.values.items():
            about = {name, *self._around(name)}
            for changed in self._value_variants(leaf):
                yield about, program.with_value(name, changed)
        for name, (number, at) in self.by_result.items():
            if number == len(self.rule.match) - 1:
                continue
            made = program.results[str(number)][at]
            yield {name}, replace(program, kept=program.kept ^ {name})
            yield (
                {name, self.rule.match[number].op},
                replace(program.with_value(name, made), cut=program.cut | {name}),
            )
        for name in program.values:
            if name.isidentifier():
                yield {name}, replace(program, kept=program.kept ^ {name})
        for path in [p for p in program.results if "/" in p]:
            yield (
                {path},
                replace(
                    program.with_value(path, program.results[path][0]), cut=program.cut | {path}
                ),
            )
        for path, text in program.attributes.items():
            for other in _attribute_variants(text):
                yield {path}, replace(program, attributes={**program.attributes, path: other})

    def _around(self, path: str) -> set[str]:
        """The words of the line that an operand without a name stands in."""
        number = path.split("/", 1)[0]
        if not number.isdigit():
            return set()
        return set(re.findall(r"[A-Za-z_]\w*", str(self.rule.match[int(number)].line)))

    def _tensor_variants(self, leaf: Leaf) -> Iterator[Leaf]:
        for element in ELEMENTS if leaf.torch else BUILTIN:
            if element != leaf.element:
                yield replace(leaf, element=element)
        dims = leaf.dims
        if dims is None:
            return
        for i, d in enumerate(dims):
            for new in (*self.numbers, 3, 5, 1, 0, None):
                if new != d and (new is None or 0 <= new <= 4096):
                    yield replace(leaf, dims=(*dims[:i], new, *dims[i + 1 :]))
        yield replace(leaf, dims=(2, *dims))
        yield replace(leaf, dims=(*dims, 2))
        if dims:
            yield replace(leaf, dims=dims[1:])
            yield replace(leaf, dims=dims[:-1])
        yield replace(leaf, dims=())
        yield replace(leaf, dims=None)

    def _value_variants(self, leaf: Leaf) -> Iterator[Leaf]:
        if leaf.kind == "tensor":
            yield constant(None)
            return
        if leaf.kind == "list":
            yield list_of((*leaf.items, *leaf.items[-1:]), leaf.type)
            yield list_of(leaf.items[:-1], leaf.type)
            yield Leaf("argument", type=leaf.type)
            yield constant(None)
            for i, item in enumerate(leaf.items):
                for changed in (
                    *self._value_variants(item),
                    *(self._tensor_variants(item) if item.kind == "tensor" else ()),
                ):
                    yield list_of((*leaf.items[:i], changed, *leaf.items[i + 1 :]), leaf.type)
            return
        value = leaf.value
        if leaf.kind == "argument":
            yield from map(constant, _KNOWN.get(leaf.type, ()))
            return
        if isinstance(value, bool):
            yield constant(not value)
            yield Leaf("argument", type="!torch.bool")
        elif isinstance(value, int):
            for n in (*self.numbers, value + 1, value - 1, 0, 1, -1, 7):
                if n != value:
                    yield constant(n)
            yield Leaf("argument", type="!torch.int")
            yield constant(float(value))
        elif isinstance(value, float):
            for n in self.numbers:
                yield constant(float(n))
            for x in (value + 1.0, 0.5, -1.0, float(0)):
                yield constant(x)
            yield Leaf("argument", type="!torch.float")
            yield constant(int(value) if abs(value) < 1e9 else 1)
        elif isinstance(value, str):
            for s in (*self.strings, "another"):
                if s != value:
                    yield constant(s)
        else:
            for new in (0, 1, 1.0, False, "another"):
                yield constant(new)
            for kind in ("int", "float", "bool"):
                yield Leaf("argument", type=f"!torch.{kind}")
            yield from (Leaf("tensor", dims) for dims in ((4,), (4, 8), (2, 4, 4, 8)))
            yield list_of((constant(1),))
        if value is not None:
            yield constant(None)


# Constants that may stand where an argument of a type stands.
_KNOWN: dict[str, tuple[int | float | bool, ...]] = {
    "!torch.int": (1, 2),
    "!torch.float": (0.5,),
    "!torch.bool": (True, False),
}


def _same(a: Line, b: Line) -> bool:
    return (a.section, a.key) == (b.section, b.key)


def _literals(rule: Rule) -> tuple[list[int], list[str]]:
    """Numbers and texts that a rule's lines speak of, and the numbers beside them."""
    numbers: set[int] = set()
    strings: list[str] = []
    expressions = [e for _, e in rule.where] + [e for _, _, e, _ in rule.let if e is not None]
    for node in itertools.chain.from_iterable(walk_expression(e) for e in expressions):
        if isinstance(node, ast.Literal):
            value = node.value
            if isinstance(value, str):
                strings.append(value)
            elif type(value) in (int, float) and value is not None and abs(value) < 1 << 20:
                numbers |= {int(value) + d for d in (-1, 0, 1)}
    return sorted(numbers, key=abs), list(dict.fromkeys(strings))


Put = Any  # (program, leaf) -> program


def _tensors(rule: Rule, program: Program) -> list[tuple[str, Leaf, Put]]:
    """Every tensor of a program: its name, what it is, and how to put another there."""
    out: list[tuple[str, Leaf, Put]] = []
    for name, leaf in program.values.items():
        if leaf.kind == "tensor":
            out.append((name, leaf, lambda p, x, n=name: p.with_value(n, x)))
        elif leaf.kind == "list":
            for i, item in enumerate(leaf.items):
                if item.kind == "tensor":
                    out.append(
                        (
                            name,
                            item,
                            lambda p, x, n=name, k=i: p.with_value(
                                n, _with_item(p.values[n], k, x)
                            ),
                        )
                    )
    for path, types in program.results.items():
        names = rule.match[int(path)].equation.results if "/" not in path else ()
        for i, leaf in enumerate(types):
            if leaf.kind == "tensor":
                name = (names[i] if i < len(names) else None) or path
                out.append((name, leaf, lambda p, x, q=path, k=i: p.with_result(q, k, x)))
    return out


def _with_item(leaf: Leaf, at: int, item: Leaf) -> Leaf:
    if at >= len(leaf.items):
        return leaf
    return replace(leaf, items=(*leaf.items[:at], item, *leaf.items[at + 1 :]))


def _torch(places: list[tuple[str, Leaf, Put]]) -> bool:
    return any(leaf.torch for _, leaf, _ in places)


def _everywhere(program: Program, places: list[tuple[str, Leaf, Put]], change: Any) -> Program:
    for _, leaf, put in places:
        program = put(program, change(leaf))
    return program


def _attribute_variants(text: str) -> Iterator[str]:
    yield re.sub(r'"[^"]*"', '"another"', text, count=1)
    yield re.sub(r"-?\d+(?= :)", lambda m: str(int(m[0]) + 1), text, count=1)
    yield ""


# ---- the first program ---------------------------------------------------------------------------


# ---- from an inline test -------------------------------------------------------------------------


def _resized(old: str, new: str, found: re.Match[str]) -> str:
    return re.sub(rf"(?<!\d){old}(?=[x,\]])", new, found[0])


def _as_integer(found: re.Match[str]) -> str:
    """The integer op for a float one: ``addf`` gives ``addi``, ``maximumf`` gives ``maxsi``."""
    return f"arith.{found[1]}{'si' if found[2] else 'i'}"


# ---- programs that are only text -----------------------------------------------------------------


def _text_variants(text: str) -> Iterator[str]:
    """Variants of a program that is known only as text: types, numbers, ops, maps."""
    types = re.compile(r"(?:!torch\.vtensor<\[[^\]]*\],|tensor<)[^>]*>+")
    shapes = {s for t in types.findall(text) for s in re.findall(r"\d+(?=[x,\]])", t)}
    elements = set(re.findall(r"(?<=[x,<\s])(?:b?f\d+|[su]?i\d+)(?=[>\s,)])", text))
    for old in sorted(elements):
        for new in BUILTIN:
            if new != old:
                yield re.sub(rf"(?<![\w]){old}(?![\w])|(?<=x){old}(?!\w)", new, text)
    whole = re.sub(r"(?<![\w])f32(?![\w])|(?<=x)f32(?!\w)", "i32", text)
    whole = re.sub(r"constant (-?\d+)\.\d+(?:e[-+]\d+)?", r"constant \1", whole)
    yield re.sub(r"arith\.(\w+?)(imum)?f\b", _as_integer, whole)
    for old in sorted(shapes):
        for size in ("3", "5", "7", "32", "?"):
            yield types.sub(partial(_resized, old, size), text)
    for a, b in (("mulf", "subf"), ("addf", "mulf"), ("muli", "subi"), ("maximumf", "minimumf")):
        if f"arith.{a}" in text:
            yield text.replace(f"arith.{a}", f"arith.{b}", 1)
    for found in re.finditer(r"-> \((\w+), (\w+)\)>", text):
        yield text[: found.start()] + f"-> ({found[2]}, {found[1]})>" + text[found.end() :]
    for found in re.finditer(r"constant (-?\d+(?:\.\d+)?)(?:e[-+]\d+)?", text):
        for new_value in ("1.0", "2.0") if "." in found[1] else ("1", "2"):
            yield text[: found.start()] + f"constant {new_value}" + text[found.end() :]
