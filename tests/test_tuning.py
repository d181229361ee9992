"""The tuner: spaces, dispatches, orders, the store, measuring, rules, the page."""

import gc
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.iree import compiler, knobs, runtime
from mlirules.drivers.iree.compiler import Job, compile_module, ir
from mlirules.drivers.iree.runtime import Executable
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics, profile
from mlirules.drivers.pipelines import transform
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.drivers.tuning import (
    constraints,
    dispatches,
    measure,
    ordering,
    outcome,
    report,
    results,
    space,
    tuner,
    ways,
    written,
)
from mlirules.drivers.tuning.dispatches import Root, Value
from mlirules.drivers.tuning.measure import Result, Runner, RunnerDied, Task
from mlirules.drivers.tuning.results import Winner
from mlirules.drivers.tuning.space import Candidate
from mlirules.drivers.tuning.store import Measured, Store
from mlirules.drivers.tuning.ways import Change, Given, Tried, Way
from mlirules.drivers.tuning_specs import compile as configs
from mlirules.language.config.model import Settings
from mlirules.language.config_loader import load_config
from mlirules.language.evaluate import Evaluator
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.language.notation.parser import parse_expression
from mlirules.language.operands import truth
from mlirules.language.pipeline import Pipeline
from mlirules.language.workers import workers

CPU = Target.parse("cpu")


def product(m: int, n: int, k: int, element: str = "f32") -> str:
    a, b, c = f"{m}x{k}", f"{n}x{k}", f"tensor<{m}x{n}xf32>"
    return f"""
func.func @main(%a: tensor<{a}x{element}>, %b: tensor<{b}x{element}>) -> {c} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {c}
  %fill = linalg.fill ins(%zero : f32) outs(%empty : {c}) -> {c}
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%a, %b : tensor<{a}x{element}>, tensor<{b}x{element}>) outs(%fill : {c}) -> {c}
  return %r : {c}
}}
"""


CONVOLVED = """\
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x16x8x16xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<2x16x8x16xf32>) -> tensor<2x16x8x16xf32>
  %r = linalg.conv_2d_nchw_fchw {dilations = dense<1> : tensor<2xi64>,
      strides = dense<1> : tensor<2xi64>}
      ins(%x, %w : tensor<2x8x10x18xf32>, tensor<16x8x3x3xf32>)
      outs(%f : tensor<2x16x8x16xf32>) -> tensor<2x16x8x16xf32>
"""
CONV_AND_SUM = f"""
func.func @main(%x: tensor<2x8x10x18xf32>, %w: tensor<16x8x3x3xf32>, %a: tensor<64x32xf32>)
    -> (tensor<2x16x8x16xf32>, tensor<32xf32>) {{
{CONVOLVED}  %e1 = tensor.empty() : tensor<32xf32>
  %f1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<32xf32>) -> tensor<32xf32>
  %s = linalg.reduce {{ arith.addf }} ins(%a : tensor<64x32xf32>) outs(%f1 : tensor<32xf32>)
      dimensions = [0]
  return %r, %s : tensor<2x16x8x16xf32>, tensor<32xf32>
}}
"""


def attention(heads: int, length: int, width: int) -> str:
    t = f"tensor<{heads}x{length}x{width}xf32>"
    maps = ", ".join(
        f"affine_map<(b, m, n, d, s) -> ({i})>"
        for i in ("b, m, d", "b, s, d", "b, s, n", "", "b, m, n")
    )
    return f"""
func.func @main(%q: {t}, %k: {t}, %v: {t}) -> {t} {{
  %scale = arith.constant 0.125 : f32
  %empty = tensor.empty() : {t}
  %r = iree_linalg_ext.attention <indexing_maps = [{maps}]>
      ins(%q, %k, %v, %scale : {t}, {t}, {t}, f32) outs(%empty : {t}) {{
    ^bb0(%score: f32):
      iree_linalg_ext.yield %score : f32
  }} -> {t}
  return %r : {t}
}}
"""


def matmul_root(m: int, n: int, k: int) -> Root:
    operands = (Value((m, k), "f32"), Value((n, k), "f32"), Value((m, n), "f32"))
    return Root(
        "contraction",
        "linalg.matmul",
        ("m", "n", "k"),
        (m, n, k),
        frozenset({"k"}),
        (("m", "k"), ("n", "k"), ("m", "n")),
        operands,
    )


@pytest.fixture(scope="module")
def spaces() -> list[space.Space]:
    return space.load_spaces()


@pytest.fixture(scope="module")
def task() -> Task:
    found = dispatches.cut(product(64, 64, 64), CPU).found
    return measure.prepare(found[0], CPU)


@pytest.fixture
def runners() -> Iterator[measure.Runners]:
    with measure.Runners() as held:
        yield held


def candidate(spaces: list[space.Space], root: Root, **knobs: int) -> Candidate:
    for made in space.enumerate_candidates(root, CPU, spaces):
        if dict(made.knobs) == knobs:
            return made
    raise AssertionError(f"no candidate {knobs}")


# ---- dispatches ----------------------------------------------------------------------------


def test_dispatches_are_named_by_what_their_root_op_computes() -> None:
    found = dispatches.cut(CONV_AND_SUM, CPU)
    assert not found.skipped
    conv, total = (d.root for d in found.found)
    assert (conv.kind, conv.loops) == ("convolution", ("n", "f", "h", "w", "c", "kh", "kw"))
    assert conv.sizes == (2, 16, 8, 16, 8, 3, 3)
    assert conv.flops == 2 * 2 * 16 * 8 * 16 * 8 * 9
    assert conv.indices[0] == ("n", "c", "h+kh", "w+kw")
    assert (total.kind, total.extent) == ("reduction", {"p": 32, "r": 64})


