"""Specs of every construct: what is made of them means the same, or they are refused at a line.

The compiler's own interpreter runs the original and what is made of it on the same ops, which must
end with the same attributes. A slow test compiles them, too, and compares what is dumped.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iree.compiler.dialects.transform.interpreter as interpreter
import pytest
from iree.compiler import ir

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.coverage import configured_by
from mlirules.drivers.tuning_specs.check import Source, check_spec
from mlirules.drivers.tuning_specs.link import link, linked_text
from mlirules.generator.emit.tuning_spec import MARKER

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "specs" / "corpus").glob("*.mlir"))
PAYLOAD = (HERE / "specs" / "payload.mlir").read_text()
LINK = "builtin.module(iree-codegen-link-tuning-specs)"


def expected(file: Path) -> tuple[str, list[str]]:
    found = re.match(r"// EXPECT: (\S+) (.*)", file.read_text())
    assert found is not None
    return found[1], found[2].split()


def annotated(spec: str, payload: str = PAYLOAD) -> tuple[str, str]:
    """The ops that a spec was run on; and the attributes that it set, which are part of them."""
    context = ir.Context()
    library = ir.Module.parse(spec, context)
    held = [op.operation for op in library.body.operations]
    if not any(_is_entry(op) for op in held):  # modules beside one another: linked first
        compiler.run_passes(library, LINK)
        held = [op.operation for op in library.body.operations]
    (entry,) = [op for op in held if _is_entry(op)]
    ops = ir.Module.parse(payload, context)
    interpreter.apply_named_sequence(ops.operation, entry, library.operation)
    for op in _ops(ops.operation):
        if MARKER in op.attributes:
            del op.attributes[MARKER]
    shown = str(ops.operation.get_asm(use_local_scope=True))
    return shown, "\n".join(re.findall(r"compilation_info = .*", shown))


def _is_entry(op: Any) -> bool:
    return "iree_codegen.tuning_spec_entrypoint" in op.attributes


def _ops(top: Any) -> Iterator[Any]:
    for region in top.regions:
        for block in region.blocks:
            for view in block.operations:
                yield view.operation
                yield from _ops(view.operation)


def remade(source: Source, target: str) -> str:
    return linked_text(link([source], precedence="first"), target)


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) >= 60
    assert {expected(file)[0] for file in CORPUS} == {"cpu", "hip:gfx942", "cuda:sm_80", "vulkan"}


@pytest.mark.parametrize("file", CORPUS, ids=lambda p: p.stem)
def test_a_spec_keeps_its_meaning_or_is_refused_at_a_line(file: Path) -> None:
    target, outcome = expected(file)
    text = file.read_text()
    source = check_spec(file.name, text, target=target)
    if outcome[0] == "refuses":
        fault = source.errors[0]
        assert fault.code == outcome[1], fault.render()
        assert fault.span.line > 1
        assert fault.span.source_line
        return
    assert source.errors == [], source.errors[0].render()
    wanted = dict(zip(outcome[::2], outcome[1::2], strict=True))
    entries = sum(kept.entry is not None for kept in source.kept)
    assert len(source.rules) == int(wanted.get("reads", 0))
    if wanted.get("keeps") == "whole":
        assert [kept.entry for kept in source.kept] == [None]
    else:
        assert entries == int(wanted.get("keeps", 0))
    if source.kept:  # and it is said where, and why
        assert all(fault.span.line > 1 and fault.span.source_line for fault in source.unread)
        assert source.unread
    original, given = annotated(text)
    again, _ = annotated(remade(source, target))
    assert again == original
    untouched = re.findall(r"compilation_info = .*", PAYLOAD)
    if source.rules and "kernel_config" not in given:
        assert given != "\n".join(untouched) or "placeholder" in file.name


# ---- generated specs ------------------------------------------------------------------------

_TYPES = {"f32": ("f32", "f32", "f32"), "f16": ("f16", "f16", "f32"), "i8": ("i8", "i8", "i32")}
_MAPS = {
    "nn": ["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"],
    "nt": ["(m, n, k) -> (m, k)", "(m, n, k) -> (n, k)", "(m, n, k) -> (m, n)"],
    "tn": ["(m, n, k) -> (k, m)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"],
}
_SIZES = (16, 32, 48, 64)


class Made:
    """Random specs for products, and a random program of products."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def spec(self, name: str = "", *, strict: bool = True) -> str:
        entries = [self.matcher(f"m{i}") for i in range(self.random.randint(1, 5))]
        actions = {
            "apply": '    transform.annotate %op "compilation_info" = %c : !transform.any_op, '
            "!transform.any_param\n",
            "apply_marked": '    transform.annotate %op "compilation_info" = %c : '
            "!transform.any_op, !transform.any_param\n"
            '    transform.annotate %op "marked" : !transform.any_op\n',
        }
        if self.random.random() < 0.2:  # what no rule can say
            actions["apply_marked"] += (
                '    %f = transform.get_parent_op %op <{op_name = "func.func"}> : '
                "(!transform.any_op) -> !transform.any_op\n"
                '    transform.annotate %f "marked" : !transform.any_op\n'
            )
        tried = ",\n".join(
            f"      @m{i} -> @{self.random.choice(list(actions))}" for i in range(len(entries))
        )
        head = ", iree_codegen.tuning_spec_with_default_entrypoint" if strict else ""
        return "\n".join(
            [
                f"module {name} attributes {{ transform.with_named_sequence{head} }} {{",
                *(
                    f"  transform.named_sequence @{n}(%op: !transform.any_op {{transform.readonly}}"
                    f", %c: !transform.any_param {{transform.readonly}}) {{\n{t}"
                    "    transform.yield\n  }"
                    for n, t in actions.items()
                ),
                *entries,
                "  transform.named_sequence @__kernel_config(%v: !transform.any_op "
                "{transform.consumed}) -> !transform.any_op",
                "      attributes { iree_codegen.tuning_spec_entrypoint } {",
                f"    %r = transform.foreach_match in %v\n{tried}",
                "      : (!transform.any_op) -> !transform.any_op",
                "    transform.yield %r : !transform.any_op",
                "  }",
                "}",
            ]
        )

    def matcher(self, name: str) -> str:
        pick = self.random
        layout, element = pick.choice(list(_MAPS)), pick.choice(list(_TYPES))
        lhs, rhs, out = _TYPES[element]
        lines = []
        if pick.random() < 0.85:
            lines.append("transform.iree.match.has_no_lowering_config %op : !transform.any_op")
        way = pick.random()
        if way < 0.15:
            lines.append('transform.match.operation_name %op ["linalg.matmul"] : !transform.any_op')
            lines += self.limits(by_class=False)
        elif way < 0.35:
            lines += self.program(layout, element)
            lines += self.limits(by_class=False)
        else:
            if pick.random() < 0.3:
                op = pick.choice(["linalg.matmul", "linalg.generic"])
                lines.append(f'transform.match.operation_name %op ["{op}"] : !transform.any_op')
            maps = ", ".join(f"affine_map<{m}>" for m in _MAPS[layout])
            lines.append(
                "%b, %m, %n, %k = transform.iree.match.contraction %op, "
                f"lhs_type = {lhs}, rhs_type = {rhs}, output_type = {out}, "
                f"indexing_maps = [{maps}] : !transform.any_op -> !transform.param<i64>"
            )
            for group in "mnk":
                if pick.random() < 0.3:
                    size = pick.choice((*_SIZES, -1))
                    lines.append(
                        f"transform.iree.match.dims_equal %{group}, [{size}] "
                        ": !transform.param<i64>"
                    )
            lines += self.limits(by_class=True)
        tiles = f"[{pick.choice((16, 32, 64))}, {pick.choice((16, 32, 64))}, 0]"
        vector = f"[{pick.choice((4, 8))}, {pick.choice((8, 16))}, 0]"
        lines += [
            "%c = transform.param.constant #iree_codegen.compilation_info<lowering_config = "
            f"#iree_cpu.lowering_config<distribution = {tiles}, "
            f"vector_common_parallel = {vector}, vector_reduction = [0, 0, {pick.choice((4, 8))}]>,"
            " translation_info = #iree_codegen.translation_info<pipeline = "
            "#iree_cpu.pipeline<DoubleTilingExpert>>> -> !transform.any_param",
            "transform.yield %op, %c : !transform.any_op, !transform.any_param",
        ]
        body = "\n".join("    " + line for line in lines)
        return (
            f"  transform.named_sequence @{name}(%op: !transform.any_op {{transform.readonly}}) -> "
            f"(!transform.any_op, !transform.any_param) {{\n{body}\n  }}"
        )

    def limits(self, *, by_class: bool) -> list[str]:
        pick = self.random
        operand = pick.choice((0, 1, 2))
        lines = [
            f"%v = transform.get_operand %op[{operand}] : (!transform.any_op) -> "
            "!transform.any_value"
        ]
        if pick.random() < 0.4:
            dim = pick.choice((0, 1))
            low, high = pick.choice(("none", "umin = 32")), pick.choice(("none", "umax = 48"))
            lines.append(
                f"transform.iree.match.dim_bounds %v[{dim}], {low}, {high} : !transform.any_value"
            )
        if pick.random() < 0.4:
            lines.append(
                f"transform.iree.match.dim_is_multiple_of %v[{pick.choice((0, 1))}], "
                f"{pick.choice((16, 32))} : !transform.any_value"
            )
        if not by_class and pick.random() < 0.5:
            size = pick.choice(("?", *_SIZES))
            lines.append(
                f"transform.iree.match.cast_compatible_type %v = tensor<{size}x?xf32> "
                ": !transform.any_value"
            )
        return lines if len(lines) > 1 else []

    def program(self, layout: str, element: str) -> list[str]:
        lhs, rhs, out = (f"tensor<?x?x{t}>" for t in _TYPES[element])
        body = self.generic(layout, element, ("%l", "%r", "%o"), (lhs, rhs, out))
        return [
            "%ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {",
            f"^bb0(%l: {lhs}, %r: {rhs}, %o: {out}):",
            f"  %x = {body}",
            "} : (!transform.any_op) -> (!transform.any_value, !transform.any_value)",
        ]

    @staticmethod
    def generic(layout: str, element: str, names: Any, types: Any) -> str:
        lhs, rhs, out = _TYPES[element]
        maps = ", ".join(f"affine_map<{m}>" for m in _MAPS[layout])
        kind = "f" if "f" in element else "i"
        cast = "" if lhs == out else ("arith.extf" if kind == "f" else "arith.extsi")
        widened = (
            [f"%p = {cast} %a : {lhs} to {out}", f"%q = {cast} %b : {rhs} to {out}"] if cast else []
        )
        first, second = ("%p", "%q") if cast else ("%a", "%b")
        lines = [
            *widened,
            f"%s = arith.mul{kind} {first}, {second} : {out}",
            f"%t = arith.add{kind} %acc, %s : {out}",
            f"linalg.yield %t : {out}",
        ]
        return (
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = "
            f'["parallel", "parallel", "reduction"]}} ins({names[0]}, {names[1]} : {types[0]}, '
            f"{types[1]}) outs({names[2]} : {types[2]}) {{\n^bb0(%a: {lhs}, %b: {rhs}, "
            f"%acc: {out}):\n" + "\n".join(lines) + f"\n}} -> {types[2]}"
        )

    def payload(self) -> str:
        pick = self.random
        functions = []
        for number in range(6):
            layout, element = pick.choice(list(_MAPS)), pick.choice(list(_TYPES))
            lhs, rhs, out = _TYPES[element]
            m, n, k = (str(pick.choice((*_SIZES, "?"))) for _ in range(3))
            sides = {"nn": ((m, k), (k, n)), "nt": ((m, k), (n, k)), "tn": ((k, m), (k, n))}
            shapes = (*sides[layout], (m, n))
            a, b, c = (
                f"tensor<{'x'.join(s)}x{t}>" for s, t in zip(shapes, (lhs, rhs, out), strict=True)
            )
            if layout == "nn" and pick.random() < 0.5:
                given = pick.random() < 0.3
                config = " {lowering_config = #iree_cpu.lowering_config<distribution = [7, 7, 0]>}"
                work = (
                    f"linalg.matmul{config if given else ''} ins(%l, %r : {a}, {b}) "
                    f"outs(%o : {c}) -> {c}"
                )
            else:
                work = self.generic(layout, element, ("%l", "%r", "%o"), (a, b, c))
            functions.append(
                f"func.func @f{number}(%l: {a}, %r: {b}, %o: {c}) -> {c} {{\n  %x = {work}\n"
                f"  return %x : {c}\n}}"
            )
        return "\n".join(functions)


