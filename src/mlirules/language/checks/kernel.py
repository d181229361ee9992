"""What can be wrong with a kernel rule before it meets a program."""

from __future__ import annotations

import math
import re

from mlirules.language.checks.expressions import Expressions, blanked
from mlirules.language.faults import Fault
from mlirules.language.grid import (
    FACTS,
    MAX_GRID,
    MAX_THREADS,
    PLACES,
    TILE_BYTES,
    TILE_NAMES,
    TILE_ROWS,
)
from mlirules.language.kernel import SIZES, KernelDoc, KernelObject
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression
from mlirules.language.repeats import RepeatError, repeats
from mlirules.language.rule import Before, Line, Reordered, Rule, Variant
from mlirules.language.source import Path_


def kernel_variants(checker: Expressions, rule: Rule, doc: KernelDoc) -> list[Variant]:
    """The variants of a kernel rule, parsed and checked; faults go to the checker."""
    path: Path_ = ("kernel", "inputs")
    known = checker.has_root(rule) if rule.match else bool(rule.index_match)
    results = [r for r in rule.root_results if r] if known else []
    for n, name in enumerate(doc.kernel.inputs):
        line = checker.line("kernel", "inputs", n)
        if name not in rule.names and name not in checker.unread:
            checker.fault(
                line,
                None,
                "unbound-name",
                f"{name!r} stands nowhere in the match",
                checker.near(name, rule.names),
            )
        elif name in results:
            checker.fault(line, None, "wrong-type", f"{name!r} is a result: the kernel writes it")
        elif name in doc.kernel.inputs[:n]:
            checker.fault(line, None, "duplicate-name", f"{name!r} is an input already")
        elif name not in rule.types or rule.types[name][1].kind not in ("vtensor", "tensor"):
            checker.fault(
                line,
                None,
                "wrong-type",
                f"{name!r} is not declared as a tensor",
                "declare its dims and element type in `types:`",
            )
    for name in results:
        if name not in rule.types:
            checker.faults.append(
                Fault(
                    checker.source.span_at(path, key=True),
                    "wrong-type",
                    f"the result {name!r} is not declared as a tensor",
                    "declare its dims and element type in `types:`",
                )
            )
    count = len(doc.kernel.variants)
    return [_kernel_variant(checker, rule, doc, i, results) for i in range(count)]


def _kernel_variant(
    checker: Expressions, rule: Rule, doc: KernelDoc, i: int, results: list[str]
) -> Variant:
    made = doc.kernel.variants[i]
    where: Path_ = ("kernel", "variants", i)
    scope = set(rule.names) | set(FACTS)
    variant = Variant(made, body=checker.line("kernel", "variants", i, "body"))
    for name, value in made.let.items():
        line = checker.line("kernel", "variants", i, "let", name)
        expr = checker.parsed(line, parse_expression) if isinstance(value, str) else None
        if expr is not None:
            checker.expression(line, expr, scope, runtime=False)
        if name in scope:
            checker.fault(
                line,
                None,
                "duplicate-name",
                f"{name!r} already has a meaning",
                "choose another name",
            )
        scope.add(name)
        variant.let.append((name, line, expr, value))
    for section, rows, into in (
        ("where", made.where, variant.where),
        ("grid", made.grid, variant.grid),
        ("workgroup", made.workgroup, variant.workgroup),
    ):
        for n in range(len(rows)):
            line = checker.line("kernel", "variants", i, section, n)
            expr = checker.parsed(line, parse_expression)
            if expr is not None:
                checker.expression(line, expr, scope, runtime=False)
                into.append((line, expr))
    _kernel_tiles(checker, variant, i, scope)
    _kernel_orders(checker, doc, variant, i, scope)
    _kernel_first(checker, variant, i, scope)
    _kernel_sizes(checker, variant.grid, variant.workgroup)
    span = checker.source.span_at(where)
    cpu = "cpu" in made.targets
    if cpu and len(made.targets) > 1:
        checker.faults.append(
            Fault(
                span,
                "kernel",
                "a CPU has no threads in a workgroup, a GPU has",
                "write one variant for the cpu and one for the others",
            )
        )
    elif cpu and made.workgroup:
        checker.faults.append(
            Fault(
                checker.source.span_at((*where, "workgroup"), key=True),
                "kernel",
                "a CPU has no threads in a workgroup",
                "leave `workgroup:` out; a workgroup runs on one core",
            )
        )
    elif not cpu and not made.workgroup:
        checker.faults.append(
            Fault(
                span,
                "kernel",
                "the variant does not say how many threads a workgroup has",
                "add `workgroup:`",
            )
        )
    if made.object is not None:
        _kernel_object(checker, variant, made.object, where, scope)
    _kernel_body(checker, doc, variant, scope, results)
    return variant


