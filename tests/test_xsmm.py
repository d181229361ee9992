"""Products by libxsmm: what they compute, for which CPU, and what is said without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.results import Around, Refusal
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import (
    Pipeline,
    Transformed,
    compile_program,
    rule_set,
    transform,
)
from mlirules.drivers.quality.ruletest import run_test
from mlirules.generator import objects, xsmm
from mlirules.language import consent
from mlirules.language.faults import MlirulesError
from mlirules.language.native import native
from mlirules.language.rule import Rule
from mlirules.language.stage import Stage

RULES = rule_set(("libraries/xsmm",))
BARE, BIAS = sorted(RULES, key=lambda rule: rule.name)
AVX2 = "x86-64-v3"
LACKING = xsmm.lacking(BARE)
needs_xsmm = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
needs_avx2 = pytest.mark.skipif(
    Target.parse(f"cpu:{AVX2}").available() is not None, reason="this CPU has no AVX2"
)


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without libxsmm."""
    monkeypatch.setattr(xsmm, "generator", lambda: None)


def _type(*dims: int) -> str:
    return f"!torch.vtensor<[{','.join(map(str, dims))}],f32>"


def product(rows: int, depth: int, columns: int, *, added: bool = False) -> str:
    """A product by weights that are packed already, each an argument."""
    x, p, u, t, c = (
        _type(*dims)
        for dims in (
            (rows, depth),
            (columns // 32, depth, 32),
            (depth, columns // 32, 32),
            (depth, columns),
            (rows, columns),
        )
    )
    three = "(!torch.int, !torch.int, !torch.int) -> !torch.list<int>"
    two = "(!torch.int, !torch.int) -> !torch.list<int>"
    d = f", %d: {_type(columns)}" if added else ""
    op = (
        f"torch.aten.addmm %d, %x, %t, %l0, %l0 : {_type(columns)}, {x}, {t}, "
        f"!torch.int, !torch.int -> {c}"
        if added
        else f"torch.aten.mm %x, %t : {x}, {t} -> {c}"
    )
    return f"""func.func @main(%x: {x}, %p: {p}{d}) -> {c} {{
  %l0 = torch.constant.int 1
  %l1 = torch.constant.int 0
  %l2 = torch.constant.int 2
  %l = torch.prim.ListConstruct %l0, %l1, %l2 : {three}
  %u = torch.aten.permute %p, %l : {p}, !torch.list<int> -> {u}
  %s0 = torch.constant.int {depth}
  %s1 = torch.constant.int {columns}
  %s = torch.prim.ListConstruct %s0, %s1 : {two}
  %t = torch.aten.view %u, %s : {u}, !torch.list<int> -> {t}
  %c = {op}
  return %c : {c}
}}
"""


def always() -> Pipeline:
    """The conversions for CPUs, and every product by libxsmm before them."""
    line = Pipeline.load("cpu")
    ours = Stage(phase="torch", rules=["libraries/xsmm"], driver="greedy")
    return replace(line, stages=[ours, *line.stages])


def applied(program: str, cpu: str = AVX2, driver: str = "greedy") -> Transformed:
    """The program after the rules of products, for a CPU."""
    stage = Stage(phase="torch", rules=["libraries/xsmm"], driver=driver)
    return transform(program, [stage], costs=Settings(Target.parse(f"cpu:{cpu}")))


def refused(rule: Rule, program: str, cpu: str = AVX2) -> Refusal:
    """Why the rule does not apply to the product of a program."""
    module = compiler.parse(program)
    engine = Engine([rule], module.context)
    (op,) = (op for op in ops_below(module.operation) if op.name in rule.root_ops)
    refusal = engine.explain(rule, op, Around("cpu", cpu=cpu))
    assert refusal is not None
    return refusal


# ---------------------------------------------------------------- numbers


@needs_xsmm
@needs_avx2
@pytest.mark.parametrize("added", [False, True], ids=["bare", "bias"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        (1, 5, 32),
        (7, 33, 96),
        (256, 16, 64),  # one workgroup of all rows
        (257, 9, 64),  # the last one has a single row
        (384, 8, 512),  # no rows are left over; two workgroups of columns
    ],
)
def test_numbers(rows: int, depth: int, columns: int, *, added: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    p = rng.standard_normal((columns // 32, depth, 32)).astype(np.float32)
    d = rng.standard_normal(columns).astype(np.float32)
    inputs = [x, p, d] if added else [x, p]
    binary, done = compile_program(
        product(rows, depth, columns, added=added), Target.parse(f"cpu:{AVX2}"), always()
    )
    assert done.outcome.total == 1
    (found,) = runtime.Program(binary, inputs, "local-sync").results()
    weights = p.transpose(1, 0, 2).reshape(depth, columns)
    wanted = x.astype(np.float64) @ weights + (d if added else 0.0)
    assert np.abs(np.asarray(found) - wanted).max() < 1e-5 * max(1.0, np.abs(wanted).max())


@needs_xsmm
@needs_avx2
def test_products_of_one_program_share_their_code() -> None:
    """Their executables are linked together: a function stands there once."""
    first, second = product(44, 16, 64), product(300, 16, 64)  # 300 rows leave 44 over
    both = first + second.replace("@main", "@other")
    done = applied(both)
    assert done.outcome.total == 2
    linked = re.findall(r'path = "([^"]*)"', done.text)
    assert len(linked) == 3
    assert len(set(linked)) == 2
    compile_program(both, Target.parse(f"cpu:{AVX2}"), always())


# ---------------------------------------------------------------- the CPU


@needs_xsmm
@pytest.mark.parametrize(
    ("cpu", "named", "vectors", "others"),
    [(AVX2, "hsw", "ymm", "zmm"), ("x86-64-v4", "skx", "zmm", "none")],
)
def test_code_is_for_the_cpu_that_is_compiled_for(
    cpu: str, named: str, vectors: str, others: str
) -> None:
    """Whatever CPU this machine has."""
    done = applied(product(20, 16, 64), cpu)
    assert f"@mlirules_xsmm_{named}_32_20_16_32_16_64_0(" in done.text
    (path,) = set(re.findall(r'path = "([^"]*)"', done.text))
    assert Path(path).is_file()
    code = xsmm.Product((32, 20, 16, 32, 16, 64), 0, {"hsw": 32, "skx": 64}[named]).code()
    assert f"%%{vectors}" in code
    assert f"%%{others}" not in code
    # How instructions of AVX-512 begin that take all 64 bytes of a register.
    found = len(re.findall(rb"\x62..\x48", Path(path).read_bytes(), re.DOTALL))
    assert (found > 50) == (named == "skx")
    assert (found == 0) == (named == "hsw")


@needs_xsmm
@pytest.mark.parametrize(("cpu", "named"), [(AVX2, "hsw"), ("x86-64-v4", "skx")])
def test_what_is_weighed_is_for_that_cpu_too(
    cpu: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms of a piece: libxsmm's, and the kernel that the pipeline has behind it."""
    weighed: list[str] = []

    def timed(_: cost.Judge, __: str, pair: tuple[cost.Candidate, ...]) -> dict[str, str]:
        weighed.extend(candidate.text for candidate in pair)
        return {"reason": "nothing is timed here"}

    monkeypatch.setattr(cost.Judge, "_time", timed)
    stages = [
        Stage(phase="torch", rules=["libraries/xsmm"], driver="cost"),
        Stage(phase="torch", rules=["kernels/kernel-mm"], driver="greedy"),
    ]
    settings = Settings(Target.parse(f"cpu:{cpu}"), measure=True)
    rows = 22 if named == "hsw" else 23  # measured by no other test
    done = transform(product(rows, 16, 64), stages, costs=settings)
    (decision,) = done.outcome.decisions
    assert not decision.applies
    plain, ours = weighed
    assert f"mlirules_xsmm_{named}" in ours
    assert ("vector<8xf32>" in plain) == (named == "hsw")


def test_a_cpu_without_avx2_is_refused_at_its_line() -> None:
    refusal = refused(BARE, product(20, 16, 64), "x86-64-v2")
    assert str(refusal.line) == "vector_bytes >= 32"


# ---------------------------------------------------------------- chosen by cost


def test_it_is_left_alone_unless_it_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    if LACKING is not None:
        pytest.skip(LACKING)
    program = product(24, 16, 96)
    (decision,) = applied(program, driver="cost").outcome.decisions
    assert not decision.applies
    assert "--measure times it" in decision.reason
    found = {"before_ms": 2.0, "after_ms": 1.0, "ratio": 2.0, "ratio_low": 1.9}
    found |= {"ratio_high": 2.1, "rounds": 30}
    monkeypatch.setattr(cost.Judge, "_time", lambda *_: found)
    stage = Stage(phase="torch", rules=["libraries/xsmm"], driver="cost")
    settings = Settings(Target.parse(f"cpu:{AVX2}"), measure=True)
    (decision,) = transform(program, [stage], costs=settings).outcome.decisions
    assert decision.applies
    # What was measured decides from then on, also where nothing is to be measured.
    (decision,) = applied(program, driver="cost").outcome.decisions
    assert decision.applies
    assert decision.cached


# ---------------------------------------------------------------- without it


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize(("rule", "added"), [(BARE, False), (BIAS, True)], ids=["bare", "bias"])
def test_without_libxsmm_the_rule_says_what_to_install(rule: Rule, *, added: bool) -> None:
    refusal = refused(rule, product(20, 16, 64, added=added))
    assert "whole: libxsmm_gemm_generator is not here" in refusal.message
    assert "libxsmm-dev" in refusal.message
    span = refusal.fault(rule).span
    assert Path(span.path).name == "kernel-xsmm-mm.yaml"
    row = Path(rule.path).read_text().split("\n")[span.line - 1]
    assert row[span.column - 1 :].startswith("whole: ")


@pytest.mark.usefixtures("without")
def test_without_libxsmm_inline_tests_are_skipped() -> None:
    for test in BARE.tests:
        result = run_test(BARE, test, devices=["cpu"])
        assert result.passed, result.problems
        assert result.skipped == ([xsmm.MISSING] if test.input is not None else [])


@pytest.mark.usefixtures("without")
def test_without_libxsmm_its_pipeline_is_the_default() -> None:
    """And says so: nothing that was asked for is left out in silence."""
    program = product(40, 16, 64)
    settings = Settings(Target.parse(f"cpu:{AVX2}"))
    ours, plain = (transform(program, name, costs=settings) for name in ("cpu-xsmm", "cpu-fast"))
    assert ours.text == plain.text
    said = [f"{BARE.name} left alone: {xsmm.MISSING}"]
    assert [note for note in ours.outcome.notes if note not in plain.outcome.notes] == said


def test_without_a_c_compiler_the_rule_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if xsmm.generator() is None:
        pytest.skip(xsmm.MISSING)
    for module in (objects, xsmm):
        monkeypatch.setattr(module, "c_compiler", lambda: None)
    assert objects.NO_COMPILER in refused(BARE, product(20, 16, 64)).message
    assert xsmm.lacking(BARE) == objects.NO_COMPILER


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo out of registers >&2; exit 3", "32 20 16 32 16 64 1 0 0 0 hsw nopf SP: out of reg"),
        ("exit 0", "it wrote nothing"),
        ('echo "no C" > "$2"', "mlirules_xsmm_hsw_32_20_16_32_16_64_0 does not compile"),
    ],
)
def test_a_generator_that_fails_is_a_fault_of_the_rule(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if objects.c_compiler() is None:
        pytest.skip(objects.NO_COMPILER)
    made = tmp_path / "libxsmm_gemm_generator"
    made.write_text(f"#!/bin/sh\n{program}\n")
    made.chmod(0o755)
    monkeypatch.setattr(xsmm, "generator", lambda: str(made))
    refusal = refused(BARE, product(20, 16, 64))
    assert refusal.error is not None
    assert said in str(refusal.error)
    assert "kernel-xsmm-mm.yaml:40:15" in str(refusal.error)


# ---------------------------------------------------------------- what a file may say


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = Path(BARE.path).read_text()
    assert old in text
    path = tmp_path / "kernel-xsmm-mm.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


BARE_WHOLE = "whole: {m: 32, n: BM, k: K, lda: 32, ldb: K, ldc: N, beta: 0}"
XSMM = "        xsmm:\n"


@pytest.mark.parametrize(
    ("old", "new", "said", "at"),
    [
        (BARE_WHOLE, BARE_WHOLE.replace("n: BM", "n: BX"), "'BX' stands nowhere", "BX"),
        (BARE_WHOLE, BARE_WHOLE.replace(", beta: 0", ""), "the key 'beta' is missing", "m: 32"),
        (BARE_WHOLE, BARE_WHOLE.replace("beta: 0", "beta: 2"), "beta", "2"),
        (BARE_WHOLE, BARE_WHOLE.replace("whole", "hole"), "no function 'whole' is linked", "whole"),
        ("- targets: [cpu]", "- targets: [vulkan]", "linked in for the cpu only", "object"),
        (
            "        xsmm:\n",
            "        functions: {one: '()'}\n        xsmm:\n",
            "is not named",
            "functions",
        ),
        (
            "        xsmm:\n",
            "        source: a.c\n        xsmm:\n",
            "no function of the C",
            "source",
        ),
        (
            "        xsmm:\n",
            "        source: a.c\n        functions: {rest: '()'}\n        xsmm:\n",
            "'rest' is a function in C already",
            "rest",
        ),
    ],
)
def test_faults_in_the_file(old: str, new: str, said: str, at: str, tmp_path: Path) -> None:
    path = changed(tmp_path, old, new)
    with pytest.raises(MlirulesError) as caught:
        rule_set((str(path),))
    found = [fault for fault in caught.value.faults if said in fault.message]
    assert found, str(caught.value)
    span = found[0].span
    assert span.source_line[span.column - 1 :].startswith(at)


def test_an_object_of_nothing(tmp_path: Path) -> None:
    path = changed(tmp_path, "        xsmm:\n", "        xsmm: {}\n        other:\n")
    text = path.read_text()
    first, last = text.index("        other:\n"), text.index("      body:\n")
    path.write_text(text[:first] + text[last:])
    with pytest.raises(MlirulesError, match="nothing is linked in"):
        rule_set((str(path),))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ldc: N", "ldc: 16", "16 is 16: columns of 32 rows cannot stand so close in whole"),
        ("ldb: K", "ldb: K - 1", "K - 1 is 15: columns of 16 rows cannot stand so close in whole"),
        ("n: BM", "n: M - 20", "M - 20 is 0: from 1 to 2147483647"),
    ],
)
def test_sizes_that_cannot_be(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = changed(tmp_path, BARE_WHOLE, BARE_WHOLE.replace(old, new))
    (rule,) = (r for r in rule_set((str(path),)) if r.name == BARE.name)
    assert said in refused(rule, product(20, 16, 64)).message


def test_sizes_known_only_at_run_time_are_refused_at_theirs(tmp_path: Path) -> None:
    path = changed(tmp_path, "  - static(x)\n", "")
    text = path.read_text().replace("M if M <= 256 else 128", "128")
    text = text.replace("M % BM if M % BM > 0 else BM", "M")
    path.write_text(text)
    (rule,) = (r for r in rule_set((str(path),)) if r.name == BARE.name)
    refusal = refused(rule, product(20, 16, 64).replace("[20,", "[?,"))
    assert refusal.message == (
        "REST is known only at run time: the code of rest is for fixed sizes"
    )
    assert str(refusal.line) == "REST"


def test_others_need_consent(tmp_path: Path) -> None:
    with consent.given():
        assert native(BARE) is None
        path = changed(tmp_path, "summary:", "summary:")
        (rule, _) = rule_set((str(path),))
        need = native(rule)
    assert need is not None
    assert "runs a kernel's body as it is written" in need.what


def test_engine_needs_no_generator_where_the_match_is_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xsmm.Product, "object", lambda _: pytest.fail("asked for code"))
    module = compiler.parse(product(20, 16, 64))
    engine = Engine([BARE], module.context)
    assert engine.run(module, Options(target="cpu", cpu="x86-64-v2")).total == 0