def test_a_dispatch_cut_out_computes_what_it_did_in_the_program() -> None:
    first = dispatches.cut(CONV_AND_SUM, CPU).found[0]
    inputs = numerics.random_inputs(numerics.signature(CONV_AND_SUM)[1], seed=3)
    whole = runtime.run(compile_module(CONV_AND_SUM, CPU), inputs, CPU, "main")
    alone = compile_module(first.text, CPU, compile_from="flow")
    made = runtime.run(alone, inputs[:2], CPU, "main")
    assert numerics.difference(made[0], whole[0], 0, 0) == ""


@pytest.mark.parametrize(
    "text",
    [product(32, 16, 8), CONV_AND_SUM, attention(2, 32, 16)],
    ids=["mm", "conv", "attention"],
)
def test_the_op_of_a_dispatch_is_written_as_a_program_of_its_own(text: str) -> None:
    root = dispatches.cut(text, CPU).found[0].root
    again = dispatches.cut(dispatches.program(root), CPU).found[0].root
    assert (again.kind, again.sizes, again.indices) == (root.kind, root.sizes, root.indices)
    last = root.loops[-1] if root.kind != "convolution" else "c"
    grown = dispatches.cut(dispatches.program(root, {last: 2 * root.extent[last]}), CPU).found[0]
    assert grown.root.extent[last] == 2 * root.extent[last]


def test_dispatches_that_cannot_be_cut_out_say_why() -> None:
    text = """
func.func @main(%a: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %r = math.exp %a : tensor<?x8xf32>
  return %r : tensor<?x8xf32>
}
"""
    found = dispatches.cut(text, CPU)
    assert not found.found
    assert "static" in next(iter(found.skipped.values()))


# ---- spaces --------------------------------------------------------------------------------


def test_every_candidate_satisfies_the_constraints_and_comes_once(
    spaces: list[space.Space],
) -> None:
    root = matmul_root(256, 128, 512)
    env = space.environment(root, CPU)
    total = 0
    for one in spaces:
        if not one.fits(root, CPU):
            continue
        seen = set()
        for made in one.candidates(root, CPU):
            total += 1
            names = {**env, **dict(made.knobs)}
            for text in one.doc.where:
                assert truth(Evaluator(names).eval(parse_expression(text))), (text, made.knobs)
            seen.add(made.key)
        assert seen
    assert total > 500
    assert len(space.enumerate_candidates(root, CPU, spaces)) <= total


def test_loops_that_a_space_does_not_name_get_the_rest(spaces: list[space.Space]) -> None:
    root = dispatches.cut(CONV_AND_SUM, CPU).found[0].root
    made = next(iter(space.enumerate_candidates(root, CPU, spaces)))
    assert made.settings.tiles["distribution"]["n"] == 1
    assert made.settings.tiles["vector_reduction"]["kh"] == 1
    assert "kh" not in made.settings.tiles["distribution"]


def test_candidates_survive_the_way_through_json(spaces: list[space.Space]) -> None:
    made = next(iter(space.enumerate_candidates(matmul_root(64, 64, 64), CPU, spaces)))
    again = space.candidate_of(json.loads(json.dumps(made.as_json())))
    assert again == made
    assert again.key == made.key


FAULTY = {
    "distributon: {m: DM}": (8, "no tile level 'distributon'"),
    "distribution: {m: DM +}": (8, "DM +"),
}


@pytest.mark.parametrize("tiles", FAULTY)
def test_a_faulty_space_is_refused_at_its_place(tiles: str) -> None:
    line, said = FAULTY[tiles]
    text = (
        "space: bad\nsummary: A space.\ntargets: [cpu]\nops: [contraction]\n"
        f"pipeline: DoubleTilingExpert\nknobs: {{DM: [8]}}\ntiles:\n  {tiles}\n"
    )
    with pytest.raises(MlirulesError) as caught:
        space.load_space("bad.yaml", text)
    fault = caught.value.faults[0]
    assert (fault.span.path, fault.span.line) == ("bad.yaml", line)
    assert said in fault.message


def test_an_unknown_name_in_a_constraint_is_located() -> None:
    text = (
        "space: bad\nsummary: A space.\ntargets: [cpu]\nops: [contraction]\n"
        "pipeline: DoubleTilingExpert\nknobs: {DM: [8]}\ntiles:\n"
        "  distribution: {m: DM}\nwhere:\n  - DM <= width\n"
    )
    bad = space.load_space("bad.yaml", text)
    with pytest.raises(MlirulesError) as caught:
        list(bad.candidates(matmul_root(64, 64, 64), CPU))
    assert caught.value.faults[0].span.line == 10


def test_unknown_pipelines_and_keys_are_refused() -> None:
    text = (
        "space: bad\nsummary: A space.\ntargets: [cpu]\nops: [contraction]\nknob: {}\n"
        "pipeline: DoubleTiling\nknobs: {DM: [8]}\ntiles:\n  distribution: {m: DM}\n"
    )
    with pytest.raises(MlirulesError, match="knob"):
        space.load_space("bad.yaml", text)
    with pytest.raises(MlirulesError, match="DoubleTilingExpert"):
        space.load_space("bad.yaml", text.replace("knob: {}\n", ""))


# ---- ways to compile the whole program -------------------------------------------------------

PACKED = Way("packed", ("--iree-opt-data-tiling",))
IM2COL = Way("im2col", (), ("linalg/im2col",))

