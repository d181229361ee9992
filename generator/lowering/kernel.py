"""A kernel rule, for one match and one kind of target, as MLIR: an executable and its dispatch."""

from __future__ import annotations

import functools
import hashlib
import math
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlirules.generator import tiles
from mlirules.generator.lowering.buffers import builtin, memref, parts, pointer
from mlirules.generator.lowering.dims import declared_dims, one_product
from mlirules.generator.lowering.indices import Indices
from mlirules.generator.lowering.orders import Order, orders, value_of
from mlirules.generator.lowering.scratch import scratch
from mlirules.generator.lowering.spelling import float_text, quoted
from mlirules.generator.lowering.values import Argument, Lowered, LoweringError
from mlirules.generator.names import identifier
from mlirules.generator.objects import ObjectError, object_of
from mlirules.generator.xsmm import CALLED_WITH, CPUS, Product
from mlirules.language.evaluate import Evaluator
from mlirules.language.faults import Span
from mlirules.language.grid import (
    MAX_GRID,
    MAX_THREADS,
    PLACES,
    READS,
    TARGET,
    TILE_BYTES,
    TILE_NAMES,
    TILE_ROWS,
    WRITES,
)
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression
from mlirules.language.operands import Refused, arith, describe, truth
from mlirules.language.repeats import MAX_REPEATS, repeats
from mlirules.language.rule import Before, Line, Rule, Variant
from mlirules.language.values import DType, Dyn, Tensor

_DOLLAR = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\(([^()]*(?:\([^()]*\)[^()]*)*)\))")
_CALLED = re.compile(r"(\bcall\s+@)([A-Za-z_]\w*)")
_CPU = f'#hal.executable.target<"llvm-cpu", "embedded-elf-{platform.machine()}">'


def lower_kernel(
    rule: Rule, env: dict[str, Any], results: Sequence[tuple[str | None, Any, str]], target: str
) -> Lowered:
    """The dispatch of a rule's kernel, as a function, and the executable beside it.

    ``target`` is a kind of target (``cpu``, ``vulkan``, ``cuda``, ``hip``). Raises
    :class:`NoMatch` at the line that does not hold: a condition, a number that the kernel's text
    needs and that is known only at run time, a grid or a workgroup that is too large.

    Sizes known only at run time are operands of the dispatch. What can be wrong with them is
    asserted before it: operands that differ where one symbol stands for both, a grid out of range.
    """
    inputs = [_known(rule, name, env[name]) for name in rule.kernel_inputs]
    outputs = []
    for name, value, _ in results:
        assert name is not None
        outputs.append(_known(rule, name, value))
    variant, sizes = _chosen(rule, {**env, **{t.name: t for t in outputs}}, target)
    kernel = _Kernel(rule, variant, sizes, inputs, outputs, target)
    return kernel.lowered([type_ for _, _, type_ in results], env)


def _known(rule: Rule, name: str, value: object) -> Tensor:
    line = rule.types[name][0] if name in rule.types else rule.made_by
    if not isinstance(value, Tensor) or value.dims is None or value.dtype is None:
        raise NoMatch(line, f"{name} is {describe(value)}, not a tensor of known type")
    if 0 in value.dims:
        raise NoMatch(line, f"{name} is empty: there is nothing to dispatch")
    return Tensor(name, value.dims, value.dtype, value.torch)


def _chosen(rule: Rule, env: dict[str, Any], target: str) -> tuple[Variant, dict[str, Any]]:
    """The first variant for the target whose conditions hold, and what its names stand for."""
    refusals: list[tuple[int, NoMatch]] = []
    for variant in rule.variants:
        if target not in variant.doc.targets:
            continue
        try:
            return variant, _sizes(variant, env)
        except NoMatch as no:
            refusals.append((_came(variant, no), no))
    if refusals:
        # Of the variant that came nearest.
        raise max(refusals, key=lambda refusal: refusal[0])[1]
    written = sorted({t for v in rule.variants for t in v.doc.targets})
    raise NoMatch(
        rule.made_by,
        f"the kernel is written for {', '.join(written)}, not for {target}",
        expected=" or ".join(written),
        found=target,
    )


def _came(variant: Variant, no: NoMatch) -> int:
    """How many conditions of a variant held before the line that did not; -1: not its sizes."""
    if any(line is no.line for _, line, _, _ in variant.let):
        return -1
    lines = (line for line, _ in variant.where)
    return next((n for n, line in enumerate(lines) if line is no.line), len(variant.where))