def _loose(source: Source) -> list[str]:
    """Errors that a spec of random entries may have: sizes that exclude each other, dead ones."""
    return [f.code for f in source.errors if f.code not in ("overlap", "never-matches")]


def _compared(seed: int) -> str:
    """One random spec, and what is made of it, on one random program."""
    made = Made(seed)
    text, payload = made.spec(), made.payload()
    source = check_spec("made.mlir", text, target="cpu")
    assert not _loose(source), source.errors[0].render()
    if any(f.code == "never-matches" for f in source.errors):
        return "refused"
    original, given = annotated(text, payload)
    again, _ = annotated(remade(source, "cpu"), payload)
    assert again == original, f"seed {seed}"
    return "configured" if given else "unchanged"


def _linked(seed: int) -> str:
    """Several random specs, linked here and by the compiler, on one random program."""
    made = Made(seed)
    texts = [made.spec(f"@spec_{i}") for i in range(made.random.choice((2, 3)))]
    payload = made.payload()
    sources = [check_spec(f"{i}.mlir", t, target="cpu") for i, t in enumerate(texts)]
    if any(f.code == "never-matches" for s in sources for f in s.errors):
        return "refused"
    nested = "module @all attributes { transform.with_named_sequence } {\n"
    theirs, given = annotated(nested + "\n".join(texts) + "\n}\n", payload)
    ours, _ = annotated(linked_text(link(sources, precedence="first"), "cpu"), payload)
    assert ours == theirs, f"seed {seed}"
    return "configured" if given else "unchanged"


