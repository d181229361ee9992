"""Which ops programs are made of: named sets, and lists of ops whose operands the rules name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlirules.drivers.discover.terms import Axis, Code, Scalar, Sizes, Type, refs, sizes_of
from mlirules.drivers.prove.expr import Int
from mlirules.drivers.prove.meanings import Meanings
from mlirules.language.faults import MlirulesError
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_statement
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Rule
from mlirules.language.values import dtype_named

FILE = Path(__file__).with_name("sets.yaml")

#: Codes of element types as PyTorch numbers them.
CODES = {"f16": 5, "f32": 6, "f64": 7, "bf16": 15, "i1": 11, "si64": 4}


@dataclass(frozen=True)
class Hole:
    """A tensor operand of an operator: the how-manieth in the program's order."""

    name: str


@dataclass(frozen=True)
class Operator:
    """An op with its constants; where a tensor stands there is a :class:`Hole`."""

    op: str
    args: tuple[object, ...]

    @property
    def holes(self) -> int:
        """How many tensors it takes."""
        return sum(isinstance(a, Hole) for a in flat(self.args))


@dataclass
class OpSet:
    """What programs are made of."""

    name: str
    size: int
    dtypes: tuple[str, ...]
    leaves: dict[str, Type]
    scalars: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    literals: tuple[float | int, ...] = ()
    shapes: tuple[tuple[Int, ...], ...] = ()
    operators: list[Operator] = field(default_factory=list)
    #: Ops whose result has the element type of an operand that is not the first: which one.
    results: dict[str, int] = field(default_factory=dict)
    #: Dims that leaves are written in.
    dims: tuple[str, ...] = ()

    @property
    def ops(self) -> set[str]:
        """The names of its ops."""
        return {t.op for t in self.operators}

    @property
    def signature(self) -> str:
        """What tells it from other sets."""
        listed = [self.size, self.dtypes, self.leaves, self.scalars, self.numbers, self.operators]
        return repr(listed)

    @property
    def rank(self) -> int:
        """The highest rank of a leaf or of a shape."""
        return max([len(t.shape) for t in self.leaves.values()] + [len(s) for s in self.shapes])


def result_element(
    op: str, args: Sequence[object], elements: Mapping[int, str], results: Mapping[str, int]
) -> str | None:
    """The element type that an op's result is told to have; None: its conversion rule says it."""
    for a in flat(args):
        if isinstance(a, Code):
            return {code: name for name, code in CODES.items()}[a.value]
    if op in results:
        return elements[refs(args)[results[op]]]
    return None


def flat(args: Iterable[object]) -> list[Any]:
    """Operands with those that stand in lists."""
    out: list[object] = []
    for a in args:
        out.extend(flat(a) if isinstance(a, tuple) else [a])
    return out


def named() -> dict[str, dict[str, Any]]:
    """The sets that ship, as written."""
    data: dict[str, dict[str, object]] = load_yaml(FILE).data
    return data


def opened(
    ops: str, meanings: Meanings, *, size: int | None, rank: int, dtype: str | None
) -> OpSet:
    """A named set, or one of the ops in a comma-separated list.

    Raises :class:`MlirulesError` for a name that is neither.
    """
    known = named()
    if ops in known:
        found = _read(ops, known[ops])
    else:
        listed = [o.strip() for o in ops.split(",") if o.strip()]
        found = _read("ops", _from_rules(listed, meanings, rank, known))
    if size is not None:
        found = replace(found, size=size)
    if dtype is not None:
        found = _retyped(found, dtype)
    return found


def _retyped(found: OpSet, dtype: str) -> OpSet:
    """The same set with another first element type."""
    if dtype not in ("f16", "bf16", "f32", "f64"):
        raise MlirulesError.at(
            "--dtype", f"not a float type: {dtype}", code="dtype", suggestion="f16, bf16, f32, f64"
        )
    old = found.dtypes[0]
    leaves = {
        n: Type(t.shape, dtype if t.element == old else t.element) for n, t in found.leaves.items()
    }
    dtypes = tuple(dict.fromkeys([dtype, *found.dtypes[1:]]))
    return replace(found, leaves=leaves, dtypes=dtypes)


def _read(name: str, data: dict[str, Any]) -> OpSet:
    dtypes = tuple(data.get("dtypes", ["f32"]))
    main = "f32" if "f32" in dtypes else dtypes[0]
    leaves: dict[str, Type] = {}
    dims: list[str] = []
    for leaf, text in data["leaves"].items():
        parts = [p.strip() for p in str(text).split(" x ") if p.strip()]
        element = parts.pop() if parts and dtype_named(parts[-1]) is not None else main
        shape = sizes_of(parts)
        dims += [p for p in parts if p.isidentifier() and p not in dims]
        leaves[leaf] = Type(shape, element)
    found = OpSet(
        name,
        int(data.get("size", 2)),
        (main, *(t for t in dtypes if t != main)),
        leaves,
        tuple(data.get("scalars", ())),
        tuple(map(str, data.get("numbers", ()))),
        tuple(data.get("literals", ())),
        tuple(sizes_of([str(d) for d in s]) for s in data.get("shapes", ())),
        dims=tuple(dims),
    )
    rank = found.rank
    for line in data["ops"]:
        found.operators += _operators(str(line), found, rank)
    return found