CONVOLUTION = f"""
func.func @main(%x: tensor<2x8x10x18xf32>, %w: tensor<16x8x3x3xf32>) -> tensor<2x16x8x16xf32> {{
{CONVOLVED}  return %r : tensor<2x16x8x16xf32>
}}
"""


def test_a_way_comes_once_for_each_value_of_its_knobs() -> None:
    found = {w.name: w for w in ways.load_ways(["cpu-program"], "cpu")}
    assert "--iree-llvmcpu-matmul-tile-bytes=2097152" in found["packed-2097152"].flags
    assert found["im2col"].rules == ("linalg/im2col",)
    assert ways.load_ways(["cpu-program"], "cuda") == []
    # Both kinds of file lie in one folder.
    assert "cpu-program" not in {s.name for s in space.load_spaces()}


FAULTY_WAYS = {
    "flags: [--iree-no-such-flag=1]": (7, "the compiler has no flag --iree-no-such-flag"),
    "rules: [linalg/no-such-set]": (7, "no-such-set"),
    "knobs: {N: [1]}\n    flags: [--iree-opt-level=O3]": (7, "no flag uses {N}"),
    "knobs: {}": (5, "changes nothing"),
    "pipeline: {}": (5, "changes nothing"),
    "pipeline: {without: [kernel]}": (7, "no pipeline that cpu gets has a stage 'kernel'"),
    "pipeline: {affinities: true}": (7, "affinities"),
    "flag: [--iree-opt-level=O3]": (7, "flag"),
}


@pytest.mark.parametrize("given", FAULTY_WAYS)
def test_a_faulty_way_is_refused_at_its_place(given: str, tmp_path: Path) -> None:
    line, said = FAULTY_WAYS[given]
    file = tmp_path / "bad.yaml"
    file.write_text(
        "space: bad\nsummary: Ways.\ntargets: [cpu]\nways:\n  - way: one\n"
        f"    reason: It may gain.\n    {given}\n"
    )
    with pytest.raises(MlirulesError) as caught:
        ways.load_ways([file])
    fault = caught.value.faults[0]
    assert (fault.span.path, fault.span.line) == (str(file), line)
    assert said in fault.message


def test_ways_must_take_effect_and_are_remembered(tmp_path: Path) -> None:
    text = product(48, 48, 48)
    idle = Way("idle", ("--iree-llvmcpu-use-fast-min-max-ops",))
    broken = Way("broken", ("--iree-opt-level=O9",))
    runner = Runner("mm", Executable(compile_module(text, CPU)), [Value((48, 48), "f32")] * 2, CPU)
    store = Store(tmp_path / "state.sqlite")
    known = [Tried(broken, "fails", note="as stored")]

    def keep(tried: Tried) -> None:
        store.add_way("mm", "here", tried.as_json())

    try:
        found = ways.search(
            [PACKED, IM2COL, idle, broken],
            Given(text),
            runner,
            Job(CPU, timeout=600, path="mm"),
            ways.Course(known, 3, keep, lambda: True),
        )
    finally:
        runner.close()
    states = {t.way.name: t for t in found}
    assert states["packed"].state in ("ok", "slow"), states["packed"]
    assert states["packed"].ratio is not None
    assert (states["im2col"].state, states["im2col"].note) == (
        "idle",
        "linalg/im2col does not apply",
    )
    assert (states["idle"].state, states["idle"].note) == ("idle", "the binary is the default's")
    assert states["broken"] == known[0]
    assert [ways.tried_of(d) for d in store.ways("mm", "here")] == found[:3]
    assert store.ways("mm", "elsewhere") == []
    store.close()


TORCH_CONVOLUTION = """
func.func @main(%x: !torch.vtensor<[1,8,12,12],f32>, %w: !torch.vtensor<[16,8,3,3],f32>) -> !torch.vtensor<[1,16,10,10],f32> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %n0 = torch.constant.int 0
  %n1 = torch.constant.int 1
  %ones = torch.prim.ListConstruct %n1, %n1 : (!torch.int, !torch.int) -> !torch.list<int>
  %zeros = torch.prim.ListConstruct %n0, %n0 : (!torch.int, !torch.int) -> !torch.list<int>
  %e = torch.prim.ListConstruct : () -> !torch.list<int>
  %y = torch.aten.convolution %x, %w, %none, %ones, %zeros, %ones, %false, %e, %n1 : !torch.vtensor<[1,8,12,12],f32>, !torch.vtensor<[16,8,3,3],f32>, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<[1,16,10,10],f32>
  return %y : !torch.vtensor<[1,16,10,10],f32>
}
"""  # noqa: E501


def test_a_way_may_be_another_pipeline(tmp_path: Path) -> None:
    recipe = transform.Recipe(TORCH_CONVOLUTION, CPU, path="conv")
    kernels = ("limited-kernels", "added-kernels", "shifted-kernels", "kernels")
    without = Way("without", change=Change(without=kernels))
    as_it_is = Way("as-it-is", change=Change(yields=0.03))
    given, line = ways.given(recipe)
    flags = tuple(line.flags)
    values = [Value((1, 8, 12, 12), "f32"), Value((16, 8, 3, 3), "f32")]
    binary = compile_module(given.text, CPU, flags=flags)
    runner = Runner("conv", Executable(binary), values, CPU)
    store = Store(tmp_path / "state.sqlite")
    course = ways.Course(
        [], 3, lambda tried: store.add_way("conv", "here", tried.as_json()), lambda: True
    )
    try:
        found = ways.search(
            [without, as_it_is], given, runner, Job(CPU, flags, timeout=600, path="conv"), course
        )
    finally:
        runner.close()
    assert found[0].state in ("ok", "slow"), found[0]
    assert "mlirules_kernel_convolution" in given.text
    assert "mlirules_kernel_convolution" not in without.program(given, CPU, "conv")
    assert (found[1].state, found[1].note) == ("idle", "the pipeline is like that")
    assert [ways.tried_of(d) for d in store.ways("conv", "here")] == found
    store.close()
    with pytest.raises(CheckFailed, match="did not come by a pipeline"):
        without.program(Given(given.text), CPU, "conv")


