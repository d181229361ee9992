"""Rules as preprocessing transform specs: what a plain ``iree-compile`` applies without Python.

A spec compares payload ops with ops that it holds, attribute by attribute and body by body. The
driver's own matcher decides what those ops are: every op that is written into a spec was first
matched here, so a spec never applies where the driver would not. Where the ops come from:

* without a program, the spellings of the rule's index equation are written out (loop orders,
  operand orders, commuted bodies, named forms), with dynamic dims, for each element type that the
  rule accepts; conditions on sizes become match ops;
* for a program, the ops that match in it, with their types: every condition has then been checked.

What a rule asks for and a spec cannot say is refused with the line that asks for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import Steps, finish
from mlirules.drivers.match.liveness import Frozen
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Around, Match, Refusal
from mlirules.drivers.match.spelling import environments, ops_of, root_of, spellings
from mlirules.generator.emit.artefacts import Artefacts, flags_file
from mlirules.generator.emit.transform_spec import (
    Bounds,
    Entry,
    Function,
    Guard,
    Reached,
    Use,
    spec_text,
)
from mlirules.generator.lowering.kernel import targets_of
from mlirules.generator.render import Templates
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import Line, Rule

__all__ = ["MAX_SPELLINGS", "Spec", "artefacts", "read_for", "transform_spec"]

#: More spellings of one computation than this are refused: each is a matcher to try on every op.
MAX_SPELLINGS = 200


@dataclass
class Spec:
    """A transform spec: its text, how many matchers each rule has, and what could not be said."""

    text: str
    matchers: Counter[str] = field(default_factory=Counter)
    refused: list[Fault] = field(default_factory=list)


@dataclass(frozen=True)
class _Guard:
    """A condition on one size that a match op can ask about."""

    line: Line
    symbol: str  # a dim's name
    bounds: Bounds


@dataclass(frozen=True)
class _Uses:
    """``one_use(x)``: asked about in the action, because no match op can."""

    line: Line
    name: str


def transform_spec(
    rules: Sequence[Rule],
    name: str,
    *,
    program: ir.Module | None = None,
    require: bool = True,
    kind: str = "cpu",
    templates: Templates | None = None,
) -> Spec:
    """The rules as one spec, called ``name``.

    ``kind`` is the kind of target that kernels are chosen for. ``program`` is a module at the
    preprocessing phase to write the spec for; without it the spec holds for any program. With
    ``require`` a compilation in which nothing applied fails. Rules that cannot be said are in
    ``refused``; the text is empty when none can be.
    """
    spec = Spec("")
    entries: list[Entry] = []
    ordered = sorted(rules, key=lambda r: (-r.benefit, r.order))
    for rule in ordered:
        try:
            found = list(dict.fromkeys(_entries(rule, program, kind)))
        except MlirulesError as error:
            spec.refused += error.faults
            continue
        entries += found
        spec.matchers[rule.name] = len(found)
    if entries:
        spec.text = spec_text(entries, name, require, templates)
        compiler.parse(spec.text, f"<spec {name}>")
    return spec


def read_for(path: Path, target: str) -> ir.Module:
    """The module of the program at ``path`` as the preprocessing phase for ``target`` has it."""
    text = read_program(path)
    lowered = compiler.lower_to(
        text, compiler.Job(Target.parse(target), path=str(path)), "preprocessing"
    )
    return compiler.parse(lowered, f"{path} at preprocessing")


def artefacts(spec: Spec, name: str, folder: Path) -> Artefacts:
    """A transform spec as ``NAME.transform.mlir``, and its flags, as files for ``folder``."""
    made = Artefacts(refused=[("transform", fault) for fault in spec.refused])
    if spec.text:
        file = f"{name}.transform.mlir"
        made.files[file] = spec.text
        flags = flags_file("transform", folder / file)
        if "vulkan" in targets_of(spec.text):
            flags += f"{compiler.WHOLE_BUFFERS}\n"
        made.files[f"{name}.transform.flags"] = flags
    return made


def _refuse(line: Line | None, rule: Rule, why: str, hint: str = "") -> MlirulesError:
    span = line.span if line is not None else rule.span
    return MlirulesError(
        Fault(
            span,
            "not-in-transform",
            why,
            hint or "the drivers of mlirules apply this rule: use it in a pipeline",
        )
    )


# ---------------------------------------------------------------- which ops to match


def _entries(rule: Rule, program: ir.Module | None, kind: str) -> Iterator[Entry]:
    if rule.match and any(op.startswith(("torch.", "torch_c.")) for op in rule.op_names):
        line = next(p.line for p in rule.match if p.op.startswith(("torch.", "torch_c.")))
        raise _refuse(
            line,
            rule,
            "a spec is applied when no torch op is left",
            "use --to pdl with iree-opt, or a pipeline stage",
        )
    if rule.other_roots:
        raise _refuse(
            rule.match[rule.other_roots[0]].line,
            rule,
            "a spec replaces one op and what only it reads",
        )
    structural, plain = _structural(rule)
    if program is not None:
        yield from _from_program(replace(rule, where=plain), program, structural, kind)
        return
    if rule.equation is None:
        raise _refuse(
            rule.match[-1].line,
            rule,
            "an op with its attributes is known from a program only",
            "give the program: --for FILE",
        )
    if len(rule.index_match) > 1:
        raise _refuse(
            rule.index_match[0][0],
            rule,
            "a chain of equations is known from a program only",
            "give the program: --for FILE",
        )
    guards, kept = _guards(rule, plain)
    yield from _from_equation(replace(rule, where=kept), guards, structural)


def _structural(rule: Rule) -> tuple[list[_Uses], list[tuple[Line, ast.Expr]]]:
    """The conditions on uses, and the others."""
    uses: list[_Uses] = []
    plain = []
    for line, expr in rule.where:
        asks = [
            n
            for n in walk_expression(expr)
            if isinstance(n, ast.Call) and n.fn in FUNCTIONS and FUNCTIONS[n.fn].structural
        ]
        if not asks:
            plain.append((line, expr))
        elif (
            isinstance(expr, ast.Call)
            and expr.fn == "one_use"
            and all(isinstance(a, ast.Name) for a in expr.args)
        ):
            uses += [_Uses(line, a.id) for a in expr.args if isinstance(a, ast.Name)]
        else:
            raise _refuse(line, rule, "no match op answers this question about uses")
    return uses, plain


def _guards(
    rule: Rule, where: list[tuple[Line, ast.Expr]]
) -> tuple[list[_Guard], list[tuple[Line, ast.Expr]]]:
    """The conditions on sizes that match ops can ask, and those that must hold for any size."""
    for line, decl in rule.types.values():
        if any(d.expr is not None for d in decl.dims or ()):
            raise _refuse(line, rule, "no match op computes with sizes")
    dims = {
        d.value
        for _, decl in rule.types.values()
        for d in decl.dims or ()
        if isinstance(d.value, str) and not d.pack
    }
    guards: list[_Guard] = []
    kept = []
    for line, expr in where:
        parts = _guard(line, expr, dims)
        if parts is None:
            kept.append((line, expr))
        else:
            guards += parts
    return guards, kept


def _guard(line: Line, expr: ast.Expr, dims: set[str]) -> list[_Guard] | None:
    match expr:
        case ast.Binary(op="and", left=left, right=right):
            a, b = _guard(line, left, dims), _guard(line, right, dims)
            return None if a is None or b is None else a + b
        case ast.Call(fn="divisible", args=(ast.Name(id=d), ast.Literal(value=int() as n))):
            found = [_Guard(line, d, Bounds(multiple=n))]
        case ast.Binary(
            op="==",
            left=ast.Binary(op="%", left=ast.Name(id=d), right=ast.Literal(value=int() as n)),
            right=ast.Literal(value=0),
        ):
            found = [_Guard(line, d, Bounds(multiple=n))]
        case ast.Binary(op=op, left=ast.Name(id=d), right=ast.Literal(value=int() as n)):
            bounds = {
                ">=": [Bounds(low=n)],
                ">": [Bounds(low=n + 1)],
                "<=": [Bounds(high=n)],
                "<": [Bounds(high=n - 1)],
                "==": [Bounds(low=n), Bounds(high=n)],
            }.get(op)
            if bounds is None:
                return None
            found = [_Guard(line, d, bound) for bound in bounds]
        case _:
            return None
    return found if all(g.symbol in dims for g in found) else None


def _from_program(rule: Rule, program: ir.Module, uses: list[_Uses], kind: str) -> Iterator[Entry]:
    matcher = Matcher(rule, program.context)
    around = Around(kind, Frozen(program.operation).dead)
    refusals: list[Refusal] = []
    found = False
    for op in ops_of(program.operation):
        if op.name not in rule.root_ops:
            continue
        match = matcher.match(op, around)
        if isinstance(match, Refusal):
            if match.error is not None:
                raise match.error
            refusals.append(match)
            continue
        found = True
        yield _entry(rule, match, [], uses, op)
    if not found:
        best = max(refusals, key=lambda r: r.depth, default=None)
        line = best.line if best is not None else None
        why = best.message if best is not None else f"the program holds no {rule.root_ops[0]}"
        raise _refuse(
            line,
            rule,
            f"matches nothing in the program: {why}",
            "mlirules explain tells more about each op",
        )


def _from_equation(rule: Rule, guards: list[_Guard], uses: list[_Uses]) -> Iterator[Entry]:
    assert rule.equation is not None
    line, equation = rule.equation
    context = compiler.context()
    matcher = Matcher(rule, context)
    refusals: list[Refusal] = []
    entries: list[Entry] = []
    for env in environments(rule):
        spelt: dict[str, Entry] = {}
        tried = 0
        for module in spellings(rule, line, equation, env, context):
            tried += 1
            if tried > 4 * MAX_SPELLINGS:
                break
            op = root_of(module)
            if op is None:
                continue
            match = matcher.match(op)
            if isinstance(match, Refusal):
                refusals.append(match)
                if _for_every_spelling(rule, match):
                    break
                continue
            entry = _entry(rule, match, guards, uses, op)
            spelt.setdefault(entry.dag, entry)
        if len(spelt) > MAX_SPELLINGS or tried > 4 * MAX_SPELLINGS:
            raise _refuse(
                line,
                rule,
                f"it can be spelt in more than {MAX_SPELLINGS} ways",
                "give the program: --for FILE",
            )
        entries += spelt.values()
    if not entries:
        # A fault comes first: there the conditions held, and only the sizes were missing.
        errors = [refusal.error for refusal in refusals if refusal.error is not None]
        if errors:
            fault = errors[0].faults[0]
            raise MlirulesError(
                Fault(
                    fault.span,
                    "not-in-transform",
                    "the rewrite needs sizes that a spec for any program does not know: "
                    + fault.message.splitlines()[0],
                    "give the program: --for FILE",
                )
            )
        best = max(refusals, key=lambda r: r.depth, default=None)
        if best is None:
            raise _refuse(
                line, rule, "no op is known that computes this", "give the program: --for FILE"
            )
        raise _refuse(
            best.line,
            rule,
            f"cannot be said for sizes that are not known: {best.message}",
            "give the program: --for FILE",
        )
    yield from entries


# ---------------------------------------------------------------- one matcher and its action


class _Dag:
    """The matched ops written out, from the root up to the values that the rule binds."""

    def __init__(self, match: Match, root: ir.Operation) -> None:
        self.root = root
        self.bound: dict[ir.Value, list[str]] = {}
        for name, value in match.values.items():
            if isinstance(value, ir.Value) and value.owner not in match.inner:
                self.bound.setdefault(value, []).append(name)
        self.inputs: list[ir.Value] = []
        self.steps: list[Op] = []
        finish(self._before(root))

    def _before(self, op: Op) -> Steps:
        """Add ``op`` to the steps, after what feeds it."""
        for value in op.operands:
            if value in self.bound or not self.followed(op, value):
                if value not in self.inputs:
                    self.inputs.append(value)
            elif not isinstance(value.owner, ir.Block) and value.owner not in self.steps:
                yield self._before(value.owner)
        if op not in self.steps:
            self.steps.append(op)

    @staticmethod
    def followed(op: Op, value: ir.Value) -> bool:
        """Whether what gives ``value`` is part of the pattern: not what a result starts from."""
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name == "tensor.empty":
            return False
        return not (op.name == "linalg.fill" and value == op.operands[-1])

    def text(self) -> str:
        """The region of the match op: a block with the inputs as arguments."""
        types = [str(v.type) for v in self.inputs]
        args = ", ".join(f"%in{i}: {t}" for i, t in enumerate(types))
        context = self.root.context
        module = compiler.parse(f"func.func @dag({args}) {{\n  return\n}}\n", "<dag>", context)
        function = module.body.operations[0]
        block = function.regions[0].blocks[0]
        values: dict[ir.Value, ir.Value] = dict(zip(self.inputs, block.arguments, strict=True))
        for op in self.steps:
            new = op.clone(ir.InsertionPoint(block.operations[len(block.operations) - 1]))
            for i, value in enumerate(op.operands):
                new.operands[i] = values[value]
            values.update(zip(op.results, new.results, strict=True))
        rows = function.operation.get_asm(use_local_scope=True).splitlines()
        head = re.sub(r"^.*?\((.*)\).*$", r"\1", rows[0])
        return "\n".join([f"^bb0({head}):", *rows[1:-2]])

    def path(self, value: ir.Value) -> Reached | None:
        """How ``value`` is reached from the root; None when it is not."""
        if value in list(self.root.results):
            return Reached((), list(self.root.results).index(value), result=True)

        way = self._way(value)
        if way is None:
            return None
        *through, number = way
        return Reached(tuple(through), number)

    def _way(self, value: ir.Value) -> list[int] | None:
        """From the root, the operand to follow at every op up to the one that is ``value``."""
        seen: list[Op] = []
        left: list[tuple[Op, list[int]]] = [(self.root, [])]
        while left:
            op, way = left.pop()
            if op in seen:
                continue
            seen.append(op)
            further: list[tuple[Op, list[int]]] = []
            for i, operand in enumerate(op.operands):
                if operand == value:
                    return [*way, i]
                owner = operand.owner
                if not isinstance(owner, ir.Block) and owner in self.steps:
                    further.append((owner, [*way, i]))
            left += reversed(further)
        return None


def _inside(op: Op) -> list[ir.Operation]:
    return [
        inner.operation
        for region in op.regions
        for block in region.blocks
        for inner in block.operations
    ]


def _captures(inner: ir.Operation, op: Op) -> bool:
    """Whether an op of a body reads a value from outside the body."""
    for value in inner.operands:
        owner = value.owner
        if isinstance(owner, ir.Block):
            if owner.owner != op:
                return True
        elif owner.parent != op:
            return True
    return False


def _entry(
    rule: Rule, match: Match, guards: list[_Guard], uses: list[_Uses], op: ir.Operation
) -> Entry:
    dag = _Dag(match, op)
    for step in dag.steps:
        if any(inner.name == "arith.constant" or _captures(inner, step) for inner in _inside(step)):
            at = rule.equation[0] if rule.equation is not None else rule.root.line
            raise _refuse(
                at,
                rule,
                "the body computes with a value from outside (IREE keeps the "
                "constants of bodies there), and no match op follows it",
            )
    lowered = match.rewrite.lowered
    if lowered.slots:
        raise _refuse(rule.made_by, rule, "a constant of the program cannot be passed on")
    by_path = {a.path: a for a in lowered.arguments}
    arguments, renamed = [], {}
    for i, value in enumerate(dag.inputs):
        used = [by_path[n] for n in dag.bound.get(value, ()) if n in by_path]
        for argument in used:
            if argument.form != "raw":
                raise _refuse(rule.made_by, rule, f"{argument.path} is not a builtin tensor")
        arguments.append((used[0].ssa if used else f"%unused_{i}", str(value.type)))
        renamed.update({a.ssa: used[0].ssa for a in used[1:]})
    inner = {
        n for n, v in match.values.items() if isinstance(v, ir.Value) and v.owner in match.inner
    }
    for path in by_path:
        if path in inner:
            raise _refuse(
                rule.made_by, rule, f"the rewrite reads {path}, which the match computes inside"
            )
    function, mark, executable = lowered.text.partition("\nstream.executable ")
    name = re.search(r"@(\w+)", executable)
    kernel = (name[1], "stream.executable " + executable.rstrip()) if name and mark else None
    rows = function.rstrip().splitlines()
    types = re.match(r"func\.func @rewrite\(.*\) -> (\(.*\)) \{$", rows[0])
    assert types is not None
    body = "\n".join(rows[1:-1])
    for old, new in renamed.items():
        body = re.sub(re.escape(old) + r"\b", new, body)
    body = re.sub(r"^  return\b", "  util.return", body, flags=re.MULTILINE)
    return Entry(
        rule,
        dag.text(),
        tuple(_placed(rule, match, dag, guard) for guard in guards),
        tuple(_asked(rule, match, dag, use) for use in uses),
        Function(tuple(arguments), types.group(1), body, kernel),
    )


def _placed(rule: Rule, match: Match, dag: _Dag, guard: _Guard) -> Guard:
    """A condition on a size, with the value that it is asked of."""
    place = _place(rule, match, dag, guard.symbol)
    if place is None:
        raise _refuse(guard.line, rule, f"no operand of the match has {guard.symbol} as a dim")
    return Guard(*place, guard.bounds)


def _for_every_spelling(rule: Rule, refusal: Refusal) -> bool:
    """Whether a refusal is about types alone, so that no other spelling can do better."""
    if refusal.line is None or refusal.line.section not in ("types", "where"):
        return False
    asked = [expr for line, expr in rule.where if line == refusal.line]
    return not any(
        isinstance(n, ast.Name) and n.id == "op" for expr in asked for n in walk_expression(expr)
    )


def _place(rule: Rule, match: Match, dag: _Dag, symbol: str) -> tuple[Reached, int] | None:
    """How to get at a value that has ``symbol`` as a dim, and at which axis."""
    for name, (_, decl) in rule.types.items():
        dims = decl.dims or ()
        fixed = [d.value for d in dims]
        if symbol not in fixed:
            continue
        axis = fixed.index(symbol)
        if any(d.pack for d in dims[:axis]):
            continue
        value = match.values.get(name)
        if value is None and name in rule.root_results:
            value = dag.root.results[rule.root_results.index(name)]
        path = dag.path(value) if isinstance(value, ir.Value) else None
        if path is not None:
            return path, axis
    return None


def _asked(rule: Rule, match: Match, dag: _Dag, use: _Uses) -> Use:
    """A condition on uses, with the value that it is about."""
    value = match.values.get(use.name)
    if value is None and use.name in rule.root_results:
        value = dag.root.results[rule.root_results.index(use.name)]
    if isinstance(value, ir.OpResult) and value.owner in dag.steps:
        reached = dag.path(value)
        if reached is not None:
            return Use(reached, value.result_number)
    raise _refuse(use.line, rule, f"{use.name} is not the result of an op of the match")
