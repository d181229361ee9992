"""Kernel rules: what is refused when they are read and when they meet a program; what they make.

The numbers of the shipped kernels on cpu and vulkan are checked by their inline tests.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.compiler import Job, lower_to
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines import preprocessing as transformspec
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import Pipeline, compile_program, rule_set, transform
from mlirules.drivers.quality.ruletest import run_test
from mlirules.generator import objects
from mlirules.generator.emit import artefacts as forms
from mlirules.language import consent
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.language.model import RunDoc
from mlirules.language.rule import Rule
from mlirules.language.stage import Stage
from torch_programs import convolution

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "kernels"
GEMM = next(r for r in rule_set(("kernels",)) if r.name == "kernel-gemm")
CONVOLUTIONS = rule_set(("kernels/kernel-convolution", "kernels/kernel-depthwise"))
FOUR = ["cpu", "vulkan", "cuda:sm_80", "hip:gfx942"]


ATTENTION = """
func.func @main(%q: !torch.vtensor<[1,2,32,8],f32>, %k: !torch.vtensor<[1,2,48,8],f32>,
                %v: !torch.vtensor<[1,2,48,20],f32>) -> !torch.vtensor<[1,2,32,20],f32> {
  %none = torch.constant.none
  %zero = torch.constant.float 0.0
  %false = torch.constant.bool false
  %o = torch.aten.scaled_dot_product_attention %q, %k, %v, %none, %zero, %false, %none, %false
      : !torch.vtensor<[1,2,32,8],f32>, !torch.vtensor<[1,2,48,8],f32>,
        !torch.vtensor<[1,2,48,20],f32>, !torch.none, !torch.float, !torch.bool, !torch.none,
        !torch.bool -> !torch.vtensor<[1,2,32,20],f32>
  return %o : !torch.vtensor<[1,2,32,20],f32>
}
"""
#: As images lie: what belongs to a place is one column.
PLANES = """
func.func @main(%q: !torch.vtensor<[1,2,8,49],f32>, %k: !torch.vtensor<[1,2,8,49],f32>,
                %v: !torch.vtensor<[1,2,20,49],f32>) -> !torch.vtensor<[1,2,20,49],f32> {
  %i0 = torch.constant.int 0
  %i1 = torch.constant.int 1
  %i2 = torch.constant.int 2
  %false = torch.constant.bool false
  %i3 = torch.constant.int 3
  %l = torch.prim.ListConstruct %i0, %i1, %i3, %i2
      : (!torch.int, !torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %q, %l
      : !torch.vtensor<[1,2,8,49],f32>, !torch.list<int> -> !torch.vtensor<[1,2,49,8],f32>
  %s = torch.aten.matmul %t, %k
      : !torch.vtensor<[1,2,49,8],f32>, !torch.vtensor<[1,2,8,49],f32>
        -> !torch.vtensor<[1,2,49,49],f32>
  %w = torch.aten._softmax %s, %i3, %false
      : !torch.vtensor<[1,2,49,49],f32>, !torch.int, !torch.bool -> !torch.vtensor<[1,2,49,49],f32>
  %u = torch.aten.permute %w, %l
      : !torch.vtensor<[1,2,49,49],f32>, !torch.list<int> -> !torch.vtensor<[1,2,49,49],f32>
  %o = torch.aten.matmul %v, %u
      : !torch.vtensor<[1,2,20,49],f32>, !torch.vtensor<[1,2,49,49],f32>
        -> !torch.vtensor<[1,2,20,49],f32>
  return %o : !torch.vtensor<[1,2,20,49],f32>
}
"""


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


def applied(program: str, kind: str, rules: str = "kernels") -> str:
    stages = [Stage(phase="torch", rules=[rules], driver="greedy")]
    done = transform(program, stages, kind=kind)
    assert done.outcome.total == 1
    return done.text


def gemm(m: int, n: int, k: int) -> str:
    a, b, c = (f"!torch.vtensor<[{s}],f32>" for s in (f"{m},{k}", f"{k},{n}", f"{m},{n}"))
    return (
        f"func.func @main(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = torch.aten.mm %a, %b : {a}, {b} -> {c}\n  return %c : {c}\n}}\n"
    )


def test_one_executable_for_equal_shapes() -> None:
    program = (
        gemm(64, 64, 64)
        .replace(
            "  return",
            "  %d = torch.aten.mm %c, %b : "
            "!torch.vtensor<[64,64],f32>, !torch.vtensor<[64,64],f32> "
            "-> !torch.vtensor<[64,64],f32>\n"
            "  return",
        )
        .replace("return %c", "return %d")
    )
    stages = [Stage(phase="torch", rules=["kernels"], driver="greedy")]
    done = transform(program, stages)
    assert done.outcome.total == 2
    assert len(re.findall("stream.executable private", done.text)) == 1
    assert len(re.findall("flow.dispatch @", done.text)) == 2


@pytest.mark.parametrize("driver", ["greedy", "walk", "conversion"])
def test_every_driver(driver: str) -> None:
    stages = [Stage(phase="torch", rules=["kernels"], driver=driver)]
    done = transform(gemm(32, 64, 16), stages)
    assert done.outcome.total == 1
    assert "stream.executable private" in done.text


def test_the_target_chooses_the_kernel_and_no_other_target_takes_it() -> None:
    program = gemm(64, 64, 64)
    assert "gpu.barrier" not in applied(program, "cpu")
    text = applied(program, "vulkan")
    assert "gpu.barrier" in text
    assert 'mlirules.target = "vulkan"' in text
    with pytest.raises(MlirulesError, match="the program holds kernels written for vulkan"):
        compiler.compile_module(text, Target.parse("cpu"))


def test_values_wider_than_keys_are_a_cpus() -> None:
    text = ATTENTION
    assert "flow.dispatch" in applied(text, "cpu", "kernels/kernel-flash-attention")
    stages = [Stage(phase="torch", rules=["kernels/kernel-flash-attention"], driver="greedy")]
    for kind in ("vulkan", "cuda"):
        assert transform(text, stages, kind=kind).outcome.total == 0
        same = text.replace("48,20]", "48,8]").replace("32,20]", "32,8]")
        assert transform(same, stages, kind=kind).outcome.total == 1


def test_attention_of_images_in_planes_is_one_kernel() -> None:
    """Values that stand first, and are wider than keys: LeViT, YOLO."""
    binary, done = compile_program(PLANES, Target.parse("cpu"))
    assert done.applications["torch-values-first-permuted-fuse"] == 1
    assert done.applications["kernel-flash-attention"] == 1
    draw = np.random.default_rng(4)
    shapes = ((1, 2, 8, 49), (1, 2, 8, 49), (1, 2, 20, 49))
    q, k, v = (draw.standard_normal(shape, np.float32) for shape in shapes)
    (found,) = runtime.run(binary, [q, k, v], Target.parse("cpu"))
    scores = np.exp(q.swapaxes(-1, -2) @ k)
    expected = v @ (scores / scores.sum(-1, keepdims=True)).swapaxes(-1, -2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "sizes", "line", "message"),
    [
        ("cpu", (5, 64, 64), "divisible(M, TM)", "M = 5"),
        ("vulkan", (64, 32, 64), "divisible(N, TN)", "N = 32"),
        ("vulkan", (64, 64, 8), "divisible(K, TK)", "K = 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_their_line(
    kind: str, sizes: tuple[int, int, int], line: str, message: str
) -> None:
    from mlirules.drivers.apply.engine import Engine
    from mlirules.drivers.apply.run import Options
    from mlirules.drivers.match.results import Around

    module = compiler.parse(gemm(*sizes))
    engine = Engine([GEMM], module.context)
    assert engine.run(module, Options(target=kind)).total == 0
    op = module.body.operations[0].regions[0].blocks[0].operations[0].operation
    refusal = engine.explain(GEMM, op, Around(kind))
    assert refusal is not None
    assert str(refusal.line) == line
    assert message in refusal.message
    assert refusal.fault(GEMM).span.line


def changed(tmp_path: Path, old: str, new: str, source: Path | None = None) -> Path:
    text = (source or Path(GEMM.path)).read_text()
    assert old in text
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("grid: [N // TN, M // BM]", "grid: [N // TN, M // BX]", "'BX' stands nowhere"),
        ("grid: [N // TN, M // BM]", "grid: [0, M // BM]", "from 1 to 2147483647 workgroups"),
        ("workgroup: [16, 8, 1]", "workgroup: [64, 64, 1]", "4096 threads in a workgroup are more"),
        ("      workgroup: [16, 8, 1]\n", "", "does not say how many threads"),
        (
            "      grid: [N // TN, M // BM]\n",
            "      grid: [N // TN, M // BM]\n      workgroup: [4]\n",
            "a CPU has no threads",
        ),
        ("inputs: [a, b]", "inputs: [a, z]", "'z' stands nowhere in the match"),
        ("c = torch.aten.mm(a, b)", "c = torch.aten.mm(a", "expected"),
        ("inputs: [a, b]", "inputs: [a, c]", "is a result: the kernel writes it"),
        ("%n0 = arith.muli %block_x, %TN", "%n0 = arith.muli %block_q, %TN", "%block_q"),
        ("- divisible(M, TM)", "- divisible(M, TQ)", "'TQ' stands nowhere"),
        ("kind: kernel", "kind: fusion", "belongs to a rule of `kind: kernel`"),
        ("      grid: [N // TN, M // BM]\n", "", "the key 'grid' is missing"),
        (
            "%va = memref.load %a[%m, %ka] : $a",
            "%va = memref.lode %a[%m, %ka] : $a",
            "no op 'memref.lode'",
        ),
    ],
)
def test_faults_in_the_file(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = changed(tmp_path, old, new)
    with pytest.raises(MlirulesError) as caught:
        load_rule(path, ops=compiler.op_oracle)
    found = [f for f in caught.value.faults if said in f.message]
    assert found, str(caught.value)
    assert found[0].span.line > 1
    assert found[0].span.source_line


def test_a_grid_that_is_too_large_for_a_match(tmp_path: Path) -> None:
    path = changed(tmp_path, "grid: [N // TN, M // BM]", "grid: [N // TN, M * 2000]")
    (result,) = [run_test(rule, rule.tests[0], devices=[]) for rule in rule_set((str(path),))]
    assert "M * 2000 is 128000: from 1 to 65535 workgroups can stand here" in result.problems[0]


def test_a_body_that_does_not_verify_names_the_rule(tmp_path: Path) -> None:
    path = changed(
        tmp_path, "vector.transfer_write %t#0, %c[%m0, %n0]", "vector.transfer_write %t#0, %c[%m0]"
    )
    (result,) = [run_test(rule, rule.tests[0], devices=[]) for rule in rule_set((str(path),))]
    assert "the rewrite gives MLIR that does not verify" in result.problems[0]
    assert path.name in result.problems[0]


needs_cc = pytest.mark.skipif(objects.c_compiler() is None, reason="no C compiler is here")


@needs_cc
def test_a_function_in_c() -> None:
    (rule,) = rule_set((str(HERE / "kernel_rules"),))
    for test in rule.tests:
        result = run_test(rule, test, devices=["cpu"])
        assert result.passed, result.problems
        # What a function in C reads and writes is its own affair, and that is said.
        assert all("func.call is not checked for bounds" in why for why in result.skipped)


@needs_cc
def test_c_that_does_not_compile_is_the_rules_fault(tmp_path: Path) -> None:
    shutil.copytree(HERE / "kernel_rules", tmp_path / "set")
    source = tmp_path / "set" / "matvec.c"
    source.write_text(source.read_text().replace("sum +=", "sun +="))
    (rule,) = rule_set((str(tmp_path / "set"),))
    result = run_test(rule, rule.tests[0], devices=[])
    assert "matvec.c does not compile" in result.problems[0]


def test_without_a_c_compiler_the_rule_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(objects, "c_compiler", lambda: None)
    shutil.copytree(HERE / "kernel_rules", tmp_path / "set")
    (rule,) = rule_set((str(tmp_path / "set"),))
    result = run_test(rule, rule.tests[0], devices=[])
    assert "no C compiler is here" in result.problems[0]


@pytest.mark.parametrize(("architecture", "sums"), [("x86-64-v3", "4x16"), ("x86-64-v4", "8x32")])
def test_vectors_are_as_long_as_those_of_the_cpu(architecture: str, sums: str) -> None:
    """Four filters by two vectors in AVX2's 16 registers, eight in AVX-512's 32."""
    (rule,) = (r for r in CONVOLUTIONS if r.name == "kernel-convolution-bias")
    stages = [Stage(phase="torch", rules=[rule.path], driver="greedy", only=[rule.name])]
    program = rule.tests[0].input or ""
    settings = Settings(Target.parse(f"cpu:{architecture}"))
    text = transform(program, stages, costs=settings).text
    assert f"vector<{sums}xf32>" in text


@pytest.mark.parametrize("channels", [1, 7, 16, 30, 232])
@pytest.mark.parametrize("window", [1, 3])
def test_a_place_beyond_three_vectors(channels: int, window: int) -> None:
    """It is a sum along the filters' rows, however many channels these have."""
    image, filters = (1, channels, 7, 7), (9, channels, window, window)
    program = convolution(image, filters, groups=1, stride=1, takes=[("b", filters[:1])])
    stages = [Stage(phase="torch", rules=["kernels/kernel-convolution"], driver="greedy")]
    target = Target("cpu", "x86-64-v4")
    text = transform(program, stages, costs=Settings(target)).text
    assert "vector.reduction" in text
    binary = compiler.compile_module(text, target)
    if reason := target.available():
        pytest.skip(reason)
    _, arguments = numerics.signature(program)
    ((_, inputs),) = numerics.inputs_of(RunDoc(devices=["cpu"]), arguments)
    inputs[0][0, channels // 2, 2, 2] = np.nan
    inputs[0][0, 0, 6, 6] = np.inf
    (got,) = runtime.run(binary, inputs, target, "f")
    plain = compiler.compile_module(program, Target("cpu"))
    (expected,) = runtime.run(plain, inputs, Target("cpu"), "f")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("images", "filters", "groups", "stride"),
    [
        ((1, 16, 7, 7), (20, 16, 3, 3), 1, 1),  # one place of 49, filters that six do not divide
        ((2, 24, 14, 14), (12, 24, 1, 1), 1, 1),  # four of 196
        ((1, 520, 7, 7), (8, 520, 1, 1), 1, 1),  # three blocks of channels
        ((1, 32, 7, 7), (16, 16, 3, 3), 2, 1),
        ((1, 16, 13, 13), (8, 16, 3, 3), 1, 2),  # gathered
    ],
)
def test_places_that_are_left_over(
    images: tuple[int, ...], filters: tuple[int, ...], groups: int, stride: int
) -> None:
    """With AVX2 they are sums along the filters' rows."""
    bias = [("b", filters[:1])]
    program = convolution(images, filters, groups=groups, stride=stride, takes=bias)
    stages = [Stage(phase="torch", rules=["kernels/kernel-convolution"], driver="greedy")]
    target = Target("cpu", "x86-64-v3")
    text = transform(program, stages, costs=Settings(target)).text
    assert "vector.reduction" in text
    _, arguments = numerics.signature(program)
    ((_, inputs),) = numerics.inputs_of(RunDoc(devices=["cpu"]), arguments)
    (got,) = runtime.run(compiler.compile_module(text, target), inputs, target, "f")
    plain = compiler.compile_module(program, Target("cpu"))
    (expected,) = runtime.run(plain, inputs, Target("cpu"), "f")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def _assert_as_the_compiler(text: str, program: str, target: Target) -> None:
    """What the program became gives what it gives without rules, where the CPU can run it."""
    binary = compiler.compile_module(text, target)
    if reason := target.available():
        pytest.skip(reason)
    _, arguments = numerics.signature(program)
    ((_, inputs),) = numerics.inputs_of(RunDoc(devices=["cpu"]), arguments)
    (got,) = runtime.run(binary, inputs, target, "f")
    plain = compiler.compile_module(program, Target("cpu"))
    (expected,) = runtime.run(plain, inputs, Target("cpu"), "f")
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=4e-6 * np.abs(expected).max())


