"""Numbers do not depend on the CPU: a sample on every CPU that this machine can play.

All numeric tests of all rules on those CPUs: ``pytest -m slow tests/test_cpus.py``.
"""

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mlirules.drivers.iree import compiler, cpu, runtime
from mlirules.drivers.iree.targets import CPU_ARCHITECTURES, Target
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.ruletest import run_tests
from mlirules.language.rulefiles import LIBRARY, holds_config, rule_files

Array = npt.NDArray[Any]

#: In one program: an elementwise chain in a short float, f32 where products meet sums, and the
#: functions that the compiler approximates by polynomials.
#: ``V`` stands for the tensor type, ``T`` for its elements.
CHAIN = """
#same = affine_map<(i) -> (i)>
func.func @NAME(%a: V, %b: V, %c: V) -> V {
  %e = tensor.empty() : V
  %r = linalg.generic
    {indexing_maps = [#same, #same, #same, #same], iterator_types = ["parallel"]}
    ins(%a, %b, %c : V, V, V) outs(%e : V) {
  ^bb0(%x: T, %y: T, %z: T, %o: T):
    %xe = arith.extf %x : T to f32
    %ye = arith.extf %y : T to f32
    %ze = arith.extf %z : T to f32
    %m = arith.mulf %xe, %ye : f32
    %mt = arith.truncf %m : f32 to T
    %me = arith.extf %mt : T to f32
    %s = arith.addf %me, %ze : f32
    %st = arith.truncf %s : f32 to T
    linalg.yield %st : T
  } -> V
  return %r : V
}
"""
FUSED = """
func.func @NAME(%a: V, %b: V, %c: V) -> V {
  %m = arith.mulf %a, %b : V
  %s = arith.addf %m, %c : V
  return %s : V
}
"""
FUNCTION = """
func.func @NAME(%a: V) -> V {
  %r = math.NAME %a : V
  return %r : V
}
"""
FUNCTIONS = ("exp", "tanh", "erf", "log", "sin", "rsqrt")
N = 1003


def _written(template: str, name: str, element: str) -> str:
    text = re.sub(r"\bNAME\b", name, template)
    return re.sub(r"\bT\b", element, re.sub(r"\bV\b", f"tensor<{N}x{element}>", text))


def _program() -> str:
    chains = [_written(CHAIN, f"chain_{t}", t).replace("#same", f"#{t}") for t in ("f16", "bf16")]
    functions = [_written(FUNCTION, op, "f32") for op in FUNCTIONS]
    return "".join([*chains, _written(FUSED, "fused", "f32"), *functions])


def _inputs() -> list[tuple[str, list[Array]]]:
    rng = np.random.default_rng(3)
    short = [rng.uniform(-2, 2, N) for _ in "abc"]
    calls = [
        ("chain_f16", [x.astype(np.float16) for x in short]),
        ("chain_bf16", [x.astype(ml_dtypes.bfloat16) for x in short]),
        ("fused", [rng.uniform(-2, 2, N).astype(np.float32) for _ in "abc"]),
    ]
    for op in FUNCTIONS:
        low = 1e-3 if op in ("log", "rsqrt") else -9
        calls.append((op, [rng.uniform(low, 9, N).astype(np.float32)]))
    return calls


def _results(name: str) -> dict[str, Array]:
    target = Target.parse(name)
    reason = target.available()
    if reason:
        pytest.skip(reason)
    calls = _inputs()
    results = runtime.run_each(compiler.compile_module(_program(), target), calls, target)
    found = {}
    for (function, _), result in zip(calls, results, strict=True):
        assert not isinstance(result, Exception), result
        found[function] = np.asarray(result[0])
    return found


@pytest.fixture(scope="module")
def here() -> dict[str, Array]:
    return _results("cpu")


def test_f16_is_rounded_wherever_the_program_says_so(here: dict[str, Array]) -> None:
    """With f16 arithmetic of the CPU's own, product and sum become one operation."""
    a, b, c = (x.astype(np.float32) for x in _inputs()[0][1])
    product = (a * b).astype(np.float16).astype(np.float32)
    assert np.array_equal(here["chain_f16"], (product + c).astype(np.float16))


def test_functions_are_near_to_exact(here: dict[str, Array]) -> None:
    torch = pytest.importorskip("torch")
    for op, (x,) in _inputs()[3:]:
        exact = getattr(torch, op)(torch.from_numpy(x).double()).numpy()
        assert np.allclose(here[op], exact, rtol=2e-6, atol=4e-7), op


@pytest.mark.parametrize("architecture", CPU_ARCHITECTURES)
def test_a_program_means_the_same_on_every_cpu(architecture: str, here: dict[str, Array]) -> None:
    for function, found in _results(f"cpu:{architecture}").items():
        assert np.array_equal(found, here[function]), function


def test_f16_arithmetic_is_in_no_description() -> None:
    for name in ("cpu", *(f"cpu:{a}" for a in CPU_ARCHITECTURES)):
        text = compiler.lower_to("module {}", Target.parse(name), "preprocessing")
        features = text.partition('cpu_features = "')[2].partition('"')[0].split(",")
        last = {feature[1:]: feature[0] for feature in features}
        assert last.get("avx512fp16", "-") == "-", name


def test_a_cpu_that_this_machine_cannot_play_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = {
        "host": ("small", ("+sse2", "+avx", "-avx2")),
        "znver4": ("znver4", ("+sse2", "+avx", "+avx2", "+sse4a", "+clzero")),
    }
    monkeypatch.setattr(cpu, "_described", lambda name: described[name])
    assert Target.parse("cpu:znver4").available() == "this CPU lacks avx2"


FILES = [file for file in rule_files(LIBRARY) if not holds_config(file)]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CPU_ARCHITECTURES)
@pytest.mark.parametrize(
    "folder", sorted({f.parent for f in FILES}), ids=lambda f: str(f.relative_to(LIBRARY))
)
def test_rules_on_every_cpu(folder: Path, architecture: str) -> None:
    target = f"cpu:{architecture}"
    reason = Target.parse(target).available()
    if reason:
        pytest.skip(reason)
    rules = [rule for f in FILES if f.parent == folder for rule in rule_set((str(f),))]
    results = run_tests([(r, test) for r in rules for test in r.tests], devices=[target])
    problems = [f"{r.rule.name}, {r.test.name}: {p}" for r in results for p in r.problems]
    assert not problems, "\n".join(problems)
