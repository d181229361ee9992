"""Programs may be as deep as MLIR's own parser goes (some 3,900 levels).

Python would end at 1,000 calls within each other.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.irdiff import layout
from mlirules.drivers.irdiff.changes import Kind, compare
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.initializers import evaluate
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.drivers.quality.explain import diagnoses
from mlirules.drivers.quality.reduce import piece
from mlirules.drivers.tuning_specs.compile import dumped
from mlirules.language.loader import load_rule

CPU = Target("cpu")
ROOT = Path(__file__).resolve().parent.parent
DEPTH = 600
RULE = """\
rule: turn
kind: fusion
summary: A rule of a test.
reason: It is applied at any depth.
types: {x: 'vtensor<M x T>', y: 'vtensor<M x T>'}
match: ['y = torch.aten.relu(x)']
rewrite: ['y = torch.aten.tanh(x)']
tests:
  - name: positive
    input: "module {}"
    check: "CHECK: module"
  - name: negative
    unchanged: "module {}"
"""
TORCH = "!torch.vtensor<[4],f32>"
TENSOR = "tensor<4xf32>"


def nested(op: str, type_: str) -> str:
    """``DEPTH`` times ``scf.if`` within each other, and ``op`` in and after each of them."""
    lines = [f"func.func @main(%x: {type_}, %c: i1) -> {type_} {{"]
    lines += [f"%r{n} = scf.if %c -> ({type_}) {{" for n in range(DEPTH)]
    lines += [f"%s{DEPTH} = {op.format('%x')}", f"scf.yield %s{DEPTH} : {type_}"]
    for n in reversed(range(DEPTH)):
        lines += [f"}} else {{ scf.yield %x : {type_} }}", f"%s{n} = {op.format(f'%r{n}')}"]
        lines.append(f"scf.yield %s{n} : {type_}" if n else f"return %s0 : {type_}")
    return "\n".join([*lines, "}\n"])


def torch(name: str) -> str:
    return nested(f"torch.aten.{name} {{}} : {TORCH} -> {TORCH}", TORCH)


def rule() -> Any:
    return load_rule("turn.yaml", RULE, ops=compiler.op_oracle)


@pytest.mark.parametrize(
    "driver",
    ["greedy", "walk", "conversion", pytest.param("saturate", marks=pytest.mark.slow)],
)
def test_rules_apply_at_any_depth(driver: Any) -> None:
    context = compiler.context()
    module = compiler.parse(torch("relu"), "deep", context)
    done = Engine([rule()], context).run(module, Options(driver=driver, weigh=_weight))
    assert done.total == DEPTH + 1
    assert str(module) == str(compiler.parse(torch("tanh"), "deep", context))


def _weight(op: Any) -> float:
    return 1.0 if op.name == "torch.aten.tanh" else 2.0


def test_a_deep_program_is_explained() -> None:
    context = compiler.context()
    module = compiler.parse(torch("relu"), "deep", context)
    found = diagnoses(Matcher(rule(), context), module)
    assert len(found) == DEPTH + 1
    assert all(one.applies for one in found)


def test_deep_programs_are_compared() -> None:
    before = torch("relu")
    deepest = f"%s{DEPTH} = torch.aten."
    found = compare(before, before.replace(f"{deepest}relu", f"{deepest}tanh"))
    (change,) = found.changes
    assert change.kind is Kind.REPLACED
    assert [op.name for op in change.after] == ["torch.aten.tanh"]
    rows = layout.rows(found)
    gone, new = (row for row in rows if row.status != "same")
    assert (gone.status, new.status) == ("deleted", "inserted")
    assert "torch.aten.relu" in found.before.lines[gone.left_line - 1]
    assert "torch.aten.tanh" in found.after.lines[new.right_line - 1]
    assert len(rows) == len(found.before.lines) + 1


def test_a_deep_program_is_compiled() -> None:
    text = nested(f"arith.addf {{}}, %x : {TENSOR}", TENSOR)
    binary, _ = compile_program(text, CPU)
    x = np.arange(4, dtype=np.float32)
    for taken, times in ((True, DEPTH + 2), (False, 2)):
        (found,) = runtime.run(binary, [x, np.array(taken)], CPU)
        np.testing.assert_array_equal(found, x * times)


def test_deep_dumps_are_read(tmp_path: Path) -> None:
    copied = f"linalg.copy ins(%x : {TENSOR}) outs({{}} : {TENSOR}) -> {TENSOR}"
    (tmp_path / "deep.mlir").write_text(nested(copied, TENSOR), encoding="utf-8")
    ((ops, _),) = dumped(tmp_path, compiler.context())
    assert [(op.dispatch, op.op) for op in ops] == [("main", "linalg.copy")] * (DEPTH + 1)


def test_a_long_chain_is_cut_to_a_piece() -> None:
    length = 3000
    chain = [f"%v{n + 1} = torch.aten.relu %v{n} : {TORCH} -> {TORCH}" for n in range(length)]
    text = "\n".join(
        [
            f"func.func @main(%v0: {TORCH}) -> {TORCH} {{",
            *chain,
            f"return %v{length} : {TORCH}",
            "}",
        ]
    )
    made, arguments = piece(text, 10, length - 10)
    assert arguments == [(9, 0)]
    names = [op.name for op in ops_below(compiler.parse(made).operation)]
    assert names.count("torch.aten.relu") == length - 19


def test_loops_within_bodies_are_left_to_the_compiler() -> None:
    """Nor are they evaluated as if their arrays were the body's."""
    depth = 400
    head = (
        "linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = "
        f'["parallel"]}} outs(%e : {TENSOR}) {{\n^bb0(%bN: f32):'
    )
    lines = [
        f"util.global private @made : {TENSOR}",
        "util.initializer {",
        f"%e = tensor.empty() : {TENSOR}",
        "%one = arith.constant 1.0 : f32",
        *(f"%g{n} = {head.replace('bN', f'b{n}')}" for n in range(depth)),
        f"linalg.yield %one : f32 }} -> {TENSOR}",
        *([f"linalg.yield %one : f32 }} -> {TENSOR}"] * (depth - 1)),
        f"util.global.store %g0, @made : {TENSOR}",
        "util.return",
        "}",
    ]
    module = compiler.parse("\n".join(lines))
    before = str(module)
    assert not evaluate(module, {})
    assert str(module) == before