@pytest.mark.parametrize("architecture", ["x86-64-v3", "x86-64-v4", "znver4"])
@pytest.mark.parametrize(
    ("images", "window", "stride"),
    [
        ((2, 3, 23, 24), (7, 7), 1),  # half a vector more than one
        ((1, 4, 17, 15), (5, 5), 1),
        ((1, 3, 29, 55), (5, 5), 2),  # rows of the window by twos
        ((1, 3, 30, 41), (4, 3), 2),
        ((1, 5, 9, 20), (1, 9), 2),  # one row of the window
        ((1, 2, 21, 18), (11, 3), 1),  # a loop, of more than are unrolled
        ((1, 9, 7, 7), (3, 3), 1),
        ((1, 2, 130, 120), (3, 3), 1),  # several bands
        ((1, 2, 20, 250), (3, 3), 1),  # two groups of vectors in a row
        ((2, 3, 19, 57), (3, 3), 2),  # two rows at a time
        ((1, 3, 31, 70), (5, 5), 2),
        ((2, 5, 14, 14), (3, 3), 2),  # rows that the next one is stored over
    ],
)
def test_rows_of_depthwise_windows_that_are_handed_on(
    images: tuple[int, ...], window: tuple[int, int], stride: int, architecture: str
) -> None:
    target = Target("cpu", architecture)
    channels = images[1]
    program = convolution(images, (channels, 1, *window), groups=channels, stride=stride)
    stages = [Stage(phase="torch", rules=["kernels/kernel-depthwise"], driver="greedy")]
    done = transform(program, stages, costs=Settings(target))
    assert done.outcome.total == 1
    _assert_as_the_compiler(done.text, program, target)


