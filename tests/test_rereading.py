"""Reductions read by other loops than they are made by: right on Vulkan, where IREE races."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlirules.drivers.apply.rereading import guard_reductions
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

#: Sizes, the dims that are summed, and the order of the result's dims; whether IREE is right alone.
CASES: dict[Case, bool] = {
    ((15, 15), (0,), (0, 1)): False,
    ((15, 15), (0,), (1, 0)): True,
    ((15, 15), (1,), (0, 1)): True,
    ((15, 15), (1,), (1, 0)): False,
    ((3, 16, 16), (2,), (0, 1, 2)): True,
    ((3, 16, 16), (2,), (1, 2, 0)): False,
    ((3, 16, 16), (2,), (1, 0, 2)): False,
    ((3, 15, 15), (1,), (0, 1, 2)): False,
    ((3, 15, 15), (1,), (0, 2, 1)): True,
    ((3, 16, 16), (1, 2), (0, 1, 2)): True,
    ((3, 16, 16), (0, 2), (0, 1, 2)): False,
    ((3, 16, 16), (0, 1, 2), (0, 1, 2)): True,
    ((2, 3, 8, 8), (1,), (0, 1, 2, 3)): False,
    ((2, 3, 8, 8), (2, 3), (0, 2, 3, 1)): False,
}


def _dims(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(f"d{n}" for n in numbers)


def _tensor(sizes: tuple[int, ...] | list[int]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in sizes)}f32>"


def quotient(case: Case, name: str) -> str:
    """A function that divides numbers by their sums along some dims, and permutes the result."""
    sizes, summed, order = case
    loops = _dims(list(range(len(sizes))))
    kept = [n for n in range(len(sizes)) if n not in summed]
    sums = _tensor([sizes[n] for n in kept])
    place = [order.index(n) for n in range(len(sizes))]
    whole, out = _tensor(sizes), _tensor([sizes[n] for n in order])
    kinds = ", ".join('"reduction"' if n in summed else '"parallel"' for n in range(len(sizes)))
    parallel = ", ".join(['"parallel"'] * len(sizes))
    return f"""
func.func @{name}(%x: {whole}) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {sums}
  %z = linalg.fill ins(%zero : f32) outs(%e : {sums}) -> {sums}
  %s = linalg.generic {{indexing_maps = [affine_map<({loops}) -> ({loops})>,
      affine_map<({loops}) -> ({_dims(kept)})>], iterator_types = [{kinds}]}}
      ins(%x : {whole}) outs(%z : {sums}) {{
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }} -> {sums}
  %n = tensor.empty() : {out}
  %q = linalg.generic {{indexing_maps = [affine_map<({loops}) -> ({_dims(place)})>,
      affine_map<({loops}) -> ({_dims([place[n] for n in kept])})>,
      affine_map<({loops}) -> ({loops})>], iterator_types = [{parallel}]}}
      ins(%x, %s : {whole}, {sums}) outs(%n : {out}) {{
  ^bb0(%a: f32, %t: f32, %o: f32):
    %b = arith.divf %a, %t : f32
    linalg.yield %b : f32
  }} -> {out}
  return %q : {out}
}}
"""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_what_iree_gets_wrong_is_guarded(case: Case) -> None:
    module = compiler.parse(quotient(case, "main"))
    guarded = guard_reductions(module)
    # Where the reader's loops start with the reduction's, they may stay together.
    sizes, summed, order = case
    kept = [order.index(n) for n in range(len(sizes)) if n not in summed]
    assert guarded == (kept != list(range(len(kept))))
    assert guarded or CASES[case]
    assert str(module).count("compute_barrier") == guarded
    assert guard_reductions(module) == 0
    assert module.operation.verify()


def test_reshapes_between_are_looked_through() -> None:
    text = quotient(((15, 15), (0,), (0, 1)), "main").replace("ins(%x, %s", "ins(%x, %v")
    reshaped = """
  %u = tensor.expand_shape %s [[0, 1, 2]] output_shape [1, 15, 1] : tensor<15xf32> into
      tensor<1x15x1xf32>
  %v = tensor.collapse_shape %u [[0, 1, 2]] : tensor<1x15x1xf32> into tensor<15xf32>
  %n ="""
    assert guard_reductions(compiler.parse(text.replace("  %n =", reshaped))) == 1
    # A reader of the same loops, in whatever order, has the reduction's own.
    same = quotient(((15, 15), (1,), (0, 1)), "main")
    assert guard_reductions(compiler.parse(same)) == 0


def test_numbers_on_vulkan(vulkan: str) -> None:
    target = Target.parse(vulkan)
    text = "".join(quotient(case, f"f{n}") for n, case in enumerate(CASES))
    binary, _ = compile_program(text, target)
    draw = np.random.default_rng(0)
    wrong = []
    for n, (sizes, summed, order) in enumerate(CASES):
        x = draw.uniform(0.5, 1, sizes).astype(np.float32)
        (found,) = runtime.run(binary, [x], target, function=f"f{n}")
        expected = (x / x.sum(summed, keepdims=True)).transpose(order)
        if not np.allclose(found, expected, rtol=1e-5):
            wrong.append((sizes, summed, order))
    assert not wrong


@pytest.mark.slow
def test_every_order_on_vulkan(vulkan: str) -> None:
    """All sums and orders of three dims, of sizes that divide vectors and others."""
    target = Target.parse(vulkan)
    cases = [
        (sizes, summed, order)
        for sizes in ((3, 16, 16), (5, 7, 15), (4, 32, 64))
        for count in (1, 2)
        for summed in itertools.combinations(range(3), count)
        for order in itertools.permutations(range(3))
    ]
    draw = np.random.default_rng(1)
    wrong = []
    for sizes, summed, order in cases:
        try:
            binary, _ = compile_program(quotient((sizes, summed, order), "main"), target)
        except compiler.CompileError as error:
            # IREE 3.13 says that it cannot: what is read in another order, of sizes for vectors.
            if "vector.transfer_read" not in str(error):
                raise
            continue
        x = draw.uniform(0.5, 1, sizes).astype(np.float32)
        (found,) = runtime.run(binary, [x], target)
        expected = (x / x.sum(summed, keepdims=True)).transpose(order)
        if not np.allclose(found, expected, rtol=1e-5):
            wrong.append((sizes, summed, order))
    assert not wrong
