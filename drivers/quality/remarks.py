"""What a rule's own text and tests leave open, though nothing in them is wrong.

An operand that is read transposed passes every test whose sizes are equal, a rule whose tests
compare no numbers may compute anything, and a rule may never get a turn beside other ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.results import Match
from mlirules.drivers.measure import numerics
from mlirules.drivers.quality.ruletest import run_test
from mlirules.language import consent
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.model import Test
from mlirules.language.native import native
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import BodyText, Line, Rule, defined_names

__all__ = ["alike", "left_open", "said_equal", "shadowed_by", "unequal_sizes", "untrue"]

#: Applications to one small program.
_BOUND = 200
#: Ops and functions of single bits.
_BITS = re.compile(
    r"bitwise_|__i?(and|or|xor|lshift|rshift)__|\b(bit(and|or|xor)|sh[lr])\(|"
    r"arith\.(andi|ori|xori|shli|shrui|shrsi)\b"
)
_BIT_FUNCTIONS = frozenset(["bitand", "bitor", "bitxor", "shl", "shr"])
_OF_TRUTH = frozenset(["==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in"])
#: Tests that draw no larger numbers set two or three bits.
_LOW = 8


def unequal_sizes(rule: Rule) -> Iterator[Fault]:
    """Loop indices that run over dims of two names: the rule holds only where those are equal."""
    equal = said_equal(rule)
    held: set[str] = set()
    for line, made in [*rule.index_match, *rule.rewrite]:
        if isinstance(made, ast.IndexEquation):
            yield from _indices(rule, line, made, equal, held)
        if not isinstance(made, BodyText):
            held |= defined_names(made)


def _indices(
    rule: Rule, line: Line, made: ast.IndexEquation, equal: set[frozenset[str]], held: set[str]
) -> Iterator[Fault]:
    bounded = {bound.id for bound in made.bounds}
    accesses: list[tuple[str, Sequence[ast.Expr]]] = []
    if made.target not in held:  # else a part of it may be written
        accesses.append((made.target, made.indices))
    accesses += [
        (access.base.id, access.items)
        for access in walk_expression(made.value)
        if isinstance(access, ast.Access) and isinstance(access.base, ast.Name)
    ]
    first: dict[str, tuple[str, str]] = {}
    told: set[str] = set()
    for name, items in accesses:
        decl = rule.types[name][1] if name in rule.types else None
        dims = decl.dims if decl is not None else None
        if dims is None or len(dims) != len(items) or any(d.pack for d in dims):
            continue
        for item, dim in zip(items, dims, strict=True):
            if not isinstance(item, ast.Name) or not isinstance(dim.value, str):
                continue
            size, where = first.setdefault(item.id, (dim.value, name))
            pair = frozenset((size, dim.value))
            if len(pair) == 1 or pair in equal or item.id in bounded or item.id in told:
                continue
            told.add(item.id)
            yield Fault(
                line.text.span(item.pos, max(1, item.end - item.pos)),
                "unequal-sizes",
                f"{item.id} runs over {size} in {where} and over {dim.value} in {name}: "
                f"that fits only where {size} and {dim.value} are equal",
                f"exchange the indices of {name} where it is read transposed, or say "
                f"`{size} == {dim.value}` in `where:`",
            )


def said_equal(rule: Rule) -> set[frozenset[str]]:
    """The pairs of names that a rule's conditions say are equal."""
    found: set[frozenset[str]] = set()
    for _, condition in rule.where:
        for e in walk_expression(condition):
            if isinstance(e, ast.Binary) and e.op == "==":
                names = frozenset(n.id for n in (e.left, e.right) if isinstance(n, ast.Name))
                found.add(names)
    return found


# ---------------------------------------------------------------- tests


def left_open(rule: Rule, session: Session | None = None) -> Iterator[Fault]:
    """What no test of the rule would notice, as remarks."""
    computes = any(isinstance(m, (ast.IndexEquation, BodyText)) for _, m in rule.rewrite)
    positive = [test for test in rule.tests if test.input is not None]
    if (computes or rule.variants) and not any(test.run for test in positive):
        yield Fault(
            rule.source.span_at(("tests",), key=True),
            "no-numbers",
            f"{rule.name} computes, and none of its tests compares numbers",
            "give a test `run: {devices: [cpu]}`",
            "note",
        )
    yield from _low_bits(rule)
    yield from alike(rule, session or current())


def _low_bits(rule: Rule) -> Iterator[Fault]:
    """Rules that compute with the bits of integers of which their tests set the lowest alone."""
    ops = " ".join(matched.op for matched in rule.match)
    if not _BITS.search(ops) and not any(
        _of_bits(line, made) for line, made in [*rule.index_match, *rule.rewrite]
    ):
        return
    drawn = []
    for test in rule.tests:
        if test.input is None or test.run is None:
            continue
        if test.run.inputs is not None or max(-test.run.low, test.run.high) > _LOW:
            return
        try:
            _, arguments = numerics.signature(test.input)
        except MlirulesError:
            continue
        if any(re.fullmatch(r"[su]?i\d+", element) and element != "i1" for _, element in arguments):
            drawn.append(test)
    if drawn:
        yield Fault(
            rule.source.span_at(("tests", rule.tests.index(drawn[0]), "run"), key=True),
            "low-bits",
            f"{rule.name} computes with bits, and its tests draw whole numbers up to "
            f"{_high(drawn)}: none sets a higher bit",
            "give `run:` a `low:` and `high:` as wide as the type, or `inputs:`",
            "note",
        )