def _sizes(variant: Variant, env: dict[str, Any]) -> dict[str, object]:
    known = dict(env)
    for name, line, expr, value in variant.let:
        known[name] = value if expr is None else value_of(line, expr, known)
    for line, expr in variant.where:
        try:
            holds = truth(Evaluator(known).eval(expr))
        except Refused as refused:
            raise NoMatch(line, refused.message, expected=str(line), node=refused.node) from None
        if not holds:
            named = {n.id: known[n.id] for n in _names(expr) if n.id in known}
            shown = ", ".join(f"{k} = {describe(v)}" for k, v in named.items())
            raise NoMatch(line, f"{line} does not hold ({shown})", expected=str(line), found=shown)
    known |= _places(variant, known)
    known["#tiles"] = _tiles(variant, known)
    known["#orders"] = orders(variant, known)
    known |= scratch(variant, known)
    return known


def _places(made: Variant | Before, env: dict[str, Any]) -> dict[str, list[Any]]:
    """The workgroups of a dispatch, and the threads of each."""
    grid = [
        _size(line, expr, env, limit, "workgroups")
        for (line, expr), limit in zip(made.grid, MAX_GRID, strict=False)
    ]
    threads = [_fixed(line, expr, env, MAX_THREADS, "threads") for line, expr in made.workgroup]
    if math.prod(threads) > MAX_THREADS:
        raise NoMatch(
            made.workgroup[0][0],
            f"{math.prod(threads)} threads in a workgroup are more than {MAX_THREADS}",
        )
    return {"#grid": grid, "#workgroup": threads}


def _tiles(variant: Variant, env: dict[str, Any]) -> list[tuple[int, int]]:
    """The rows of each tile register and the bytes of each row."""
    shapes = []
    for (rows_line, rows), (bytes_line, bytes_) in variant.tiles:
        if not env.get("bf16_tile_rows", 0) and not env.get("byte_tile_rows", 0):
            said = "the kernel uses tile registers (AMX), which this CPU does not have"
            raise NoMatch(rows_line, said, expected="a CPU with AMX", found="none")
        shapes.append(
            (
                _fixed(rows_line, rows, env, TILE_ROWS, "rows"),
                _fixed(bytes_line, bytes_, env, TILE_BYTES, "bytes"),
            )
        )
    return shapes


def _names(expr: ast.Expr) -> list[ast.Name]:
    from mlirules.language.notation.ast import walk_expression

    return [n for n in walk_expression(expr) if isinstance(n, ast.Name)]


def _size(line: Line, expr: ast.Expr, env: dict[str, Any], limit: int, what: str) -> int | Dyn:
    value = value_of(line, expr, env)
    if isinstance(value, Dyn):
        return value  # asserted where it is dispatched
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise NoMatch(
            line,
            f"{line} is {describe(value)}: from 1 to {limit} {what} can stand here",
            expected=f"1 to {limit}",
            found=describe(value),
        )
    return value


def _fixed(line: Line, expr: ast.Expr, env: dict[str, Any], limit: int, what: str) -> int:
    """A size that is part of the kernel's code."""
    value = _size(line, expr, env, limit, what)
    if isinstance(value, Dyn):
        of = "the threads of a workgroup" if what == "threads" else f"the {what} of a tile register"
        raise NoMatch(
            line,
            f"{line} is known only at run time: {of} are fixed when the kernel is compiled",
            expected=f"1 to {limit}",
            found=describe(value),
        )
    return value