def _counted(compare: Any, seeds: range) -> None:
    told = [compare(seed) for seed in seeds]
    assert told.count("configured") > len(told) / 4, "too few of them show anything"
    assert told.count("refused") < len(told) / 2


def test_generated_specs_mean_the_same_when_read_and_written() -> None:
    _counted(_compared, range(25))


def test_generated_specs_link_as_the_compiler_links_them() -> None:
    _counted(_linked, range(10_000, 10_015))


@pytest.mark.slow
def test_a_thousand_generated_specs_mean_the_same() -> None:
    _counted(_compared, range(1000))


@pytest.mark.slow
def test_a_thousand_generated_links_are_the_compilers() -> None:
    _counted(_linked, range(10_000, 11_000))


# ---- compiled -------------------------------------------------------------------------------

_PROGRAMS = HERE / "specs" / "programs.mlir"


@pytest.mark.slow
@pytest.mark.parametrize("file", CORPUS, ids=lambda p: p.stem)
def test_dumped_configurations_are_equal(file: Path) -> None:
    target, outcome = expected(file)
    if outcome[0] == "refuses":
        pytest.skip("refused")
    text = file.read_text()
    source = check_spec(file.name, text, target=target)
    program, chosen = _PROGRAMS.read_text(), Target.parse(target)
    if "nested" in file.name:  # the compiler takes one module: its own linker's
        module = compiler.parse(text)
        compiler.run_passes(module, LINK)
        text = str(module)
    before = configured_by(program, chosen, text)
    after = configured_by(program, chosen, remade(source, target))
    assert before == after
    assert before