def test_a_change_leaves_out_stages_and_sets_what_they_say() -> None:
    line = Pipeline.load("cpu-fast")
    changed = Change(("kernels",), affinity=False, yields=0.5).of(line)
    assert line.affinity
    assert not changed.affinity
    assert {s.name for s in line.stages} - {s.name for s in changed.stages} == {"kernels"}
    assert {s.yields for s in changed.stages} == {None, 0.5}
    assert Change(affinity=True).of(line) is line


def test_a_changed_pipeline_that_won_is_written(tmp_path: Path) -> None:
    whole = outcome.Whole(2.0, 1.0, 2.0, 0.01)
    found = outcome.Outcome("conv.mlir", CPU, (), None)
    way = Way("other", change=Change(("kernels",), affinity=False))
    found.choice = outcome.Choice("other", way, (), whole, 0.01)
    line = Pipeline.load("cpu-fast")
    (path,) = written.write_found(found, tmp_path, "conv", line)
    chosen = Pipeline.load(path)
    assert not chosen.affinity
    assert [s.name for s in chosen.stages] == [s.name for s in line.stages if s.name != "kernels"]


def test_what_won_is_written_as_a_pipeline_that_compiles(tmp_path: Path) -> None:
    whole = outcome.Whole(2.0, 1.0, 2.0, 0.01)
    found = outcome.Outcome("conv.mlir", CPU, (), None)
    found.choice = outcome.Choice("im2col", IM2COL, (), whole, 0.01)
    (path,) = written.write_found(found, tmp_path, "conv")
    chosen = Pipeline.load(path)
    _, done = compile_program(CONVOLUTION, CPU, chosen)
    assert done.applications == {"linalg-im2col-nchw": 1}
    root = dispatches.cut(CONVOLUTION, CPU).found[0].root
    tiles = {
        "distribution": {"n": 1, "f": 16, "h": 4, "w": 16},
        "vector_common_parallel": {"n": 1, "f": 1, "h": 1, "w": 16},
        "vector_reduction": {"c": 1, "kh": 1, "kw": 1},
    }
    settings = Settings.model_validate({"pipeline": "ConvTileAndDecomposeExpert", "tiles": tiles})
    won = Winner(root, settings, 2.0, 1.0, 0.01, 9, "a device", 0.01, 4)
    found.rules = results.rules_of([won], CPU)
    found.choice = outcome.Choice("with rules", PACKED, tuple(found.rules), whole, 0.01)
    path = written.write_found(found, tmp_path, "conv")[-1]
    chosen = Pipeline.load(path)
    assert chosen.flags == ["--iree-opt-data-tiling"]
    _, done = compile_program(CONVOLUTION, CPU, chosen)
    assert done.configs is not None
    assert [h.rule.name for h in done.configs.hits] == [found.rules[0][0].name]


# ---- orders --------------------------------------------------------------------------------


def synthetic(root: Root, made: Candidate) -> Measured:
    """A made-up device: likes 8x16 register tiles, dislikes deep reductions and odd splits."""
    tiles = ordering.tiles_of(made, root)
    inner, step = tiles["inner"], tiles["reduced"]["k"]
    cost = abs(inner["m"] - 8) / 8 + abs(inner["n"] - 16) / 16 + abs(step - 8) / 16
    cost += 2 * ordering.quantisation(made, root, 2)
    return Measured(made, Result(made.key, "ok", ratio=2.0 / (1 + cost)))


def test_random_order_is_given_by_its_seed(spaces: list[space.Space]) -> None:
    root = matmul_root(128, 128, 128)
    all_ = space.enumerate_candidates(root, CPU, spaces)
    first = ordering.order("random", all_, root, seed=1).take(50)
    assert first == ordering.order("random", all_, root, seed=1).take(50)
    assert first != ordering.order("random", all_, root, seed=2).take(50)
    assert len({c.key for c in first}) == 50


@pytest.mark.parametrize("method", ordering.METHODS)
def test_every_order_gives_every_candidate_once(method: str, spaces: list[space.Space]) -> None:
    if method == "optuna":
        pytest.importorskip("optuna", reason="Optuna is not installed")
    if method == "learned":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    root = matmul_root(128, 128, 128)
    all_ = space.enumerate_candidates(root, CPU, spaces)[:60]
    line = ordering.order(method, all_, root)
    taken: list[Candidate] = []
    while batch := line.take(16):
        taken += batch
        for made in batch:
            line.tell(made, synthetic(root, made).result)
    assert sorted(c.key for c in taken) == sorted(c.key for c in all_)