class _Kernel:
    """One kernel: its buffers, its sizes, its text."""

    def __init__(
        self,
        rule: Rule,
        variant: Variant,
        sizes: dict[str, Any],
        inputs: list[Tensor],
        outputs: list[Tensor],
        target: str,
    ) -> None:
        self.rule = rule
        self.variant = variant
        self.sizes = sizes
        self.outputs = outputs
        self.target = target
        assert variant.body is not None
        self.text = variant.body.text.value
        #: Whether it writes what another dispatch of the kernel reads.
        self.step = "#between" in sizes
        #: What is linked in; for the kernel's own dispatch alone.
        self.object = None if self.step else variant.doc.object
        #: As the match has them, and as the kernel reads and writes them.
        self.matched = {t.name: t for t in (*inputs, *outputs)}
        self.orders: dict[str, Order] = sizes["#orders"]
        made = sizes.get("#between", [sizes[name] for name in variant.first])
        read = set(re.findall(r"%([A-Za-z_]\w*?)(?:_base|_pointer)?\b", self.text))
        self.inputs = [t for t in (*inputs, *made) if t.name in read]
        self.tensors = {
            t.name: self.orders[t.name].of(t) if t.name in self.orders else t
            for t in (*self.inputs, *outputs)
        }
        self.heads: dict[str, str] = {}
        self.arguments: dict[tuple[str, str], Argument] = {}
        #: Before the dispatch, and in the kernel: sizes known only at run time.
        self.host = Indices(self.of_program, "mlirules_n")
        self.inner = Indices(self.operand, "mlirules_s")
        self.operands: dict[Dyn, str] = {}
        self.products = {name: self.product(name) for name in variant.xsmm}
        self.extents = {
            name: self.dims(self.matched[name])
            if name in self.matched and name not in self.orders and name in rule.types
            else list(tensor.dims or ())
            for name, tensor in self.tensors.items()
        }
        #: What is dispatched before, for this to read.
        self.before = [self.first(name, inputs) for name in variant.first]
        #: For each row of the kernel, which row of the rule's text it is.
        self.origins: list[int] = []

    def first(self, name: str, inputs: list[Tensor]) -> _Kernel:
        """The dispatch that writes a tensor which lies between it and the kernel's own."""
        names = list(self.variant.first)
        made = self.variant.first[name]
        variant = replace(
            self.variant,
            body=made.body,
            grid=made.grid,
            workgroup=made.workgroup,
            tiles=[],
            xsmm={},
            first={},
        )
        earlier = [self.sizes[other] for other in names[: names.index(name)]]
        sizes = {**self.sizes, **_places(made, self.sizes), "#tiles": [], "#between": earlier}
        found = _Kernel(self.rule, variant, sizes, inputs, [self.sizes[name]], self.target)
        found.host, found.arguments = self.host, self.arguments
        return found

    def dims(self, tensor: Tensor) -> list[int | Dyn]:
        """How large a buffer is: its own dims, or what the symbols declared for them are."""
        line = self.line_of(tensor.name)
        try:
            declared = declared_dims(self.rule, self.sizes, tensor.name, tensor.rank)
        except Refused as refused:
            raise NoMatch(line, refused.message, expected=str(line), node=refused.node) from None
        out: list[int | Dyn] = []
        for axis, (own, symbol) in enumerate(zip(tensor.dims or (), declared, strict=True)):
            chosen = symbol if isinstance(own, Dyn) and isinstance(symbol, (int, Dyn)) else own
            if isinstance(chosen, Dyn) and chosen.op in ("result", "?"):
                raise NoMatch(
                    line,
                    f"dim {axis} of {tensor.name} is known only at run time, and nothing in the "
                    "match gives its size",
                    expected=str(line),
                    found=describe(tensor),
                )
            out.append(chosen)
        return out

    def line_of(self, name: str) -> Line:
        """The line that declares a tensor."""
        return self.rule.types[name][0] if name in self.rule.types else self.rule.made_by

    def argument(self, name: str, form: str, type_: str) -> str:
        """A bound value as an argument of the rewrite."""
        suffix = "" if form in ("raw", "tensor") else "_" + form
        made = Argument(name, form, f"%arg_{re.sub(r'[^A-Za-z0-9_]', '_', name)}{suffix}", type_)
        return self.arguments.setdefault((name, form), made).ssa

    def tensor_argument(self, tensor: Tensor) -> str:
        """A tensor of the match as a builtin tensor."""
        return self.argument(tensor.name, "tensor" if tensor.torch else "raw", builtin(tensor))

    def passed(self, tensor: Tensor) -> str:
        """A tensor of the match as the dispatch takes it."""
        if tensor.name in self.variant.first or tensor.name not in self.matched:
            return f"%out_{tensor.name}"
        held = self.tensor_argument(tensor)
        order = self.orders.get(tensor.name)
        return held if order is None else order.put(tensor, held, self.host.emit)

    def of_program(self, size: Dyn) -> str:
        """A size that is no arithmetic, read from the program."""
        if size.op == "int":
            read = self.argument(str(size.args[0]), "i64", "i64")
            return self.host.emit(f"arith.index_cast {read} : i64 to index")
        name, axis = str(size.args[0]), int(str(size.args[1]))
        base, mark, at = name.rpartition("#")
        found = self.sizes[base][int(at)] if mark else self.sizes[name]
        at_axis = self.host.value(axis)
        held = self.tensor_argument(found)
        return self.host.emit(f"tensor.dim {held}, {at_axis} : {builtin(found)}")

    def operand(self, size: Dyn) -> str:
        """A size that is no arithmetic, passed to the kernel."""
        return self.operands.setdefault(size, f"%mlirules_d{len(self.operands)}")

    def group(self, tensor: Tensor) -> str:
        """A tensor's type with the values of its dynamic dims."""
        values = [
            self.host.value(size)
            for own, size in zip(tensor.dims or (), self.extents[tensor.name], strict=True)
            if isinstance(own, Dyn)
        ]
        return builtin(tensor) + (f"{{{', '.join(values)}}}" if values else "")

    def dispatched(self) -> tuple[str, str, str]:
        """Its dispatch, its executable, and in that the body."""
        body = self.called(self.body())
        inside = self.inside(body)
        # What several rules of a file dispatch before their own is the same.
        shared = self.outputs[0].name if self.step else None
        named = f"{Path(self.rule.path).stem}-{shared}" if shared else self.rule.name
        symbol = f"mlirules_{identifier(named)}"
        grid = [*self.sizes["#grid"], 1, 1][:3]
        marked = f"{self.target}\n{grid}\n{inside}"
        symbol += "_" + hashlib.sha256(marked.encode()).hexdigest()[:10]
        passed = [self.passed(tensor) for tensor in self.inputs]
        workload = self.workload()
        groups = [self.group(self.tensors[tensor.name]) for tensor in self.inputs]
        for size in self.operands:
            passed.append(self.host.value(size))
            groups.append("index")
        given = _group(map(self.group, self.outputs))
        made = ", ".join(f"%out_{t.name}" for t in self.outputs)
        at = f"[{', '.join(workload)}]" if workload else ""
        row = (
            f"{made} = flow.dispatch @{symbol}::@{symbol}{at}({', '.join(passed)}) : "
            f"({', '.join(groups)}) -> {given}"
        )
        # Executables are linked together: their functions need names of their own.
        inside = inside.replace("@KERNEL(", f"@{symbol}(", 1)
        return row, self.executable(symbol, inside), body

    def lowered(self, types: list[str], env: dict[str, Any]) -> Lowered:
        parts = [*self.before, self]
        # Before all else: behind the checks of the grids IREE 3.13 leaves these out.
        self.demand_equal()
        made = [part.dispatched() for part in parts]
        rows = [*self.host.rows, *(row for row, _, _ in made)]
        returned = []
        for tensor, type_ in zip(self.outputs, types, strict=True):
            value = f"%out_{tensor.name}"
            if tensor.torch:
                rows.append(
                    f"%torch_{tensor.name} = torch_c.from_builtin_tensor {value} : "
                    f"{builtin(tensor)} -> {type_}"
                )
                value = f"%torch_{tensor.name}"
            returned.append(value)
        rows.append(f"return {', '.join(returned)} : {', '.join(types)}")
        arguments = list(self.arguments.values())
        args = ", ".join(f"{a.ssa}: {a.type}" for a in arguments)
        text = f"func.func @rewrite({args}) -> ({', '.join(types)}) {{\n"
        text += "".join(f"  {row}\n" for row in rows) + "}\n"
        places: dict[int, Span] = {}
        for part, (_, executable, body) in zip(parts, made, strict=True):
            # Layers of equal sizes share what both dispatch.
            text += executable
            places |= part.places(text, body)
        return Lowered(text, arguments, [], env, places)

    def places(self, text: str, body: str) -> dict[int, Span]:
        """Where the lines of the body, which stands in ``text``, stand in the rule file."""
        line = self.variant.body
        assert line is not None
        first = text.count("\n", 0, text.rindex(body.rstrip())) + 1
        spans, offset = [], 0
        for row in self.text.splitlines(keepends=True):
            spans.append(line.text.span(offset + len(row) - len(row.lstrip())))
            offset += len(row)
        return {first + number: spans[origin] for number, origin in enumerate(self.origins)}

    def demand_equal(self) -> None:
        """Have the program check that what one symbol stands for is equally large everywhere."""
        if not any(op.startswith("torch.") for op in self.rule.root_ops):
            return  # linalg ops have checked already
        for name, tensor in self.matched.items():
            declared = declared_dims(self.rule, self.sizes, name, tensor.rank)
            for axis, (own, size) in enumerate(zip(tensor.dims or (), declared, strict=True)):
                if isinstance(own, Dyn) and own.op == "result":
                    continue
                if own == size or not isinstance(size, (int, Dyn)):
                    continue
                if isinstance(own, int) and isinstance(size, int):
                    continue  # compared when it was bound
                a, b = self.host.value(own), self.host.value(size)
                same = self.host.emit(f"arith.cmpi eq, {a}, {b} : index")
                said = (
                    f"{self.rule.name}: dim {axis} of {name} is not what {self.line_of(name)} says"
                )
                self.host.rows.append(f"cf.assert {same}, {quoted(said)}")

    def workload(self) -> list[str]:
        """The parts of the grid known only at run time, checked; none of them below 0."""
        found: list[str] = []
        for (line, _), size, limit in zip(
            self.variant.grid, self.sizes["#grid"], MAX_GRID, strict=False
        ):
            if not isinstance(size, Dyn):
                continue
            value, none, one = (self.host.value(v) for v in (size, 0, 1))
            # Nothing to dispatch is right where there is nothing to write.
            elements: Any = 0
            for name in (tensor.name for tensor in self.outputs):
                elements = arith("+", elements, one_product(self.extents[name]))
            written = self.host.value(elements)
            empty = self.host.emit(f"arith.cmpi eq, {written}, {none} : index")
            some = self.host.emit(f"arith.cmpi sge, {value}, {one} : index")
            most = self.host.value(limit)
            few = self.host.emit(f"arith.cmpi sle, {value}, {most} : index")
            right = self.host.emit(f"arith.andi {some}, {few} : i1")
            fits = self.host.emit(f"arith.ori {right}, {empty} : i1")
            said = f"{self.rule.name}: {line} is not from 1 to {limit} workgroups"
            self.host.rows.append(f"cf.assert {fits}, {quoted(said)}")
            found.append(self.host.emit(f"arith.select {empty}, {none}, {value} : index"))
        return found

    def executable(self, symbol: str, inside: str) -> str:
        # The rule's name and target stay in the program: a compilation for another is refused.
        marks = f'{TARGET} = "{self.target}", mlirules.rule = "{self.rule.name}"'
        for mark, tensors in ((READS, self.inputs), (WRITES, self.outputs)):
            marks += f", {mark} = [{', '.join(quoted(t.name) for t in tensors)}]"
        if self.object is not None:
            # Objects inside the attribute are not written out right by the compiler: name the file.
            paths = sorted(map(str, self.objects()))  # equal products are one file
            held = ", ".join(f'#hal.executable.object<{{path = "{path}"}}>' for path in paths)
            marks += f", hal.executable.objects = #hal.executable.objects<{{{_CPU} = [{held}]}}>"
        grid = [*self.sizes["#grid"], 1, 1][:3]
        names = [f"%n{i}" for i in range(3)]
        fixed = zip(names, grid, strict=True)
        counts = "".join(
            f"    {name} = arith.constant {n} : index\n" for name, n in fixed if isinstance(n, int)
        )
        workload = [name for name, n in zip(names, grid, strict=True) if not isinstance(n, int)]
        takes = ", ".join(f"{name}: index" for name in workload)
        return (
            f"stream.executable private @{symbol} attributes {{{marks}}} {{\n"
            f"  stream.executable.export public @{symbol} workgroups({takes}) -> "
            "(index, index, index) {\n"
            f"{counts}    stream.return %n0, %n1, %n2 : index, index, index\n  }}\n"
            f"  builtin.module {{\n{inside}  }}\n}}\n"
        )

    def objects(self) -> set[Path]:
        """The object files of the variant's C file and of its products."""
        made = self.object
        assert made is not None
        assert self.variant.body is not None
        wanted: list[tuple[Line, str, Callable[[], Path]]] = []
        if made.source is not None:
            source = Path(self.rule.path).parent / made.source
            wanted.append((self.variant.body, made.source, lambda: object_of(source)))
        for name, (line, _) in self.variant.xsmm.items():
            wanted.append((line, name, self.products[name].object))
        found = set()
        for line, name, compiled in wanted:
            try:
                found.add(compiled())
            except ObjectError as error:
                if error.missing:
                    raise NoMatch(line, f"{name}: {error}") from None
                raise LoweringError(line, str(error)) from None
        return found

    def product(self, name: str) -> Product:
        """A product by libxsmm with the sizes of this match."""
        line, sizes = self.variant.xsmm[name]
        known = self.sizes.get("vector_bytes", 0)
        if known not in CPUS:
            said = f"{name}: libxsmm has products for CPUs with AVX2 or AVX-512, which this is not"
            raise NoMatch(line, said, expected="AVX2 or AVX-512", found=f"{known} bytes a vector")
        most = 2**31 - 1
        found = [_size(at, expr, self.sizes, most, "numbers") for at, expr in sizes]
        for (at, _), value in zip(sizes, found, strict=True):
            if isinstance(value, Dyn):
                raise NoMatch(
                    at,
                    f"{at} is known only at run time: the code of {name} is for fixed sizes",
                    expected="a number known when the kernel is compiled",
                    found=describe(value),
                )
        m, n, k, lda, ldb, ldc = (value for value in found if isinstance(value, int))
        for (at, _), apart, rows in zip(sizes[3:], (lda, ldb, ldc), (m, k, m), strict=True):
            if apart < rows:
                said = f"{at} is {apart}: columns of {rows} rows cannot stand so close in {name}"
                raise LoweringError(at, said)
        held = self.object
        assert held is not None
        return Product((m, n, k, lda, ldb, ldc), held.xsmm[name].beta, known)

    def inside(self, body: str) -> str:
        threads = self.sizes["#workgroup"]
        size = f" workgroup_size = [{', '.join(map(str, threads))}]" if threads else ""
        info = f"#iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline{size}>"
        taken = [f"%bind_{name}: !stream.binding" for name in self.tensors]
        taken += [f"{ssa}: index" for ssa in self.operands.values()]
        args = ", ".join(taken)
        zero = "%zero_offset = arith.constant 0 : index"
        shapes = self.sizes["#tiles"]
        first = (*self.inner.rows, *self.heads.values(), *(tiles.before(shapes) if shapes else ()))
        heads = "".join(f"  {row}\n" for row in (zero, *first))
        last = "".join(f"  {row}\n" for row in (tiles.behind() if shapes else ()))
        functions = dict(self.object.functions) if self.object else {}
        functions |= {product.symbol: CALLED_WITH for product in self.products.values()}
        declared = "".join(
            f"func.func private @{name}{type_} attributes "
            "{hal.import.static, llvm.bareptr = true}\n"
            for name, type_ in functions.items()
        )
        return (
            f"{declared}func.func @KERNEL({args}) attributes {{translation_info = {info}}} {{\n"
            f"{heads}{body.rstrip()}\n{last}  return\n}}\n"
        )

    def called(self, body: str) -> str:
        """The body with the products called by the names of their functions."""

        def named(found: re.Match[str]) -> str:
            product = self.products.get(found[2])
            return found[0] if product is None else found[1] + product.symbol

        return _CALLED.sub(named, body) if self.products else body

    def spelt(self, text: str, sizes: dict[str, Any], later: str | None = None) -> str:
        """A part of the body with what ``$`` stands for, but where that names ``later``."""
        line = self.variant.body
        assert line is not None
        waits = re.compile(rf"\b{later}\b") if later else None

        def dollar(found: re.Match[str]) -> str:
            source = found.group(1) or found.group(2)
            if waits is not None and waits.search(source):
                return found[0]
            return self.spelled(line, _parsed(source), source, sizes)

        return _DOLLAR.sub(dollar, text)

    def repeated(self) -> str:
        """The body with the rows that stand several times, each with its count."""
        line = self.variant.body
        assert line is not None
        rows = self.text.splitlines()
        made: list[str] = []

        def spelt(first: int, last: int, later: str | None = None) -> str:
            return self.spelt("\n".join(rows[first:last]), self.sizes, later)

        def stand(first: int, last: int, text: str) -> None:
            made.extend(text.split("\n") if first < last else [])
            self.origins.extend(range(first, last))

        at = 0
        for found in repeats(self.text):
            times = value_of(line, _parsed(found.times), self.sizes)
            if not isinstance(times, int) or not 0 <= times <= MAX_REPEATS:
                raise NoMatch(
                    line,
                    f"$each {found.name} < {found.times} is {describe(times)}: rows stand at most "
                    f"{MAX_REPEATS} times, a number known when the kernel is compiled",
                    expected=f"0 to {MAX_REPEATS}",
                    found=describe(times),
                )
            stand(at, found.first, spelt(at, found.first))
            # What does not depend on the count is the same each time.
            each = spelt(found.first + 1, found.last, found.name) if times else ""
            for count in range(times):
                counted = self.spelt(each, {**self.sizes, found.name: count})
                stand(found.first + 1, found.last, counted)
            at = found.last + 1
        stand(at, len(rows), spelt(at, len(rows)))
        return "\n".join(made)

    def body(self) -> str:
        line = self.variant.body
        assert line is not None
        text = self.repeated()
        for name, tensor in self.tensors.items():
            values = [
                self.inner.value(size)
                for own, size in zip(tensor.dims or (), self.extents[name], strict=True)
                if isinstance(own, Dyn)
            ]
            sizes = f"{{{', '.join(values)}}}" if values else ""
            self.heads[name] = (
                f"%{name} = stream.binding.subspan %bind_{name}[%zero_offset] : !stream.binding "
                f"-> {self.buffer(tensor)}{sizes}"
            )
        own = set(re.findall(r"%([A-Za-z_]\w*)(?=(?::\d+)?\s*(?:,\s*%\w+(?::\d+)?\s*)*=|:)", text))
        for name in dict.fromkeys(re.findall(r"%([A-Za-z_]\w*)", text)):
            if name in own or name in self.tensors:
                continue
            if name in TILE_NAMES[: len(self.sizes["#tiles"])]:
                continue
            if name in PLACES:
                self.heads[name] = f"%{name} = {PLACES[name]}"
                continue
            base, _, part = name.rpartition("_")
            if base in self.tensors and part in ("base", "offset", "pointer"):
                self.heads[f"{base} parts"] = parts(self.tensors[base])
                if part == "pointer":
                    self.heads[name] = pointer(self.tensors[base])
                continue
            value = self.sizes.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                self.heads[name] = f"%{name} = arith.constant {value} : index"
                continue
            if isinstance(value, Dyn):
                self.heads[name] = (
                    f"%{name} = arith.addi {self.inner.value(value)}, %zero_offset : index"
                )
                continue
            raise NoMatch(line, f"%{name} is {describe(value)}, which no kernel can read")
        return "\n".join("  " + row if row else row for row in text.splitlines())

    def buffer(self, tensor: Tensor) -> str:
        """The type of a tensor's buffer, ``$x``.

        Several buffers may become parts of one, each with where it begins. IREE's conversion for
        NVIDIA and AMD asks for that only where the type says that a buffer begins anywhere: without
        it all would be read from the start of the first.
        """
        plain = memref(tensor)
        if self.target not in ("cuda", "hip"):
            return plain
        sizes = [d if isinstance(d, int) else None for d in tensor.dims or ()]
        steps: list[str] = []
        step: int | None = 1
        for size in reversed(sizes):
            steps.insert(0, "?" if step is None else str(step))
            step = None if step is None or size is None else step * size
        return f"{plain[:-1]}, strided<[{', '.join(steps)}], offset: ?>>"

    def spelled(self, line: Line, expr: ast.Expr, source: str, sizes: dict[str, Any]) -> str:
        value = value_of(line, expr, sizes)
        match value:
            case Tensor(name=name) if name in self.tensors:
                return self.buffer(self.tensors[name])
            case DType():
                return value.mlir
            case bool():
                return str(value).lower()
            case int():
                return str(value)
            case float():
                return float_text(value)
        if isinstance(value, Dyn):
            raise NoMatch(
                line,
                f"${source} is a number known only at run time, and stands in the kernel's text: "
                "types and constants are fixed when it is compiled",
                expected="a number known when the kernel is compiled",
                found=describe(value),
            )
        raise NoMatch(line, f"${source} is {describe(value)}, which has no spelling in a kernel")


@functools.lru_cache(maxsize=4096)
def _parsed(source: str) -> ast.Expr:
    """An expression of a body: kernels of one rule and repeated rows have the same again."""
    return parse_expression(source)


def _group(types: Any) -> str:
    listed = list(types)
    return listed[0] if len(listed) == 1 else f"({', '.join(listed)})"


def targets_of(text: str) -> set[str]:
    """The kinds of target that the kernels in a program's text are written for."""
    return set(re.findall(rf'\b{re.escape(TARGET)} = "(\w+)"', text))
