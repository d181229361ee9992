"""Ops and their operands against the op patterns of a rule."""

from __future__ import annotations

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.attempt import State, refuse
from mlirules.drivers.match.lists import Lists
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.match.values import (
    MAX_TEXT,
    NOT_CONSTANT,
    attribute_value,
    constant_of,
    elements_of,
    is_elements,
    owner_of,
    runtime_value,
)
from mlirules.language.evaluate import Evaluator
from mlirules.language.notation import ast
from mlirules.language.rule import REGIONS, WRITTEN, Line, OpPattern, Rule, list_item, nested_calls
from mlirules.language.values import Attribute
from mlirules.language.words import source, spelt


class Structure(Lists):
    """Matches the ops of a rule, from the root to what feeds it. Holds nothing of an attempt."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.other_roots = rule.other_roots
        self.root_results = rule.root_results
        self.commutative = frozenset(rule.commutative)
        self.alternatives = any(p.op in self.commutative for p in rule.match)
        calls = [c.fn for p in rule.match for c in nested_calls(p.equation.call)]
        each = [p.op for p in rule.match if p.equation.each]
        again = [s.call.fn for _, s in rule.rewrite if isinstance(s, ast.OpEquation)]
        #: The variables that stand for several ops, whose attributes count.
        self.repeated = {n for n in rule.variables if calls.count(n) > 1 or n in (*each, *again)}

    def choices(self) -> list[tuple[bool, ...]]:
        """Every way to exchange the operands of commutative ops."""
        if not self.alternatives:
            return [()]
        count = _commutative_count(self.rule, self.commutative)
        return [tuple(bool(n >> i & 1) for i in range(count)) for n in range(1 << min(count, 6))]

    def op(
        self, pattern: OpPattern, number: int, op: Op, state: State, swaps: tuple[bool, ...]
    ) -> None:
        """Match an op against the pattern with this number, and what feeds it."""
        line = pattern.line
        if number in state.ops:
            if state.ops[number] != op:
                refuse(
                    state,
                    Refusal(
                        line,
                        f"two different {op.name} where the rule has one",
                        "the same op",
                        "another one",
                        state.depth,
                        at=op,
                    ),
                )
            return
        state.ops[number] = op
        if not self.call(line, pattern.equation.call, op, state, swaps):
            return
        results = self.result_names(pattern, op)
        if len(results) != len(op.results):
            refuse(
                state,
                Refusal(
                    line,
                    f"{op.name} has {len(op.results)} results, not {len(results)}",
                    f"{len(results)} results",
                    f"{len(op.results)} results",
                    state.depth,
                    at=op,
                ),
            )
            return
        for name, value in zip(results, op.results, strict=True):
            if name and number != len(self.rule.match) - 1 and number not in self.other_roots:
                state.values.setdefault(name, value)

    @staticmethod
    def result_names(pattern: OpPattern, op: Op) -> list[str | None]:
        """A name for every result of ``op``; a pack ``ys...`` names the rest ``ys#0``, ``ys#1``."""
        names = list(pattern.equation.results)
        if pattern.equation.pack:
            last = names.pop()
            count = len(op.results) - len(names)
            names += [None if last is None else f"{last}#{i}" for i in range(count)]
        return names

    def names_of_results(self, op: Op) -> list[str | None]:
        """A name for every result of the root."""
        if self.rule.equation is not None:
            return self.root_results
        return self.result_names(self.rule.root, op)

    def call(
        self, line: Line, call: ast.Call, op: Op, state: State, swaps: tuple[bool, ...]
    ) -> bool:
        """Match an op and what feeds it. False (explaining only): it is another op altogether."""
        if not self._named(line, call, op, state):
            return False
        state.depth += 1
        for key, value in call.attrs:
            self._attribute(line, key, value, op, state)
        operands = list(op.operands)
        args = call.args
        if any(isinstance(a, ast.Pack) for a in args):
            return self.sequence(line, call, operands, state, swaps)
        if len(operands) != len(args):
            refuse(
                state,
                Refusal(
                    line,
                    f"{op.name} has {len(operands)} operands, not {len(args)}",
                    f"{len(args)} operands",
                    f"{len(operands)} operands",
                    state.depth,
                    call,
                    at=op,
                ),
            )
            return False
        if call.fn in self.commutative and len(operands) >= 2 and swaps:
            at = self._swap_index(call)
            if at < len(swaps) and swaps[at]:
                operands[0], operands[1] = operands[1], operands[0]
        elif call is state.swapped and len(operands) >= 2:
            operands[0], operands[1] = operands[1], operands[0]
        for arg, operand in zip(args, operands, strict=True):
            self.operand(line, arg, operand, state, swaps)
        return True

    def _swap_index(self, call: ast.Call) -> int:
        at = 0
        for pattern in self.rule.match:
            for inner in nested_calls(pattern.equation.call):
                if inner is call:
                    return at
                if inner.fn in self.commutative:
                    at += 1
        return at

    def operand(
        self, line: Line, arg: ast.Expr, value: ir.Value, state: State, swaps: tuple[bool, ...]
    ) -> None:
        """Match a value against what the pattern has in its place."""
        match arg:
            case ast.Wildcard():
                return
            case ast.Name(id=name):
                if name in self.lists:
                    items = (ast.Pack(arg.pos, arg.end, name),)
                    whole = ast.ListExpr(arg.pos, arg.end, items)
                    self.operand(line, whole, value, state, swaps)
                    return
                defined = self.by_result.get(name)
                if defined is not None and defined[0] != len(self.rule.match) - 1:
                    number, result = defined
                    owner = owner_of(value)
                    pattern = self.rule.match[number]
                    head = pattern.equation.call
                    node = ast.Node(head.pos, head.pos + len(head.fn))
                    if owner is None or not self.rule.may_be(pattern.op, owner.name):
                        wanted_op = self.rule.spelt(pattern.op)
                        made_by = "an argument" if owner is None else owner.name
                        said = (
                            f"{name} is an argument, not the result of {wanted_op}"
                            if owner is None
                            else f"{name} is the result of {made_by}, not of {wanted_op}"
                        )
                        at_line, at = self.asked(pattern.line, head, owner, node)
                        refuse(
                            state,
                            Refusal(at_line, said, wanted_op, made_by, state.depth, at, at=owner),
                        )
                        return
                    self.op(pattern, number, owner, state, swaps)
                    if owner.results[result] != value:
                        refuse(
                            state,
                            Refusal(
                                pattern.line,
                                f"{name} is another result of {pattern.op}",
                                f"result {result}",
                                "another result",
                                state.depth,
                                node,
                                at=owner,
                            ),
                        )
                        return
                    state.inner.append(owner)
                    state.values.setdefault(name, value)
                    return
                known = state.values.get(name)
                if known is not None and known != value:
                    refuse(
                        state,
                        Refusal(
                            line,
                            f"{name} stands for two different values here",
                            f"the same value as the other {name}",
                            "another value",
                            state.depth,
                            arg,
                        ),
                    )
                    return
                state.values[name] = value
                state.depth += known is None
            case ast.Call():
                owner = owner_of(value)
                if owner is None:
                    refuse(
                        state,
                        Refusal(
                            line,
                            f"an argument where the result of {self.rule.spelt(arg.fn)} is needed",
                            self.rule.spelt(arg.fn),
                            "an argument",
                            state.depth,
                            arg,
                        ),
                    )
                    return
                self.call(line, arg, owner, state, swaps)
                state.inner.append(owner)
            case ast.ListExpr():
                owner = owner_of(value)
                if owner is None or owner.name != "torch.prim.ListConstruct":
                    made_by = owner.name if owner else "an argument"
                    refuse(
                        state,
                        Refusal(
                            line,
                            f"{made_by} where a list made in place is needed",
                            "torch.prim.ListConstruct",
                            made_by,
                            state.depth,
                            arg,
                            at=owner,
                        ),
                    )
                    return
                state.inner.append(owner)
                elements = list(owner.operands)
                self.sequence(line, arg, elements, state, swaps)
            case ast.Access():
                listed = list_item(arg)
                assert listed is not None  # the checker admits no other
                self.bind_item(line, arg, listed[0], value, state, swaps)
            case ast.Literal(value=wanted):
                found = constant_of(value)
                if found is NOT_CONSTANT:
                    refuse(
                        state,
                        Refusal(
                            line,
                            f"not the constant {spelt(wanted)}, but {runtime_value(value)}",
                            spelt(wanted),
                            runtime_value(value),
                            state.depth,
                            arg,
                        ),
                    )
                    return
                if type(found) is not type(wanted) or found != wanted:
                    refuse(
                        state,
                        Refusal(
                            line,
                            f"the constant is {spelt(found)}, not {spelt(wanted)}",
                            spelt(wanted),
                            spelt(found),
                            state.depth,
                            arg,
                        ),
                    )
                    return
                state.depth += 1
            case _:
                refuse(state, Refusal(line, "cannot be matched", node=arg))

    def _named(self, line: Line, call: ast.Call, op: Op, state: State) -> bool:
        """Whether an op has the name asked for; notes what a variable stands for."""
        head = ast.Node(call.pos, call.pos + len(call.fn))
        # Of the root the condition itself says it, when all else fits.
        root = call is self.rule.root.equation.call and "." not in call.fn
        if not root and not self.rule.may_be(call.fn, op.name):
            wanted = self.rule.spelt(call.fn)
            at_line, at = self.asked(line, call, op, head)
            said = f"the op is {op.name}, not {wanted}"
            refuse(state, Refusal(at_line, said, wanted, op.name, state.depth, at, at=op))
            return False
        if "." in call.fn:
            return True
        known = state.symbols.get(call.fn)
        attributes = _written(op) if call.fn in self.repeated else ""
        if known is None:
            state.symbols[call.fn] = op.name
            state.symbols[call.fn + WRITTEN] = attributes
            return True
        if known == op.name and REGIONS != attributes == state.symbols[call.fn + WRITTEN]:
            return True
        differ = "with other attributes" if known == op.name else f"not {known}"
        refuse(
            state,
            Refusal(
                line,
                f"{call.fn} stands for two different ops here: {op.name}, {differ}",
                known,
                op.name,
                state.depth,
                head,
                at=op,
            ),
        )
        return False

    def _attribute(self, line: Line, key: str, value: ast.Expr, op: Op, state: State) -> None:
        try:
            found = op.attributes[key]
        except KeyError:
            refuse(
                state,
                Refusal(
                    line,
                    f"the op has no attribute {key}",
                    key,
                    "nothing",
                    state.depth,
                    value,
                    at=op,
                ),
            )
            return
        if isinstance(value, ast.Name):
            known = state.values.setdefault(value.id, found)
            if known != found:
                refuse(
                    state,
                    Refusal(
                        line,
                        f"{value.id} stands for two different attributes here",
                        str(known)[:60],
                        str(found)[:60],
                        state.depth,
                        value,
                        at=op,
                    ),
                )
            return
        if isinstance(value, ast.Wildcard):
            return
        plain = attribute_value(found)
        if plain is None and is_elements(found):
            plain = elements_of(found)
        if isinstance(value, ast.ListExpr):
            self._attribute_items(line, key, value, plain, op, state)
            return
        wanted = Evaluator({}).eval(value)
        if isinstance(wanted, Attribute):
            plain, wanted = str(found)[:MAX_TEXT], wanted.text
        if plain != wanted or isinstance(plain, bool) != isinstance(wanted, bool):
            refuse(
                state,
                Refusal(
                    line,
                    f"{key} is {spelt(plain)}, not {spelt(wanted)}",
                    f"{key} = {spelt(wanted)}",
                    f"{key} = {spelt(plain)}",
                    state.depth,
                    value,
                    at=op,
                ),
            )
            return
        state.depth += 1

    def _attribute_items(
        self, line: Line, key: str, pattern: ast.ListExpr, plain: object, op: Op, state: State
    ) -> None:
        """An array attribute, item by item: numbers are compared, names bound."""
        items = list(pattern.items)
        rest = items.pop() if items and isinstance(items[-1], ast.Pack) else None

        def no(found: str) -> None:
            wanted = source(pattern)
            message = f"{key} is {found}, not {wanted}"
            refuse(state, Refusal(line, message, wanted, found, state.depth, pattern, at=op))

        if not isinstance(plain, list):
            no(spelt(plain) if plain is not None else "no list")
            return
        if len(plain) < len(items) or (rest is None and len(plain) > len(items)):
            no(spelt(plain))
            return
        pairs: list[tuple[ast.Expr, object]] = list(zip(items, plain, strict=False))
        if isinstance(rest, ast.Pack) and rest.id:
            node = ast.Name(rest.pos, rest.end, rest.id)
            pairs.append((node, plain[len(items) :]))
        for item, found in pairs:
            if isinstance(item, ast.Name):
                if state.symbols.setdefault(item.id, _frozen(found)) != _frozen(found):
                    no(spelt(plain))
                    return
            elif isinstance(item, ast.ListExpr):
                self._attribute_items(line, key, item, found, op, state)
            elif not isinstance(item, ast.Wildcard):
                wanted = Evaluator({}).eval(item)
                if found != wanted or isinstance(found, bool) != isinstance(wanted, bool):
                    no(spelt(plain))
                    return
        state.depth += 1


def _written(op: Op) -> str:
    """The attributes of an op, for another one like it; ``REGIONS`` where it has more."""
    if len(op.regions) or len(op.successors):
        return REGIONS
    return ", ".join(f'"{name}" = {op.attributes[name]}' for name in op.attributes)


def _frozen(value: object) -> object:
    """A plain value as one that can be part of a key."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _commutative_count(rule: Rule, commutative: frozenset[str]) -> int:
    return sum(1 for p in rule.match for c in nested_calls(p.equation.call) if c.fn in commutative)