def _of_bits(line: Line, made: ast.Statement | BodyText) -> bool:
    """Whether a line computes with single bits of integers."""
    if not isinstance(made, ast.IndexEquation | ast.Assignment):
        return bool(_BITS.search(str(line)))
    return any(
        isinstance(e, ast.Call) and e.fn in _BIT_FUNCTIONS and not _is_truth(e)
        for e in walk_expression(made.value)
    )


def _is_truth(expr: ast.Expr) -> bool:
    """Whether an expression says by itself that it is a truth value, which has one bit."""
    left = [expr]
    while left:
        match left.pop():
            case ast.Call(fn=fn, args=args) if fn in _BIT_FUNCTIONS:
                left += args
            case ast.Conditional(then=a, otherwise=b):
                left += (a, b)
            case ast.Call(fn="i1") | ast.Unary(op="not"):
                pass
            case ast.Binary(op=op) if op in _OF_TRUTH:
                pass
            case _:
                return False
    return True


def _high(tests: Sequence[Test]) -> str:
    return f"{max(test.run.high for test in tests if test.run is not None):g}"


def untrue(rule: Rule, session: Session | None = None) -> Iterator[Fault]:
    """What a rule's tests say of it that is not so: applications, refusals, lines of the result.

    The rule is applied to the tests' programs; nothing is compiled and nothing runs.
    """
    need = native(rule)
    if need is not None and not consent.admitted(need):
        return
    for test in rule.tests:
        yield from run_test(rule, test, devices=[], session=session).faults


def alike(rule: Rule, session: Session) -> Iterator[Fault]:
    """Sizes of one tensor that are equal in every test: its dims may be exchanged, unnoticed."""
    pairs: dict[tuple[str, str], str] = {}
    for name, (_, decl) in rule.types.items():
        sizes = [d.value for d in decl.dims or () if isinstance(d.value, str) and not d.pack]
        for i, a in enumerate(sizes):
            pairs |= {(a, b): name for b in sizes[i + 1 :] if a != b and (a, b) not in pairs}
    need = native(rule)
    if not pairs or (need is not None and not consent.admitted(need)):
        return
    matched = [m.env for m in _matches(rule, session)]
    equal = said_equal(rule)
    for (a, b), name in pairs.items():
        held = [(env.get(a), env.get(b)) for env in matched]
        if not held or frozenset((a, b)) in equal:
            continue
        if all(isinstance(m, int) and m == n for m, n in held):
            shown = " or ".join(sorted({str(m) for m, _ in held}))
            yield Fault(
                rule.types[name][0].span,
                "sizes-coincide",
                f"{a} and {b} of {name} are equal in every test ({shown}): none would notice "
                "its dims exchanged",
                f"give a test other sizes for {a} and {b}",
                "note",
            )


def _matches(rule: Rule, session: Session) -> Iterator[Match]:
    matcher = Engine([rule], session.context).matchers[rule.name]
    for test in rule.tests:
        if test.input is None:
            continue
        try:
            module = parsed(test.input, rule.path, session)
        except MlirulesError:
            continue
        for op in ops_below(module.operation):
            if op.name in rule.root_ops:
                found = matcher.match(op)
                if isinstance(found, Match):
                    yield found


# ---------------------------------------------------------------- beside other rules


def shadowed_by(
    rules: Sequence[Rule], others: Sequence[Rule], session: Session | None = None
) -> list[Fault]:
    """Those of ``rules`` that apply to none of their own tests' programs beside ``others``.

    Whatever their roots are: all of them are run together, as one stage with ``others`` first.
    """
    session = session or current()
    out = []
    for rule in rules:
        beside = [other for other in others if other.name != rule.name]
        together = Engine([*beside, rule], session.context)
        alone = Engine([rule], session.context)
        taken: dict[str, str] = {}
        applies = False
        for test in rule.tests:
            if test.input is None or applies:
                continue
            if not _counts(alone, test.input, rule, session).get(rule.name):
                continue
            counts = _counts(together, test.input, rule, session)
            applies = bool(counts.get(rule.name))
            taken |= {name: test.input for name in counts if name != rule.name}
        if applies or not taken:
            continue
        named = {other.name: other for other in beside}
        who = ", ".join(f"{name} ({named[name].span})" for name in taken)
        program = next(iter(taken.values()))
        out.append(
            Fault(
                rule.span,
                "shadowed",
                f"{rule.name} never applies beside {who}: its tests' programs are taken before it",
                f"give it a higher `benefit`, or a stage before theirs; for example\n"
                f"{program.rstrip()}",
                "warning",
            )
        )
    return out


def _counts(engine: Engine, text: str, rule: Rule, session: Session) -> dict[str, int]:
    try:
        module = parsed(text, rule.path, session)
        options = Options(driver="greedy", bound=_BOUND, fold=False)
        return dict(engine.run(module, options).counts)
    except MlirulesError:
        return {}