@pytest.mark.parametrize("pads", [(0, 0), (0, 1), (1, 0), (2, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_windows_whose_padding_is_not_half_of_them(
    pads: tuple[int, int], stride: int
) -> None:
    target = Target("cpu", "x86-64-v4")
    program = convolution((1, 4, 18, 35), (4, 1, 3, 3), groups=4, stride=stride, pads=pads)
    stages = [Stage(phase="torch", rules=["kernels/kernel-depthwise"], driver="greedy")]
    done = transform(program, stages, costs=Settings(target))
    assert done.outcome.total == 1
    assert "memref.alloca" not in done.text, "nothing is laid out"
    _assert_as_the_compiler(done.text, program, target)


@pytest.mark.parametrize(
    ("rule", "queries", "length", "width"),
    [
        ("kernel-flash-attention-masked", 16, 48, 4),
        ("kernel-attention-rows", 4, 48, 16),
        # Several blocks of keys, and a width that IREE's own fused attention is wrong for.
        ("kernel-attention-rows", 5, 700, 256),
    ],
)
def test_rows_of_attention_whose_keys_are_masked(
    rule: str, queries: int, length: int, width: int
) -> None:
    """The first block of keys, all keys, and by the least number that there is."""
    q, k = (f"!torch.vtensor<[1,1,{n},{width}],f32>" for n in (queries, length))
    m = f"!torch.vtensor<[1,1,{queries},{length}],f32>"
    program = f"""
      func.func @f(%q: {q}, %k: {k}, %v: {k}, %m: {m}) -> {q} {{
        %none = torch.constant.none
        %zero = torch.constant.float 0.0
        %false = torch.constant.bool false
        %o = torch.aten.scaled_dot_product_attention %q, %k, %v, %m, %zero, %false, %none, %false :
          {q}, {k}, {k}, {m}, !torch.float, !torch.bool, !torch.none, !torch.bool -> {q}
        return %o : {q}
      }}"""
    done = transform(program, [Stage(phase="torch", rules=[f"kernels/{rule}"])])
    assert done.outcome.total == 1
    _, arguments = numerics.signature(program)
    ((_, inputs),) = numerics.inputs_of(RunDoc(devices=["cpu"]), arguments)
    rows, keys, values, mask = (np.asarray(x, dtype=np.float32) for x in inputs)
    mask = np.zeros_like(mask)
    mask[..., 0, : length - 8] = -np.inf
    mask[..., 1, :] = -np.inf
    mask[..., 2, :] = np.finfo(np.float32).min
    mask[..., 3, 7:] = -np.inf
    vmfb = compiler.compile_module(done.text, Target("cpu"))
    (got,) = runtime.run(vmfb, [rows, keys, values, mask], Target("cpu"), "f")
    scores = (rows[0, 0] @ keys[0, 0].T) / np.sqrt(np.float32(width)) + mask[0, 0]
    scores[1] = 0  # of a row without keys the result is 0
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ values[0, 0]
    expected[1] = 0
    np.testing.assert_allclose(got[0, 0], expected, rtol=1e-5, atol=1e-5)


EACH = """
rule: seven-times
kind: kernel
summary: A row times seven.
reason: A test of rows that are written once.
types: {x: vtensor<N x f32>, y: vtensor<N x f32>}
match: ["y = torch.aten.mul.Scalar(x, 7.0)"]
kernel:
  inputs: [x]
  variants:
    - targets: [cpu]
      let: {G: 3}
      grid: [N]
      body: |
        %a = memref.load %x[%block_x] : $x
        %s0 = arith.constant 0.0 : f32
        $each i < G
          %half$i = arith.constant $(i + 0.5) : f32
          %p$i = arith.mulf %a, %half$i : f32
          %s$(i + 1) = arith.addf %s$i, %p$i : f32
        $end
        %t = arith.addf %s$(G), %p2 : f32
        memref.store %t, %y[%block_x] : $y
tests:
  - name: five
    input: |
      func.func @f(%x: !f32) -> !f32 {
        %n = torch.constant.float 7.0
        %y = torch.aten.mul.Scalar %x, %n : !f32, !torch.float -> !f32
        return %y : !f32
      }
    check: |
      CHECK: flow.dispatch
    run: {devices: [cpu]}
  - name: halves
    unchanged: |
      func.func @f(%x: !f64) -> !f64 {
        %n = torch.constant.float 7.0
        %y = torch.aten.mul.Scalar %x, %n : !f64, !torch.float -> !f64
        return %y : !f64
      }
    because: vtensor<N x f32>
""".replace("!f32", "!torch.vtensor<[5],f32>").replace("!f64", "!torch.vtensor<[5],f64>")


def written(tmp_path: Path, old: str = "", new: str = "") -> Path:
    assert old in EACH
    path = tmp_path / "seven-times.yaml"
    path.write_text(EACH.replace(old, new, 1) if old else EACH)
    return path


def test_rows_that_are_written_once_stand_as_often_as_they_say(tmp_path: Path) -> None:
    (rule,) = rule_set((str(written(tmp_path)),))
    with consent.given(native=True):
        result = run_test(rule, rule.tests[0], devices=["cpu"])
    assert result.passed, result.problems


@pytest.mark.parametrize(
    ("old", "new", "said", "row"),
    [
        ("        $end\n", "", "$each has no $end", "        $each i < G"),
        ("        $each i < G\n", "", "$end ends nothing", "        $end"),
        ("$each i < G", "$each i", "does not say how often", "        $each i"),
        ("$each i < G", "$each i < H", "'H' stands nowhere", "        $each i < H"),
        ("$each i < G", "$each G < 3", "'G' already has a meaning", "        $each G < 3"),
        (
            "          %p$i",
            "          $each j < 2\n          %p$i",
            "repeated rows repeat none",
            "          $each j < 2",
        ),
        ("%s$i, %p$i", "%q$i, %p$i", "%q is neither defined", "          %s$(i + 1) = "),
        ("$(i + 0.5)", "$(j + 0.5)", "'j' stands nowhere", "          %half$i = "),
    ],
)
def test_faults_of_rows_that_stand_several_times(
    old: str, new: str, said: str, row: str, tmp_path: Path
) -> None:
    with pytest.raises(MlirulesError) as caught:
        load_rule(written(tmp_path, old, new), ops=compiler.op_oracle)
    found = [f for f in caught.value.faults if said in f.message]
    assert found, str(caught.value)
    assert found[0].span.source_line.startswith(row)


def test_a_repeated_row_is_shown_where_it_reads_beyond_a_buffer(tmp_path: Path) -> None:
    beyond = "%at$i = arith.constant $(i + 3) : index\n          %p$i = memref.load %x[%at$i] : $x"
    path = written(tmp_path, "%p$i = arith.mulf %a, %half$i : f32", beyond)
    (rule,) = rule_set((str(path),))
    with consent.given(native=True):
        (fault,) = run_test(rule, rule.tests[0], devices=["cpu"]).faults
    assert fault.message == "memref.load reads index 5 of dim 0 of x, whose extent is 5"
    assert fault.span.source_line.strip() == "%p$i = memref.load %x[%at$i] : $x"


def test_rows_that_stand_too_often_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "let: {G: 3}", "let: {G: 65}")
    (result,) = [run_test(rule, rule.tests[0], devices=[]) for rule in rule_set((str(path),))]
    assert "$each i < G is 65: rows stand at most 64 times" in result.problems[0]


@pytest.mark.slow
@pytest.mark.parametrize("rule", CONVOLUTIONS, ids=lambda r: r.name)
def test_the_numbers_of_every_convolution(rule: Rule) -> None:
    """By default those of one or two of a file are compared."""
    program = next(test.input for test in rule.tests if test.input is not None)
    function, arguments = numerics.signature(program)
    ((_, inputs),) = numerics.inputs_of(RunDoc(devices=["cpu"]), arguments)
    plain = compiler.compile_module(program, Target("cpu"))
    (expected,) = runtime.run(plain, inputs, Target("cpu"), function)
    stages = [Stage(phase="torch", rules=[rule.path], driver="greedy", only=[rule.name])]
    for target in (Target("cpu"), Target("cpu", "x86-64-v3")):
        done = transform(program, stages, costs=Settings(target))
        assert done.outcome.total == 1
        vmfb = compiler.compile_module(done.text, target)
        (got,) = runtime.run(vmfb, inputs, target, function)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("rule", rule_set(("kernels",)), ids=lambda r: r.name)
def test_every_kernel_compiles_for(rule: Rule, target: str) -> None:
    program = rule.tests[0].input or ""
    wanted = Target.parse(target)
    if all(wanted.kind not in variant.doc.targets for variant in rule.variants):
        pytest.skip(f"not for {wanted.kind}")
    text = applied(program, wanted.kind)
    assert compiler.compile_module(text, wanted)
    sources = lower_to(text, wanted, "executable-sources")
    assert "translation_info<pipeline = #iree_codegen.no_pipeline" in sources


@pytest.mark.slow
def test_a_spec_with_a_kernel_in_a_plain_iree_compile(tmp_path: Path) -> None:
    """A linalg product becomes the kernel's dispatch without Python, and the numbers are right."""
    (rule,) = rule_set((str(HERE / "spec_rules" / "gemm-kernel.yaml"),))
    source = rule.tests[0].input or ""
    (tmp_path / "model.mlir").write_text(source)
    target = Target.parse("cpu")
    program = transformspec.read_for(tmp_path / "model.mlir", "cpu")
    spec = transformspec.transform_spec([rule], "rules", program=program)
    made = transformspec.artefacts(spec, "rules", tmp_path)
    forms.write(made, tmp_path)
    flags = (tmp_path / "rules.transform.flags").read_text().split()
    binary = compiler.compile_module(source, target, flags=flags)
    random = np.random.default_rng(0)
    a = random.normal(size=(64, 48)).astype(np.float32)
    b = random.normal(size=(48, 128)).astype(np.float32)
    (c,) = runtime.run(binary, [a, b], target)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    assert "flow.dispatch @mlirules_" in lower_to(
        source, Job(target, flags=tuple(flags)), "preprocessing"
    )


@pytest.mark.slow
def test_attention_on_vulkan(vulkan: str) -> None:
    rule = next(r for r in rule_set(("kernels",)) if r.name == "kernel-flash-attention")
    wanted = Target.parse(vulkan)
    binary = compiler.compile_module(applied(rule.tests[0].input or "", "vulkan"), wanted)
    random = np.random.default_rng(0)
    q = random.normal(size=(1, 2, 16, 64)).astype(np.float32)
    k, v = random.normal(size=(2, 1, 2, 48, 64)).astype(np.float32)
    scores = q @ k.swapaxes(2, 3) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    (found,) = runtime.run(binary, [q, k, v], wanted)
    np.testing.assert_allclose(
        found, (weights / weights.sum(-1, keepdims=True)) @ v, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR)
def test_the_example_model(name: str) -> None:
    """The model of examples/kernels: every kernel in it, equal to PyTorch where a device is."""
    pytest.importorskip("torch", reason="torch is not installed")
    from mlirules.drivers.frontend.torch import Options, import_model

    imported = import_model(f"{EXAMPLE / 'model.py'}:Layer", Options(decompose=False))
    pipeline = Pipeline.load(EXAMPLE / "pipeline.yaml")
    target = Target.parse(name)
    binary, done = compile_program(imported.text, target, pipeline)
    assert done.applications["kernel-gemm"] == 2
    assert done.applications["kernel-flash-attention"] == 1
    assert done.applications["kernel-softmax"] == 1
    if target.kind in ("cuda", "hip") or target.available() is not None:
        return
    (found,) = runtime.run(binary, imported.inputs, target)
    np.testing.assert_allclose(found, imported.results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_buffers_that_share_memory_are_each_read_where_they_begin(
    target: str, tmp_path: Path
) -> None:
    whole = "!torch.vtensor<[3,1,2,64,64],f32>"
    part = "!torch.vtensor<[1,2,64,64],f32>"
    program = f"""
func.func @main(%x: {whole}) -> {part} {{
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %none = torch.constant.none
  %nothing = torch.constant.float 0.0
  %false = torch.constant.bool false
  %q = torch.aten.select.int %x, %zero, %zero : {whole}, !torch.int, !torch.int -> {part}
  %k = torch.aten.select.int %x, %zero, %one : {whole}, !torch.int, !torch.int -> {part}
  %v = torch.aten.select.int %x, %zero, %two : {whole}, !torch.int, !torch.int -> {part}
  %o = torch.aten.scaled_dot_product_attention %q, %k, %v, %none, %nothing, %false, %none, %false
      : {part}, {part}, {part}, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool
      -> {part}
  return %o : {part}
}}
"""
    line = Pipeline.load(EXAMPLE / "pipeline.yaml")
    stages = [replace(stage, expect_rules={}) for stage in line.stages]
    flag = f"--iree-hal-dump-executable-sources-to={tmp_path}"
    compile_program(program, Target.parse(target), replace(line, stages=stages), flags=[flag])
    (source,) = tmp_path.glob("*flash*.mlir")
    spans = [row for row in source.read_text().splitlines() if "binding.subspan" in row]
    # Of one buffer, from three places on: IREE asks for those where the type leaves them open.
    assert len(set(re.findall(r"offset\((%\w+)\)", "\n".join(spans)))) == 3
    assert all("offset: ?>" in row for row in spans)