def test_the_learned_order_finds_good_candidates_sooner(spaces: list[space.Space]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    history = {}
    for sizes in ((256, 128, 64), (128, 512, 256)):
        root = matmul_root(*sizes)
        sample = space.enumerate_candidates(root, CPU, spaces)
        random.Random(0).shuffle(sample)
        history[str(sizes)] = (root, [synthetic(root, c) for c in sample[:60]])
    root = matmul_root(512, 256, 256)
    sample = space.enumerate_candidates(root, CPU, spaces)
    random.Random(1).shuffle(sample)
    known = {c.key: synthetic(root, c) for c in sample[:200]}
    tried = {
        method: sorted(
            ordering.until_good(
                ordering.order(method, sample[:200], root, seed=seed, history=history), known
            )
            for seed in range(5)
        )[2]
        for method in ("random", "learned")
    }
    assert tried["learned"] <= 0.4 * tried["random"], tried


def test_quantisation_counts_what_cores_wait_for(spaces: list[space.Space]) -> None:
    root = matmul_root(192, 64, 64)
    three = candidate(spaces, root, DM=64, DN=64, VM=8, VN=16, VK=8)
    assert ordering.quantisation(three, root, 2) == pytest.approx(0.25)
    assert ordering.quantisation(three, root, 3) == pytest.approx(0.0)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(MlirulesError, match="heuristic"):
        ordering.order("heuristics", [], matmul_root(8, 8, 8))


# ---- the store -----------------------------------------------------------------------------


def test_results_are_there_again_after_reopening(
    tmp_path: Path, spaces: list[space.Space], task: Task
) -> None:
    made = space.enumerate_candidates(task.root, CPU, spaces)[:3]
    store = Store(tmp_path / "a.sqlite")
    store.add_task(task, "3.13.0")
    for number, one in enumerate(made):
        store.add(task.key, one, Result(one.key, "ok", 2.0, 1.0, 2.0 + number, 0.01, 5, "b"))
    store.add_baseline(task.key, "here", [0.1, 0.2])
    store.close()
    again = Store(tmp_path / "a.sqlite")
    assert [m.candidate for m in again.results(task.key)] == made
    assert [m.result.ratio for m in again.results(task.key)] == [2.0, 3.0, 4.0]
    root, history = again.history("cpu")[task.key]
    assert root == task.root
    assert len(history) == 3
    assert again.history("vulkan") == {}
    assert again.baselines(task.key) == [[0.1, 0.2]]
    again.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_text("not a database, but long enough to be read as one" * 9)
    with pytest.raises(MlirulesError, match="--state"):
        Store(tmp_path / "a.sqlite")
    other = Store(tmp_path / "b.sqlite")
    other.close()
    with sqlite3.connect(tmp_path / "b.sqlite") as db:
        db.execute("UPDATE meta SET value = '0'")
    db.close()
    with pytest.raises(MlirulesError, match="another version"):
        Store(tmp_path / "b.sqlite")


# ---- measuring -----------------------------------------------------------------------------


def test_a_candidate_is_compiled_compared_and_timed(
    task: Task, spaces: list[space.Space], runners: measure.Runners
) -> None:
    made = candidate(spaces, task.root, DM=32, DN=32, VM=8, VN=16, VK=8)
    found = measure.evaluate(task, made, runners, rounds=3)
    assert found.state in ("ok", "slow"), found
    assert found.ratio
    assert found.tuned_ms
    assert found.device.endswith("cores")
    known = {found.binary: "another"}
    again = measure.evaluate(task, made, runners, known, rounds=3)
    assert (again.state, again.note) == ("same", "another")


def test_a_measurement_leaves_no_runner_behind(task: Task) -> None:
    """One runner at a time, of whoever measures: none of the module, nor after the end."""
    other = replace(task, key="other")
    with measure.Runners() as one, measure.Runners() as two:
        first = one.of(task)
        assert one.of(task) is first
        assert two.of(task) is not first
        first.baseline(1)
        child = first._child
        assert child is not None
        second = one.of(other)
        assert not child.alive
        second.baseline(1)
        child = second._child
        assert child is not None
    assert not child.alive
    seen = weakref.ref(second)
    del first, second, child
    gc.collect()
    assert seen() is None


def test_the_configuration_of_a_candidate_reaches_the_binary(
    task: Task, spaces: list[space.Space]
) -> None:
    made = candidate(spaces, task.root, DM=32, DN=32, VM=8, VN=16, VK=8)
    text = measure.configured(task, made.settings)
    assert "distribution = [32, 32, 0]" in text
    assert measure.compile_candidate(task, made) != task.default


def test_a_configuration_that_does_not_compile_is_no_end(
    task: Task, spaces: list[space.Space], runners: measure.Runners
) -> None:
    made = candidate(spaces, task.root, DM=32, DN=32, VM=8, VN=16, VK=8)
    tiles = {**made.settings.tiles, "vector_common_parallel": {"m": 4096, "n": 4096}}
    broken = Candidate("x", (), made.settings.model_copy(update={"tiles": tiles}))
    found = measure.evaluate(task, broken, runners)
    assert found.state == "fails"
    assert found.note


def test_wrong_numbers_are_seen(
    task: Task, spaces: list[space.Space], runners: measure.Runners
) -> None:
    made = candidate(spaces, task.root, DM=32, DN=32, VM=8, VN=16, VK=8)
    doubled = re.sub(r"arith.constant 0.0+e\+00 : f32", "arith.constant 1.0 : f32", task.sources)
    assert doubled != task.sources
    found = measure.evaluate(replace(task, sources=doubled, key="doubled"), made, runners)
    # The default was compiled before: only the candidate starts its sums at one.
    assert found.state == "wrong"
    assert "differ" in found.note


def test_a_child_that_dies_is_told_and_replaced(task: Task) -> None:
    runner = Runner("x", Executable(task.default), task.dispatch.inputs, CPU)
    assert len(runner.baseline(3)) == 3
    child = runner._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises((RunnerDied, MlirulesError)):
        runner._ask({"do": "baseline", "rounds": 1}, 5)
    assert len(runner.baseline(3)) == 3
    hanging = runner._child
    assert hanging is not None
    os.kill(hanging.pid, signal.SIGSTOP)
    with pytest.raises(RunnerDied, match="timeout"):
        runner._ask({"do": "baseline", "rounds": 1}, 0.3)
    assert not hanging.alive
    runner.close()


# ---- rules ---------------------------------------------------------------------------------


def winner_of(root: Root, made: Candidate) -> Winner:
    return Winner(root, made.settings, 2.0, 1.0, 0.01, 11, "a device", 0.02, 7)


@pytest.mark.parametrize(
    "text",
    [product(64, 32, 16), CONV_AND_SUM, attention(2, 32, 16)],
    ids=["mm", "conv", "attention"],
)
def test_winners_become_rules_that_hit(
    text: str, spaces: list[space.Space], tmp_path: Path
) -> None:
    root = dispatches.cut(text, CPU).found[0].root
    made = space.enumerate_candidates(root, CPU, spaces)[0]
    rules = results.rules_of([winner_of(root, made)], CPU)
    found = configs.configure(text, CPU, [r for r, _ in rules])
    assert [hit.rule.name for hit in found.hits] == [rules[0][0].name]
    (path,) = results.write_rules(rules, tmp_path)
    again = load_config(path)
    assert again.settings == made.settings
    assert again.doc.measured is not None
    assert again.doc.measured.speedup == 2


def test_reductions_and_elementwise_work_become_equations() -> None:
    root = dispatches.cut(CONV_AND_SUM, CPU).found[1].root
    assert results.match_of(root).compute == "y[p] += a[r, p]"
    text = """
func.func @main(%a: tensor<64x32xf32>, %b: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %0 = arith.mulf %a, %b : tensor<64x32xf32>
  %1 = math.exp %0 : tensor<64x32xf32>
  %2 = arith.subf %1, %a : tensor<64x32xf32>
  return %2 : tensor<64x32xf32>
}
"""
    match = results.match_of(dispatches.cut(text, CPU).found[0].root)
    assert match.op == "generic"
    assert match.compute is not None
    assert "exp" in match.compute


# ---- the whole search ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[outcome.Outcome, Path]:
    state = tmp_path_factory.mktemp("tune") / "state.sqlite"
    store = Store(state)
    options = outcome.Options(CPU, budget=4, seed=3, order="random", rounds=3)
    with measure.Runners() as runners, workers("2") as pool:
        means = tuner.Means(store, pool, runners=runners)
        found = tuner.tune(Given(product(64, 64, 64)), options, means, path="mm.mlir")
    store.close()
    return found, state


def test_a_search_measures_its_budget_and_tells(
    searched: tuple[outcome.Outcome, Path],
) -> None:
    found, state = searched
    (tuned,) = found.tuned
    assert len(tuned.measured) == 4
    assert tuned.default_ms > 0
    assert tuned.winner is not None or tuned.why_not
    assert found.profile is not None
    assert found.profile.rows[0].shape == "64x64x64"
    store = Store(state)
    assert len(store.results(tuned.task.key)) == 4
    assert len(store.baselines(tuned.task.key)) == 2
    store.close()


@pytest.mark.slow
def test_what_is_known_is_not_measured_again(
    searched: tuple[outcome.Outcome, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, state = searched
    asked: list[str] = []
    genuine = measure.judged

    def counted(task: Task, made: Candidate, *more: Any) -> Result:
        asked.append(made.key)
        return genuine(task, made, *more)

    monkeypatch.setattr(measure, "judged", counted)
    store = Store(state)
    options = outcome.Options(CPU, budget=5, seed=3, order="random", rounds=3, check=False)
    with measure.Runners() as runners, workers("1") as pool:
        means = tuner.Means(store, pool, runners=runners)
        found = tuner.tune(Given(product(64, 64, 64)), options, means)
    assert found.tuned[0].resumed == 4
    assert len(asked) == 1
    store.close()


def test_the_page_needs_nothing_else(searched: tuple[outcome.Outcome, Path]) -> None:
    page = report.page(searched[0])
    assert not re.search(
        r"(src|href)=|@import|url\(|<script|https?://(?!www\.w3\.org/2000/svg)", page
    )
    assert page.count("<svg") == page.count("</svg>") >= 3
    for word in ("best so far", "distribution", "roofline"):
        assert word in page


def test_the_page_escapes_what_it_shows(searched: tuple[outcome.Outcome, Path]) -> None:
    name = '<script>alert("1")</script>'
    found = searched[0]
    (tuned,) = found.tuned
    first = tuned.measured[0]
    ran = replace(first.result, state="ok", tuned_ms=1.0, ratio=1.0)
    named = Measured(replace(first.candidate, space=name), ran)
    known = found.profile
    assert known is not None
    page = report.page(
        replace(
            found,
            model=name,
            flags=(name,),
            profile=replace(known, device=name, rows=[replace(known.rows[0], name=name)]),
            tuned=[replace(tuned, measured=[named, *tuned.measured[1:]], why_not=name)],
            skipped={name: name},
            ways=[Tried(Way(name, (name,)), "idle", note=name)],
            unfit={name: name},
        )
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;") >= 12


def test_the_page_opens_in_a_browser(
    searched: tuple[outcome.Outcome, Path], tmp_path: Path
) -> None:
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        pytest.skip("no Chromium here")
    file = tmp_path / "report.html"
    file.write_text(report.page(searched[0]))
    dumped = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert dumped.returncode == 0, dumped.stderr
    assert dumped.stdout.count("<svg") == 3
    assert dumped.stdout.count("<polyline") >= 2  # the default's line and the roofline, at least
    assert "contraction m=64 n=64 k=64" in dumped.stdout


def test_budgets() -> None:
    assert outcome.parse_budget("100") == (100, 0)
    assert outcome.parse_budget("3m")[1] == 180
    for wrong in ("0", "3 m", "x", "-1"):
        with pytest.raises(MlirulesError, match="budget"):
            outcome.parse_budget(wrong)


COMMAND = [sys.executable, "-m", "mlirules", "tune"]


@pytest.mark.parametrize(("named", "packs"), [((), True), (("--pipeline", "cpu"), False)])
def test_a_search_begins_with_what_compile_does(
    named: tuple[str, ...], packs: bool, tmp_path: Path
) -> None:
    """A product that no kernel takes, of a size that the default pipeline packs."""
    model = tmp_path / "mm.mlir"
    model.write_text(
        """func.func @main(%a: !torch.vtensor<[1024,12],f32>, %b: !torch.vtensor<[12,64],f32>)
    -> !torch.vtensor<[1024,64],f32> {
  %0 = torch.aten.mm %a, %b : !torch.vtensor<[1024,12],f32>, !torch.vtensor<[12,64],f32>
      -> !torch.vtensor<[1024,64],f32>
  return %0 : !torch.vtensor<[1024,64],f32>
}
"""
    )
    command = [*COMMAND, str(model), "--budget", "1", "--no-ways", "--share", "1", *named]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out"), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    flags = json.loads(done.stdout)["flags"]
    assert ("--iree-global-opt-data-tiling" in flags) == packs
    assert set(flags) <= set(Pipeline.load("cpu-fast").flags)


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    model = tmp_path / "mm.mlir"
    model.write_text(product(96, 64, 64))
    state = tmp_path / "state.sqlite"
    command = [
        *COMMAND,
        str(model),
        "--order",
        "random",
        "--state",
        str(state),
        "--budget",
        "12",
        "-o",
        str(tmp_path / "out"),
        "--json",
        "--no-check",
    ]
    killed = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    until = time.monotonic() + 120
    while len(_rows(state)) < 5 and time.monotonic() < until:
        assert killed.poll() is None, "the search ended before it could be killed"
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    # Ratios of the best are measured once more in the end.
    before = _rows(state, "candidate, made")
    assert 5 <= len(before) < 12
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["dispatches"][0]
    assert (told["resumed"], told["tried"]) == (len(before), 12)
    after = _rows(state, "candidate, made")
    assert after[: len(before)] == before
    assert len({row[0] for row in after}) == len(after) == 12


def _rows(state: Path, what: str = "candidate") -> list[tuple[object, ...]]:
    if not state.exists():
        return []
    with sqlite3.connect(f"file:{state}?mode=ro", uri=True, timeout=5) as db:
        try:
            rows = db.execute(f"SELECT {what} FROM results ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:  # not made yet
            rows = []
    db.close()
    return rows


@pytest.mark.slow
def test_a_cluster_of_two_workers_loses_one(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
    address = f"tcp://127.0.0.1:{port}"
    quiet: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "env": environment,
    }
    scheduler = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "distributed.cli.dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-dashboard",
        ],
        **quiet,
    )
    two = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                address,
                "--nthreads",
                "1",
                "--no-nanny",
                "--no-dashboard",
                "--local-directory",
                str(tmp_path / f"w{i}"),
            ],
            start_new_session=True,
            **quiet,
        )
        for i in range(2)
    ]
    try:
        import distributed

        typed_in_part: Any = distributed
        with typed_in_part.Client(address, timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
        store = Store(tmp_path / "s.sqlite")
        seen: list[Result] = []

        def watch(event: outcome.Event) -> None:
            if event.result is not None:
                seen.append(event.result.result)
                if len(seen) == 2:
                    os.killpg(two[0].pid, signal.SIGKILL)

        options = outcome.Options(CPU, budget=10, order="random", rounds=3, check=False)
        with workers(f"dask://127.0.0.1:{port}") as pool:
            found = tuner.tune(Given(product(64, 64, 64)), options, tuner.Means(store, pool, watch))
        two[0].wait(timeout=10)
        assert two[1].poll() is None
        states = [m.result.state for m in found.tuned[0].measured]
        assert len(states) == 10
        assert set(states) <= {"ok", "slow", "same", "fails"}, states
        store.close()
    finally:
        for process in [*two, scheduler]:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.vulkan
def test_vulkan_is_tuned_end_to_end(vulkan: str, tmp_path: Path) -> None:
    model = tmp_path / "mm.mlir"
    model.write_text(product(64, 64, 64))
    done = subprocess.run(
        [*COMMAND, str(model), "--target", vulkan, "--budget", "6", "-o", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["dispatches"][0]
    assert told["tried"] == 6
    assert told["winner"] is not None or told["why_not"]


@pytest.mark.slow
def test_candidates_for_cuda_compile_without_a_device(tmp_path: Path) -> None:
    pytest.importorskip("z3", reason="z3 is not installed")
    model = tmp_path / "mm.mlir"
    model.write_text(product(2048, 1280, 5120, "f16"))
    command = [
        *COMMAND,
        str(model),
        "--target",
        "cuda:sm_80",
        "--compile-only",
        "--budget",
        "12",
        "--order",
        "random",
    ]
    done = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    ((name, rows),) = json.loads(done.stdout).items()
    assert "2048x1280x5120" in name
    assert len(rows) == 12
    assert {r["settings"]["pipeline"] for r in rows} == {"TileAndFuse", "VectorDistribute"}
    states = [r["state"] for r in rows]
    assert states.count("ok") >= 6, rows
    # One that does not compile says why.
    assert all(r["note"] for r in rows if r["state"] != "ok"), rows
    again = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=500, check=False
    )
    assert [r["settings"] for r in json.loads(again.stdout)[name]] == [r["settings"] for r in rows]


def test_knobs_of_the_compilers_constraints_take_values() -> None:
    one_of = '#iree_codegen.smt.one_of_knob<"b", [#iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>, 7]>'
    text = f'{{x = #iree_codegen.smt.int_knob<"a">, y = [{one_of}, 3 : i64, true]}}'
    attribute = ir.Attribute.parse(text, compiler.context())
    assert knobs.names(attribute) == {"a", "b"}
    found = knobs.plain(attribute, {"a": 4, "b": 0})
    assert found == {"x": 4, "y": ["#iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>", 3, True]}


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_the_compilers_own_constraints_give_candidates_that_compile(target: str) -> None:
    pytest.importorskip("z3", reason="z3 is not installed")
    chosen = Target.parse(target)
    (dispatch,) = dispatches.cut(product(256, 256, 256, "f16"), chosen).found
    made = constraints.candidates(dispatch, chosen, 4, seed=1)
    assert len({c.key for c in made}) == 4
    assert {c.settings.pipeline for c in made} == {"TileAndFuse", "VectorDistribute"}
    assert made == constraints.candidates(dispatch, chosen, 4, seed=1)
    one = measure.prepare(dispatch, chosen)
    assert measure.compiled(one, made[0]).failed is None


def test_a_target_without_a_device_is_refused_before_any_work(tmp_path: Path) -> None:
    target = Target.parse("hip:gfx942")
    if target.available() is None:
        pytest.skip("there is a hip device")
    with pytest.raises(MlirulesError, match="compile-only"), workers("1") as pool:
        tuner.tune(
            Given(product(8, 8, 8)),
            outcome.Options(target),
            tuner.Means(Store(tmp_path / "s"), pool),
        )


def test_without_a_profiler_dispatches_are_taken_by_what_they_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What IREE's runtime says of CUDA (seen on an H200); no other device here lacks a profiler.
    program = tmp_path / "said.py"
    unimplemented = (
        "cuda_device.c:1214: UNIMPLEMENTED; CUDA HAL-native profiling is not implemented"
    )
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit({unimplemented!r})\n")
    program.chmod(0o755)
    monkeypatch.setattr(runtime, "tool_path", lambda _: program)
    notes: list[str] = []
    options = outcome.Options(CPU, budget=2, seed=3, order="random", rounds=3, check=False)
    store = Store(tmp_path / "state.sqlite")
    with measure.Runners() as runners, workers("1") as pool:
        means = tuner.Means(store, pool, lambda e: notes.append(e.text), runners=runners)
        found = tuner.tune(Given(product(64, 64, 64)), options, means)
    store.close()
    assert "IREE's runtime has no profiler for local-task: dispatches are taken by" in notes[1]
    assert found.profile is None
    (tuned,) = found.tuned
    assert (tuned.share, len(tuned.measured)) == (1.0, 2)
    assert "<html" in report.page(found)
    with pytest.raises(profile.NoProfiler, match="no profiler for local-task") as refused:
        profile.profile(runtime.Executable(b"", "main", ()), [], CPU)
    assert "mlirules bench" in str(refused.value)


# ---- profiles ------------------------------------------------------------------------------


def test_a_profile_tells_op_shape_and_share(tmp_path: Path) -> None:
    name, inputs = profile.random_inputs(CONV_AND_SUM)
    binary = compile_module(CONV_AND_SUM, CPU)
    found = profile.profile(Executable(binary, name), inputs, CPU, seconds=0.05, model="m")
    assert {row.op for row in found.rows} == {"conv", "reduction"}
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert found.rows == sorted(found.rows, key=lambda row: -row.total_ms)
    assert all(row.count > 0 and row.min_ms <= row.mean_ms <= row.max_ms for row in found.rows)
    saved = tmp_path / "p.json"
    saved.write_text(json.dumps(found.as_json()))
    again = profile.load(saved)
    assert again == found
    halved = replace(found, rows=[replace(r, mean_ms=r.mean_ms / 2) for r in found.rows[:1]])
    changes = profile.compare(again, halved)
    assert changes[0].ratio == pytest.approx(2)
    assert [c.new_ms for c in changes[1:]] == [None]


def test_dispatch_names_are_taken_apart() -> None:
    assert profile.described("main_dispatch_0_matmul_2048x1280x5120_f16xf16xf32") == (
        "matmul",
        "2048x1280x5120",
        "f16xf16xf32",
    )
    assert profile.described("main$async_dispatch_12_attention_4x1024x64x64x1024") == (
        "attention",
        "4x1024x64x64x1024",
        "",
    )
    assert profile.described("odd") == ("odd", "", "")


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("[1]")
    with pytest.raises(MlirulesError, match="no profile"):
        profile.load(file)


@pytest.mark.vulkan
def test_vulkan_is_profiled(vulkan: str) -> None:
    target = Target.parse(vulkan)
    text = product(32, 32, 32)
    name, inputs = profile.random_inputs(text)
    found = profile.profile(
        Executable(compile_module(text, target), name), inputs, target, seconds=0.02
    )
    assert found.rows[0].op == "matmul"
    assert found.rows[0].total_ms > 0