# ---------------------------------------------------------------- the search for recursion

#: Functions that lead to themselves in the rooms that go over programs, by what bounds them.
BOUNDED = {
    "an affine expression": {"_place"},
    "a body, in which no op has a region": {"_generic", "_nested", "results_of"},
    "a rule's expression": {"_body", "_guard"},
    "one more look, at operands that were settled": {"_learn", "_look_up"},
    "a pipeline's stages": {
        *("_judge", "_later_stages", "_run_stage", "_transformed", "transform"),
    },
    "an element type, which a complex one has one of": {"bits"},
    "a configuration that the compiler offers for an op": {"names", "plain"},
    "tuning_specs.attributes.MAX_DEPTH": {"group", "tagged", "value"},
    "tuning_specs.steps.MAX_INCLUDES": {"include", "run"},
}


def _leading_to_themselves(tree: ast.Module) -> set[str]:
    """Functions of a module that call themselves, through others of it or at once."""
    calls: dict[str, set[str]] = {}
    methods = {id(part) for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for part in c.body}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            name = "." * (id(function) in methods) + function.name
            calls.setdefault(name, set()).update(_called(function))
    found = set()
    for name in calls:
        seen: set[str] = set()
        left = [name]
        while left:
            more = calls.get(left.pop(), set()) - seen
            seen |= more
            left += more
        if name in seen:
            found.add(name.removeprefix("."))
    return found


def _called(function: ast.FunctionDef) -> Iterator[str]:
    """What it calls: functions by their names, methods of its own with a dot before them."""
    steps = {id(n.value) for n in ast.walk(function) if isinstance(n, ast.Yield)}
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or id(node) in steps:  # gone through by `flattened`
            continue
        called = node.func
        if isinstance(called, ast.Name):
            yield called.id
        elif isinstance(called, ast.Attribute) and ast.unparse(called.value) in ("self", "cls"):
            yield f".{called.attr}"


def test_nothing_recurses_over_a_program() -> None:
    found = set()
    for room in ("apply", "irdiff", "iree", "pipelines", "tuning_specs"):
        for file in sorted((ROOT / "drivers" / room).rglob("*.py")):
            found |= _leading_to_themselves(ast.parse(file.read_text(encoding="utf-8")))
    assert found == set().union(*BOUNDED.values())


def test_the_search_for_recursion_finds_it() -> None:
    text = """
def one(op): return [one(o) for o in op]
class Walk:
    def two(self, op): self.three(op)
    def three(self, op): self.two(op)
    def steps(self, op): yield self.steps(op)
    def four(self, op): yield from self.four(op)
    def five(self, op): five(op)
def five(op): one(op)
"""
    assert _leading_to_themselves(ast.parse(text)) == {"one", "two", "three", "four"}