def _operators(line: str, found: OpSet, rank: int) -> list[Operator]:
    """An op with every choice of its constants; behind ``->`` whose element type its result has."""
    line, _, whose = line.partition("->")
    parsed = parse_statement(f"y = {line.strip()}")
    if not isinstance(parsed, ast.OpEquation):
        raise MlirulesError.at(str(FILE), f"not an op: {line}", code="op-set")
    call = parsed.call
    if whose:
        tensors = [a.id for a in call.args if isinstance(a, ast.Name) and len(a.id) == 1]
        found.results[call.fn] = tensors.index(whose.strip())
    choices = [_choices(arg, found, rank) for arg in call.args]
    return [Operator(call.fn, args) for args in itertools.product(*choices) if _sensible(args)]


def _sensible(args: tuple[object, ...]) -> bool:
    """Two axes of one op are written in one order."""
    axes = [a.value for a in args if isinstance(a, Axis)]
    return axes == sorted(set(axes))


def _choices(arg: ast.Expr, found: OpSet, rank: int) -> list[Any]:
    match arg:
        case ast.Name(id="scalar"):
            return [*(Scalar(s) for s in (*found.scalars, *found.numbers)), *found.literals]
        case ast.Name(id="axis"):
            return [Axis(-i) for i in range(rank, 0, -1)]
        case ast.Name(id="flag"):
            return [False, True]
        case ast.Name(id="perm"):
            return [p for r in range(2, rank + 1) for p in itertools.permutations(range(r))]
        case ast.Name(id="shape"):
            return [Sizes(s) for s in found.shapes]
        case ast.Name(id="dtype"):
            return [Code(CODES[t]) for t in found.dtypes]
        case ast.Name(id=name):
            return [Hole(name)]
        case ast.Literal(value=value):
            return [value]
        case ast.Unary(op="-", operand=ast.Literal(value=value)) if isinstance(value, (int, float)):
            return [Axis(-value) if isinstance(value, int) else -value]
        case ast.ListExpr(items=items):
            return list(itertools.product(*(_choices(i, found, rank) for i in items)))
    raise MlirulesError.at(str(FILE), f"not an operand of an op in a set: {arg}", code="op-set")


# ---- ops that are listed ----------------------------------------------------------------------


def _from_rules(
    ops: Sequence[str], meanings: Meanings, rank: int, known: Iterable[str]
) -> dict[str, object]:
    """A set of ops, their operands written as the conversion rules type them."""
    lines: list[str] = []
    for op in ops:
        full = op if op.startswith("torch.") else f"torch.aten.{op}"
        rules = [r for r in meanings.rules.get(full, ()) if r.name]
        if not rules:
            near = sorted(n for n in meanings.rules if n.rsplit("aten.", 1)[-1].startswith(op))
            hint = f"; {', '.join(near[:4])}" if near else ""
            raise MlirulesError.at(
                "--ops",
                f"{op} is no set, and no conversion rule says what an op of that name means{hint}",
                code="op-set",
                suggestion=f"a set ({', '.join(known)}) or ops, comma-separated",
            )
        lines.append(_line(rules[0]))
    letters = "ABCDEF"[: max(rank, 1)]
    same = " x ".join(letters)
    leaves = {"x": same, "y": same}
    if rank >= 2:
        turned = [*letters[:-2], "G", letters[-1]]
        leaves |= {"w": " x ".join(turned), "v": " x ".join([*letters[:-2], letters[-1], "G"])}
    return {
        "leaves": leaves,
        "scalars": ["c", "d"],
        "numbers": ["c * d", "c + d", "1 / c"],
        "literals": [1, 2],
        "shapes": [list(letters), [" * ".join(letters)]],
        "ops": list(dict.fromkeys(lines)),
    }


def _line(rule: Rule) -> str:
    """An op's operands, by the types that its conversion rule gives them."""
    call = rule.root.equation.call
    tensors = iter("abefgh")
    out: list[str] = []
    for arg in call.args:
        if isinstance(arg, ast.Literal):
            out.append(
                "none"
                if arg.value is None
                else str(arg.value).lower()
                if isinstance(arg.value, bool)
                else repr(arg.value).replace("'", '"')
            )
            continue
        name = arg.id if isinstance(arg, ast.Name) else ""
        decl = rule.types[name][1] if name in rule.types else None
        kind = "any" if decl is None else decl.kind
        if kind == "vtensor" or (decl is None and isinstance(arg, ast.Name) and name in "abwx"):
            out.append("none" if decl is not None and decl.optional else next(tensors))
        elif kind == "list" and decl is not None and decl.of is not None:
            of = decl.of.kind
            out.append("[a, b]" if of == "vtensor" else _LISTS.get(name, "[axis]"))
        elif decl is not None and decl.optional:
            out.append("none")
        elif name in ("alpha", "beta"):
            out.append("1")
        else:
            out.append(_KINDS.get(kind, "none"))
    return f"{call.fn}({', '.join(out)})"


_KINDS = {"int": "axis", "number": "scalar", "float": "scalar", "bool": "flag"}
_LISTS = {"dims": "[axis]", "perm": "perm", "shape": "shape", "size": "shape", "sizes": "shape"}