def _kernel_object(
    checker: Expressions, variant: Variant, made: KernelObject, where: Path_, scope: set[str]
) -> None:
    """What is linked in: a C file with its functions, products by libxsmm, or both."""
    at = (*where, "object")

    def fault(message: str, hint: str, *more: str) -> None:
        span = checker.source.span_at((*at, *more), key=True)
        checker.faults.append(Fault(span, "kernel", message, hint))

    if variant.doc.targets != ["cpu"]:
        fault("machine code is linked in for the cpu only", "leave `object:` out")
    if made.source is None and not made.xsmm:
        fault("nothing is linked in", "name a C file in `source:`, or products in `xsmm:`")
    if made.source is not None and not made.functions:
        fault("no function of the C file is declared", "list them in `functions:`", "source")
    if made.source is None and made.functions:
        fault("the C file of these functions is not named", "name it in `source:`", "functions")
    for name in made.xsmm:
        path = (*at, "xsmm", name)
        if name in made.functions:
            fault(f"{name!r} is a function in C already", "choose another name", "xsmm", name)
        sizes = []
        for size in SIZES:
            line = checker.line(str(path[0]), str(path[1]), *path[2:], size)
            expr = checker.parsed(line, parse_expression)
            if expr is not None:
                checker.expression(line, expr, scope, runtime=False)
                sizes.append((line, expr))
        variant.xsmm[name] = (Line("kernel", "variants", checker.source.key_at(path)), sizes)


def _kernel_tiles(checker: Expressions, variant: Variant, i: int, scope: set[str]) -> None:
    """The shapes of the tile registers, in the order of their numbers."""
    made = variant.doc.tiles
    if made and variant.doc.targets != ["cpu"]:
        span = checker.source.span_at(("kernel", "variants", i, "tiles"), key=True)
        checker.faults.append(
            Fault(span, "kernel", "only CPUs have tile registers", "leave `tiles:` out")
        )
    for n in range(len(made)):
        sizes = []
        for part, limit in (("rows", TILE_ROWS), ("bytes", TILE_BYTES)):
            line = checker.line("kernel", "variants", i, "tiles", n, part)
            expr = checker.parsed(line, parse_expression)
            if expr is None:
                continue
            checker.expression(line, expr, scope, runtime=False)
            if isinstance(expr, ast.Literal) and (
                not isinstance(expr.value, int) or not 1 <= expr.value <= limit
            ):
                checker.fault(line, expr, "kernel", f"a tile register has from 1 to {limit} {part}")
            sizes.append((line, expr))
        if len(sizes) == 2:
            variant.tiles.append((sizes[0], sizes[1]))


