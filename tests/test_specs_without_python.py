"""Specs for a plain compiler do what the Python driver does, and never nothing in silence."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.compiler import CompileError
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.preprocessing import artefacts, transform_spec
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.generator.emit import artefacts as forms
from mlirules.language.faults import MlirulesError
from mlirules.language.rule import Rule

HERE = Path(__file__).parent
CPU = Target.parse("cpu")
SETS = [str(HERE / "spec_rules"), "linalg"]
RULES = [rule for name in SETS for rule in rule_set((name,))]
NORMAL = "builtin.module(canonicalize,cse,canonicalize,symbol-dce)"


def phase(text: str) -> str:
    return compiler.lower_to(text, CPU, "preprocessing")


def normal(text: str) -> str:
    """The program without dead code, casts folded, every op as late as its first user allows."""
    module = compiler.parse(text)
    compiler.run_passes(module, NORMAL)
    for function in list(module.body.operations):
        operation = function.operation
        if operation.name == "stream.executable":
            last = list(module.body.operations)[-1].operation
            if last != operation:
                operation.move_after(last)
            continue
        for region in operation.regions:
            for block in region.blocks:
                in_order(block)
    return str(module)


def in_order(block: Any) -> None:
    operations = [op.operation for op in block.operations]
    order: list[Any] = []

    def visit(op: Any) -> None:
        if op in order:
            return
        for value in read(op):
            if value.owner in operations:
                visit(value.owner)
        order.append(op)

    def read(op: Any) -> list[Any]:
        inner = [o.operation for r in op.regions for b in r.blocks for o in b.operations]
        return [*op.operands, *(value for o in inner for value in read(o))]

    visit(operations[-1])
    for op in order[:-1]:
        op.move_before(operations[-1])


def by_python(rule: Rule, text: str) -> tuple[str, int]:
    module = compiler.parse(text)
    done = Engine([rule], module.context).run(module, Options(driver="walk"))
    assert module.operation.verify()
    return str(module), done.total


def by_spec(spec: str, text: str, path: Path) -> str:
    path.write_text(spec)
    flag = f"--iree-preprocessing-transform-spec-filename={path}"
    return compiler.lower_to(text, compiler.Job(CPU, flags=(flag,)), "preprocessing")


def same(a: str, b: str) -> bool:
    context = compiler.context()
    left, right = (compiler.parse(text, "<side>", context) for text in (a, b))
    return bool(left.operation.is_structurally_equivalent(right.operation))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_spec_and_driver_give_equal_ir(rule: Rule, tmp_path: Path) -> None:
    general = transform_spec([rule], "general")
    spoken = 0
    for number, test in enumerate(rule.tests):
        if test.input is None:
            continue
        before = phase(test.input)
        driven, count = by_python(rule, before)
        if count == 0:  # at this phase the program is another one
            continue
        specs = [transform_spec([rule], "special", program=compiler.parse(before))]
        if general.text:
            specs.append(general)
        for which, spec in enumerate(specs):
            if not spec.text:
                assert spec.refused[0].span.line, "a refusal names its line"
                continue
            spoken += 1
            made = by_spec(spec.text, test.input, tmp_path / f"{number}-{which}.mlir")
            assert same(normal(made), normal(driven)), f"{test.name}\n{made}\n--- and\n{driven}"
            assert not same(normal(made), normal(before)), "the spec changed nothing"
    if not spoken:
        assert general.refused, "a rule that no spec says must say why"
        pytest.skip(general.refused[0].message)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(r, marks=[] if "spec_rules" in r.path else pytest.mark.slow, id=r.name)
        for r in RULES
        if r.name != "floor-of-ceil"
    ],
)
def test_spec_leaves_what_the_driver_leaves(rule: Rule, tmp_path: Path) -> None:
    spec = transform_spec([rule], "quiet", require=False)
    loud = transform_spec([rule], "loud")
    positive = next(t.input for t in rule.tests if t.input is not None)
    if not spec.text:
        program = compiler.parse(phase(positive))
        spec = transform_spec([rule], "quiet", program=program, require=False)
        loud = transform_spec([rule], "loud", program=program)
    if not spec.text:
        pytest.skip(spec.refused[0].message)
    for number, test in enumerate(rule.tests):
        if test.unchanged is None:
            continue
        before = phase(test.unchanged)
        made = by_spec(spec.text, test.unchanged, tmp_path / f"{number}.mlir")
        assert same(normal(made), normal(before)), made
        with pytest.raises(CompileError, match="greater than or equal to 1, got 0"):
            by_spec(loud.text, test.unchanged, tmp_path / f"{number}-loud.mlir")


def test_pdl_spec_in_a_plain_compiler(tmp_path: Path) -> None:
    rule = next(r for r in RULES if r.name == "floor-of-ceil")
    made = forms.artefacts([rule], "rules", ["pdl"], folder=tmp_path)
    forms.write(made, tmp_path)
    test = next(t for t in rule.tests if t.input is not None)
    flags = (tmp_path / "rules.pdl.flags").read_text().split()
    after = compiler.lower_to(
        test.input or "", compiler.Job(CPU, flags=tuple(flags)), "preprocessing"
    )
    driven, count = by_python(rule, phase(test.input or ""))
    assert count == 1
    assert "math.floor" not in after
    assert same(normal(after), normal(driven))


def test_a_plain_iree_compile_with_the_flags_file(tmp_path: Path) -> None:
    """No Python in the compilation: iree-compile MODEL @FLAGS, and the numbers are right."""
    rules = [r for r in RULES if r.name == "transposed-matmul-any-size"]
    made = artefacts(transform_spec(rules, "rules"), "rules", tmp_path)
    forms.write(made, tmp_path)
    test = next(t for t in rules[0].tests if t.input is not None)
    (tmp_path / "model.mlir").write_text(test.input or "")
    command = [
        str(compiler.tool_path("iree-compile")),
        "model.mlir",
        f"@{tmp_path / 'rules.transform.flags'}",
        *CPU.flags,
    ]
    done = subprocess.run(
        [*command, "-o", "model.vmfb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [*command, "--compile-to=preprocessing", "-o", "-"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "linalg.matmul" in shown.stdout
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 8)).astype(np.float32)
    y = random.normal(size=(16, 8)).astype(np.float32)
    (z,) = runtime.run((tmp_path / "model.vmfb").read_bytes(), [x, y], CPU, "mmt")
    np.testing.assert_allclose(z, x @ y.T, rtol=1e-5, atol=1e-5)


def refusal(where: str, tmp_path: Path) -> str:
    rule = (HERE / "spec_rules" / "transposed-matmul-any-size.yaml").read_text()
    rule = rule.replace("  - divisible(K, 4)\n", f"  - {where}\n")
    rule = rule.replace("because: divisible(K, 4)", f"because: {where}")
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"  # rule sets are read once
    path.write_text(rule)
    spec = transform_spec(rule_set((str(path),)), "refused")
    assert not spec.text
    (fault,) = spec.refused
    assert fault.span.line
    return (fault.span.source_line or "").strip() + " | " + fault.message


def test_what_a_spec_cannot_say_is_refused_at_its_line(tmp_path: Path) -> None:
    said = refusal("static(a)", tmp_path)
    assert said.startswith("- static(a) | cannot be said for sizes that are not known")
    said = refusal("K + M > 4", tmp_path)
    assert said.startswith("- K + M > 4 | ")
    said = refusal("one_use(a)", tmp_path)
    assert said == "- one_use(a) | a is not the result of an op of the match"
    said = refusal("not one_use(c)", tmp_path)
    assert said == "- not one_use(c) | no match op answers this question about uses"


def test_constants_in_a_body_are_refused(tmp_path: Path) -> None:
    rule = (HERE / "spec_rules" / "maximum-as-select.yaml").read_text()
    rule = rule.replace("y[...] = max(a[...], b[...])", "y[...] = max(a[...] * 2, b[...])")
    path = tmp_path / "rule.yaml"
    path.write_text(rule)
    (fault,) = transform_spec(rule_set((str(path),)), "refused").refused
    assert "the body computes with a value from outside" in fault.message
    assert "max(a[...] * 2, b[...])" in (fault.span.source_line or "")


def test_torch_rules_are_refused_at_the_torch_op() -> None:
    spec = transform_spec(rule_set(("torch/to-linalg/elementwise/torch-relu-to-linalg",)), "torch")
    assert not spec.text
    (fault,) = spec.refused
    assert "no torch op is left" in fault.message
    assert "torch.aten.relu" in (fault.span.source_line or "")


def test_rules_of_higher_benefit_go_first(tmp_path: Path) -> None:
    low = (HERE / "spec_rules" / "maximum-as-select.yaml").read_text()
    high = low.replace("rule: maximum-as-select", "rule: maximum-as-other\nbenefit: 9").replace(
        "select(a[...] > b[...], a[...], b[...])", "select(a[...] < b[...], b[...], a[...])"
    )
    (tmp_path / "a-low.yaml").write_text(low)
    (tmp_path / "b-high.yaml").write_text(high.replace("CHECK: arith.select", "CHECK: select"))
    rules = rule_set((str(tmp_path),))
    spec = transform_spec(rules, "both")
    test = next(t for t in rules[0].tests if t.input is not None)
    made = by_spec(spec.text, test.input or "", tmp_path / "spec.mlir")
    assert "arith.cmpf olt" in made
    assert 'mlirules.rule = "maximum-as-other"' in made
    assert 'mlirules.rule = "maximum-as-select"' not in made


def test_a_program_without_a_match_is_told_before_anything_is_compiled() -> None:
    rule = next(r for r in RULES if r.name == "log-of-exp-of-tensors")
    program = compiler.parse(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  %y = math.log %x : tensor<4xf32>\n  return %y : tensor<4xf32>\n}"
    )
    (fault,) = transform_spec([rule], "none", program=program).refused
    assert "matches nothing in the program" in fault.message
    assert "math.exp" in (fault.span.source_line or "")


def test_specs_are_the_same_every_time() -> None:
    rules = rule_set((str(HERE / "spec_rules"),))
    assert transform_spec(rules, "one").text == transform_spec(rules, "one").text


def test_a_fault_in_a_spec_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MlirulesError):
        by_spec("module {", "func.func @f() { return }", tmp_path / "spec.mlir")