def _kernel_orders(
    checker: Expressions, doc: KernelDoc, variant: Variant, i: int, scope: set[str]
) -> None:
    """The inputs that lie in another order for the kernel."""
    for name, order in variant.doc.reorder.items():
        path = ("kernel", "variants", i, "reorder", name)

        def fault(message: str, hint: str, path: Path_ = path) -> None:
            span = checker.source.span_at(path, key=True)
            checker.faults.append(Fault(span, "kernel", message, hint))

        if name not in doc.kernel.inputs:
            fault(f"{name!r} is no input of the kernel", "name one of `inputs:`")
        if sorted(order.permute) != list(range(len(order.view))):
            count = len(order.view)
            fault(
                f"the {count} dims of the view stand once each in `permute:`, as 0 to {count - 1}",
                f"write {list(range(count))[::-1]}, say",
            )
        when: tuple[Line, ast.Expr] | bool = order.when is True
        if isinstance(order.when, str):
            line = checker.line("kernel", "variants", i, "reorder", name, "when")
            expr = checker.parsed(line, parse_expression)
            if expr is not None:
                checker.expression(line, expr, scope, runtime=False)
                when = (line, expr)
        rows: dict[str, list[tuple[Line, ast.Expr]]] = {"pad": [], "view": []}
        for part, held in (("pad", order.pad), ("view", order.view)):
            for n in range(len(held)):
                line = checker.line("kernel", "variants", i, "reorder", name, part, n)
                expr = checker.parsed(line, parse_expression)
                if expr is not None:
                    checker.expression(line, expr, scope, runtime=False)
                    rows[part].append((line, expr))
        along: dict[int, list[list[float]]] = {}
        for made in order.multiply:
            if len({len(row) for row in made.by}) > 1:
                fault("the rows of a matrix differ in length", "write as many numbers in each")
            for axis in made.along:
                if not 0 <= axis < len(order.view):
                    fault(f"the view has no dim {axis}", f"its dims are 0 to {len(order.view) - 1}")
                elif axis in along:
                    fault(f"two matrices go along dim {axis}", "write their product")
                along[axis] = made.by
        variant.reorder[name] = Reordered(when, rows["view"], order.permute, along, rows["pad"])


def _kernel_first(checker: Expressions, variant: Variant, i: int, scope: set[str]) -> None:
    """The tensors that dispatches before the kernel's own write."""
    cpu = "cpu" in variant.doc.targets
    for name, made in variant.doc.first.items():
        at: Path_ = ("kernel", "variants", i, "first", name)

        def fault(message: str, hint: str, path: Path_ = at) -> None:
            span = checker.source.span_at(path, key=True)
            checker.faults.append(Fault(span, "kernel", message, hint))

        if name in scope:
            fault(f"{name!r} already has a meaning", "choose another name")
        if cpu == bool(made.workgroup):
            said = "a CPU has no threads in a workgroup, a GPU says how many"
            fault(said, "leave `workgroup:` out" if cpu else "add `workgroup:`")
        body = checker.line("kernel", "variants", i, "first", name, "body")
        before = Before(made.element, body)
        for section, rows, into in (
            ("dims", made.dims, before.dims),
            ("grid", made.grid, before.grid),
            ("workgroup", made.workgroup, before.workgroup),
        ):
            for n in range(len(rows)):
                line = checker.line("kernel", "variants", i, "first", name, section, n)
                expr = checker.parsed(line, parse_expression)
                if expr is not None:
                    checker.expression(line, expr, scope, runtime=False)
                    into.append((line, expr))
        _kernel_sizes(checker, before.grid, before.workgroup)
        scope.add(name)
        variant.first[name] = before


def _kernel_sizes(
    checker: Expressions, grid: list[tuple[Line, ast.Expr]], workgroup: list[tuple[Line, ast.Expr]]
) -> None:
    """Sizes that are numbers already are checked while the rule is read."""
    for rows, limits, what in (
        (grid, MAX_GRID, "workgroups"),
        (workgroup, (MAX_THREADS,) * 3, "threads"),
    ):
        for (line, expr), limit in zip(rows, limits, strict=False):
            if isinstance(expr, ast.Literal) and (
                not isinstance(expr.value, int) or not 1 <= expr.value <= limit
            ):
                checker.fault(line, expr, "kernel", f"from 1 to {limit} {what} can stand here")
    numbers = [
        e.value for _, e in workgroup if isinstance(e, ast.Literal) and isinstance(e.value, int)
    ]
    if len(numbers) == len(workgroup) and math.prod(numbers) > MAX_THREADS:
        count = math.prod(numbers)
        checker.fault(
            workgroup[0][0],
            None,
            "kernel",
            f"{count} threads in a workgroup are more than {MAX_THREADS}",
        )


def _kernel_body(
    checker: Expressions, doc: KernelDoc, variant: Variant, scope: set[str], results: list[str]
) -> None:
    line = variant.body
    assert line is not None
    linked = variant.doc.object
    functions = {*linked.functions, *linked.xsmm} if linked is not None else set()
    parts = {
        f"{name}_{part}"
        for name in (*doc.kernel.inputs, *variant.first, *results)
        for part in ("base", "offset", "pointer")
    }
    before: set[str] = set()
    for name, made in variant.first.items():
        known = (scope | parts) - {later for later in variant.first if later not in before}
        seen = _one_body(checker, variant, made.body, known | {name}, [name], set())
        if name not in seen:
            said = f"{name} is not written: %{name} is its buffer"
            checker.fault(made.body, None, "kernel", said)
        before |= {*seen, name}
    parts |= set(TILE_NAMES[: len(variant.doc.tiles)])
    named = _one_body(checker, variant, line, scope | parts, results, functions)
    for name in (*doc.kernel.inputs, *variant.first, *results):
        if name not in named and (name not in before or name in variant.first):
            role = "written: %" if name in results else "read: %"
            checker.fault(line, None, "kernel", f"{name} is not {role}{name} is its buffer")


def _one_body(
    checker: Expressions,
    variant: Variant,
    line: Line,
    scope: set[str],
    results: list[str],
    functions: set[str],
) -> set[str]:
    """Check the text of one dispatch; the names of buffers that it may mean."""
    text, counts = _once(checker, line, line.text.value, scope)
    checker.body(line, text, scope | counts | set(PLACES), set(results))
    plain = blanked(text)
    for found in re.finditer(r"%(thread_[xyz])\b", plain):
        if "cpu" in variant.doc.targets:
            checker.fault(
                line, ast.Node(*found.span()), "kernel", "a CPU has no threads in a workgroup"
            )
    for found in re.finditer(r"\b(?:func\.)?call\s+@([A-Za-z_]\w*)", plain):
        if found.group(1) not in functions:
            checker.fault(
                line,
                ast.Node(*found.span(1)),
                "kernel",
                f"no function {found.group(1)!r} is linked in",
                "declare it in `object: {functions: ...}`, or in `xsmm:`",
            )
    return set(re.findall(r"%([A-Za-z_]\w*?)(?:_base|_pointer)?\b", plain))


def _once(checker: Expressions, line: Line, text: str, scope: set[str]) -> tuple[str, set[str]]:
    """The text without the rows that begin and end what is repeated, and the names of its counts.

    Characters stay where they are: faults are located in what is written.
    """
    counts: set[str] = set()
    rows = text.splitlines(keepends=True)
    try:
        for found in repeats(text):
            checker.expression_at(line, found.times, found.offset, scope)
            if found.name in scope:
                checker.fault(
                    line,
                    ast.Node(found.offset, found.offset + len(found.times)),
                    "duplicate-name",
                    f"{found.name!r} already has a meaning",
                    "choose another name",
                )
            counts.add(found.name)
            for number in (found.first, found.last):
                rows[number] = " " * (len(rows[number]) - 1) + rows[number][-1:]
    except RepeatError as error:
        checker.fault(
            line, ast.Node(error.offset, error.offset + 4), "syntax", str(error), error.hint
        )
        rows = [re.sub(r"\$(each|end)\b", lambda m: " " * len(m[0]), row) for row in rows]
    return "".join(rows), counts
