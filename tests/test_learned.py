"""The learned cost model: its files, what it says, what it decides, and what goes before it."""

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.iree import compiler, cpu
from mlirules.drivers.iree.compiler import context
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import forms, learned
from mlirules.drivers.pipelines import cost, makeway
from mlirules.drivers.pipelines import transform as pipeline
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline
from mlirules.language.stage import Stage
from mlirules.support import cache

HERE = Path(__file__).parent
#: A CPU by name: decisions are then the same on every machine.
AVX512 = Target.parse("cpu:x86-64-v4")
AVX2 = Target.parse("cpu:x86-64-v3")
#: Channels, sizes and filters of convolutions at the limits of the kernel's Winograd form.
WINOGRAD = [
    (16, 30, 64),
    (15, 30, 64),
    (32, 28, 32),
    (128, 28, 32),
    (24, 28, 24),
    (24, 28, 16),
    (512, 8, 24),
    (384, 8, 24),
    (64, 8, 48),
    (64, 8, 49),
    (16, 14, 64),
    (128, 12, 128),
    (128, 13, 128),
    (8, 56, 64),
    # Of nine tiles, four whole ones, four of 7x7 places.
    (128, 10, 64),
    (256, 10, 256),
    (96, 11, 96),
    (64, 8, 64),
    (256, 7, 256),
    (512, 7, 512),
    (128, 28, 16),
]
FILES = sorted(learned.SHIPPED.glob("*.json"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = cache.directory()
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    # Compiled patterns and what CPUs have are no part of it: keep those.
    for kept in ("pdl", "pdl-of-rules", "rules", "cpus"):
        if (shared / kept).exists():
            (tmp_path / "cache" / kept).symlink_to(shared / kept)
    # What ships was measured on machines that may be this one: files go by CPUs' names here.
    monkeypatch.setattr(learned, "machine", lambda: "a machine that nothing ships for")


def convolution(
    channels: int,
    size: int,
    filters: int,
    window: int,
    *,
    groups: int = 1,
    stride: int = 1,
    constant: bool = True,
) -> str:
    """A padded convolution of torch over square images, by a filter that is known."""
    side = (size - 1) // stride + 1
    x = f"!torch.vtensor<[1,{channels},{size},{size}],f32>"
    w = f"!torch.vtensor<[{filters},{channels // groups},{window},{window}],f32>"
    y = f"!torch.vtensor<[1,{filters},{side},{side}],f32>"
    ints = "!torch.list<int>"
    shape = f"{filters}x{channels // groups}x{window}x{window}"
    literal = f"%w = torch.vtensor.literal(dense<0.5> : tensor<{shape}xf32>) : {w}"
    return f"""func.func @main(%x: {x}{"" if constant else f", %w: {w}"}) -> {y} {{
  {literal if constant else ""}
  %b = torch.constant.none
  %false = torch.constant.bool false
  %one = torch.constant.int 1
  %pad = torch.constant.int {window // 2}
  %groups = torch.constant.int {groups}
  %step = torch.constant.int {stride}
  %d = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> {ints}
  %s = torch.prim.ListConstruct %step, %step : (!torch.int, !torch.int) -> {ints}
  %p = torch.prim.ListConstruct %pad, %pad : (!torch.int, !torch.int) -> {ints}
  %n = torch.prim.ListConstruct : () -> {ints}
  %y = torch.aten.convolution %x, %w, %b, %s, %p, %d, %false, %n, %groups
      : {x}, {w}, !torch.none, {ints}, {ints}, {ints}, !torch.bool, {ints}, !torch.int -> {y}
  return %y : {y}
}}"""


def compiled(text: str, target: Target = AVX512) -> pipeline.Transformed:
    """A program after the torch stages of the default pipeline."""
    line = Pipeline.load("cpu-fast")
    costs = cost.Settings(target, flags=tuple(line.flags))
    return pipeline.transform(text, line, costs=costs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_ships_is_whole_and_small(path: Path) -> None:
    assert path.stat().st_size < 300_000
    model = learned.read(path)
    said = json.loads(path.read_text())
    name = learned.name_of(Target.parse(said["target"]))
    assert path.name == name or said["target"] == "cpu"
    assert set(model.learned) == set(forms.FORMS) == set(said["held_out"])
    assert {which: set(known) for which, known in model.learned.items()} == {
        which: set(known) for which, known in forms.FORMS.items()
    }


def test_avx512_and_avx2_have_models_of_their_own() -> None:
    found = [learned.for_target(Target.parse(name)) for name in ("cpu:x86-64-v4", "cpu:x86-64-v3")]
    assert [model.vector_bytes for model in found if model is not None] == [64, 32]
    same_core = learned.for_target(Target.parse("cpu:sapphirerapids"))
    assert same_core is not None
    assert same_core.path.name == "avx512-emeraldrapids.json"
    assert found[0] == same_core, "the first of Intel's for those that none was measured on"
    of_amd = learned.for_target(Target.parse("cpu:znver4"))
    assert of_amd is not None
    assert of_amd.path.name == "avx512-znver4.json"
    names = [path.name for path in FILES if path.name.startswith("avx512")]
    nearest = min(names, key=lambda name: learned._nearness(name, "avx512-znver6.json"))
    assert nearest == "avx512-znver4.json", "AMD's for AMD's"
    assert learned.for_target(Target.parse("vulkan:baseline")) is None


def _measured_here(monkeypatch: pytest.MonkeyPatch, file: str, name: str) -> learned.Model:
    """What ships in a file, on the machine that it was measured on, which is called ``name``."""
    measured = learned.read(learned.SHIPPED / file)
    monkeypatch.setattr(learned, "machine", lambda: measured.machine)
    monkeypatch.setattr(cpu, "name", lambda architecture: architecture or name)
    return measured


def test_what_was_measured_on_this_machine_goes_before_what_is_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Granite Rapids that was measured is called a Sapphire Rapids by the compiler."""
    measured = _measured_here(monkeypatch, "avx512-graniterapids.json", "sapphirerapids")
    assert learned.for_target(Target.parse("cpu:sapphirerapids")) == measured


def test_for_another_cpu_nothing_counts_that_was_measured_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is compiled on a Zen 4 for a Sapphire Rapids goes by the latter's core."""
    measured = _measured_here(monkeypatch, "avx512-znver4.json", "znver4")
    found = learned.for_target(Target.parse("cpu:sapphirerapids"))
    assert found is not None
    assert found.path.name == "avx512-emeraldrapids.json"
    general = learned.for_target(Target.parse("cpu:x86-64-v4"))
    assert general is not None
    assert general.path == measured.path


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('"vector_bytes": 64', '"vector_bytes": ', 7, "is no JSON"),
        ('"im2col"', '"im2row"', None, "no form of a 3x3 and larger convolution"),
        ('"gflops": ', '"gflops": -', None, "must be above 0"),
        ('"launch_us"', '"launch"', None, "lacks 'launch_us'"),
        ('"lanes over"', '"lanes"', None, "not those that this version computes"),
    ],
)
def test_a_damaged_file_is_refused_where_it_is_wrong(
    tmp_path: Path, old: str, new: str, line: int | None, message: str
) -> None:
    text = learned.SHIPPED.joinpath("avx512-znver5.json").read_text()
    assert old in text
    path = tmp_path / "avx512-znver5.json"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MlirulesError, match="learned-model") as caught:
        learned.read(path)
    (fault,) = caught.value.faults
    assert message in fault.message
    assert fault.span.path == str(path)
    assert fault.span.line >= 1
    if line is not None:
        assert abs(fault.span.line - line) <= 1


@pytest.mark.parametrize("tree", ["null", "[1, 2.0, 3.0]", "[99, 1.0, 0.1, 0.2]", '"x"', "1e400"])
def test_a_damaged_tree_is_refused(tmp_path: Path, tree: str) -> None:
    said = json.loads(learned.SHIPPED.joinpath("avx512-znver5.json").read_text())
    said["kinds"]["1x1 convolution"]["forms"]["plain"]["trees"][1] = json.loads(tree)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(said))
    with pytest.raises(MlirulesError, match="plain: a tree"):
        learned.read(path)


@pytest.mark.parametrize("name", ["avx512-znver4.json", "avx512-znver5.json"])
def test_errors_are_as_the_file_says(name: str) -> None:
    """Shapes that no sample of a shipped model has, with what each of their forms took."""
    said = json.loads(learned.SHIPPED.joinpath(name).read_text())
    model = learned.read(learned.SHIPPED / name)
    errors: dict[str, list[float]] = defaultdict(list)
    lost: list[float] = []
    for row in json.loads((HERE / "learned" / name).read_text()):
        work: Any = forms.Product if "rows" in row["sizes"] else forms.Convolution
        made = work(**row["sizes"])
        seconds = model.seconds(made)
        ms = {form: took for form, took in row["ms"].items() if form in seconds}
        if not ms:
            continue
        errors[forms.kind(made)] += [abs(math.log(1e3 * seconds[f] / ms[f])) for f in ms]
        lost.append(ms[learned.choice({f: seconds[f] for f in ms})] / min(ms.values()))
    assert set(errors) == set(said["held_out"])
    for which, found in errors.items():
        assert statistics.median(found) < 1.6 * said["held_out"][which]["median_error"] + 0.01
    assert sum(each <= 1.05 for each in lost) >= 0.9 * len(lost)
    # Few are beyond what the model was measured for.
    assert len(lost) >= 75


def test_what_the_model_says_is_decided_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few places a kernel is slower, and what the compiler has of its own is not asked."""
    monkeypatch.setattr(cost.Judge, "_rewritten", lambda *_: pytest.fail("a piece was made"))
    done = compiled(convolution(8, 7, 8, 3, groups=8, stride=2))
    kernel, last = done.outcome.decisions
    assert (kernel.rule, kernel.applies) == ("kernel-depthwise-bare", False)
    assert "its form channels-last is faster" in str(kernel)
    assert "avx512-emeraldrapids, measured on" in kernel.source
    assert "shipped" in kernel.source
    assert (last.rule, last.model, last.applies) == (
        "torch-depthwise-channels-last",
        "learned",
        True,
    )
    # By what it says the compiler's own form is nearly as fast, which of such ops it never was.
    plain = learned.read(learned.SHIPPED / f"{kernel.source.split(',')[0]}.json").seconds(
        forms.Convolution(8, 8, 3, 2, 7, 7, 4, 4, True)
    )["plain"]
    assert plain < 1.1e-3 * last.after_ms
    assert last.before == {"form": "kernel"}
    assert "its form kernel is slower" in str(last)
    assert kernel.before_ms == last.after_ms


def test_weights_that_a_call_brings_are_not_transformed_in_it() -> None:
    """What was learned holds for filters that are known to the compiler."""
    done = compiled(convolution(8, 7, 8, 3, groups=8, stride=2, constant=False))
    assert done.outcome.counts["kernel-depthwise-bare"] == 1
    assert not any(d.model == "learned" for d in done.outcome.decisions)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_few_places_are_a_product_whatever_was_learned(size: int) -> None:
    """The models saw no such images, and held the compiler's own form for as fast."""
    for stride, images in ((1, size), (2, 2 * size)):
        done = compiled(convolution(50, images, 412, 1, stride=stride), AVX2)
        made = sum(done.outcome.counts[f"linalg-one-by-one-{n}"] for n in ("nchw", "strided-nchw"))
        assert made == 1
        assert "no kernel takes so few places" in str(done.outcome.decisions[-1])


def test_winograd_of_the_compiler_is_taken_where_the_kernel_has_none() -> None:
    """Filters that do not fill vectors go the direct way in the kernel, which takes longer."""
    done = compiled(convolution(323, 14, 334, 3), AVX2)
    made = {d.rule: d.applies for d in done.outcome.decisions}
    assert made["linalg-winograd-nchw"]
    assert not made["kernel-convolution-bare"]
    # The kernel's own is faster than what the model says of the two.
    done = compiled(convolution(320, 14, 336, 3), AVX2)
    assert done.outcome.counts["kernel-convolution-bare"] == 1


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:znver4"])
def test_when_kernels_take_winograd_is_said_once_more_as_the_rule_says_it(target: str) -> None:
    cpu = Target.parse(target)
    lanes, halves = 8 if target.endswith("v3") else 16, target == "cpu:znver4"
    stage = Stage(phase="torch", rules=["kernels/kernel-convolution"], driver="greedy")
    counts = set()
    for c, size, f in WINOGRAD:
        text = convolution(c, size, f, 3)
        done = pipeline.transform(text, [stage], costs=cost.Settings(cpu)).text
        work = forms.Convolution(c, f, 3, 1, size, size, size, size)
        dispatches = done.count("flow.dispatch @")
        assert dispatches == 1 + forms.transforms(work, lanes, halves=halves), (c, size, f)
        counts.add(dispatches)
    assert counts == {1, 2}


def test_kernels_stay_where_nothing_is_faster() -> None:
    done = compiled(convolution(32, 28, 64, 3))
    assert done.outcome.counts["kernel-convolution-bare"] == 1
    assert not done.outcome.decisions


def test_beyond_what_was_measured_the_roofline_answers() -> None:
    stage = Stage(phase="torch", rules=["linalg/im2col"], driver="cost", margin=0.1)
    lowering = Stage(phase="torch", rules=["torch/to-linalg"], driver="walk")
    flags = tuple(Pipeline.load("cpu-fast").flags)
    found = {}
    for window in (3, 13):
        done = pipeline.transform(
            convolution(16, 13, 32, window),
            [lowering, stage],
            costs=cost.Settings(AVX512, flags=flags),
        )
        (found[window],) = done.outcome.decisions
    assert {window: d.model for window, d in found.items()} == {3: "learned", 13: "roofline"}
    # Products were measured packed: where they are not, the model says nothing of them.
    done = pipeline.transform(
        convolution(16, 13, 32, 3), [lowering, stage], costs=cost.Settings(AVX512)
    )
    assert [d.model for d in done.outcome.decisions] == ["roofline"]


def test_a_model_made_here_goes_first(tmp_path: Path) -> None:
    shipped = learned.for_target(AVX512)
    assert shipped is not None
    said = json.loads(shipped.path.read_text())
    own = tmp_path / "cache" / "learned" / "avx512-x86-64-v4.json"
    own.parent.mkdir()
    own.write_text(json.dumps({**said, "machine": "another machine"}))
    assert learned.for_target(AVX512) == shipped
    own.write_text(json.dumps({**said, "machine": learned.machine()}))
    found = learned.for_target(AVX512)
    assert found is not None
    assert found.path == own
    few = convolution(8, 7, 8, 3, groups=8, stride=2)
    sources = [d.source for d in compiled(few).outcome.decisions]
    assert sources
    assert all("made here" in source for source in sources)
    own.write_text("{")
    with pytest.raises(MlirulesError, match=r"avx512-x86-64-v4\.json:1:2"):
        compiled(convolution(32, 28, 64, 3))


def test_what_was_measured_once_is_used_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(phase="torch", rules=["linalg/im2col/linalg-im2col-nchw"], driver="cost")
    lowering = Stage(phase="torch", rules=["torch/to-linalg"], driver="walk")
    text = convolution(16, 13, 32, 3)

    def decided(*, measure: bool) -> cost.Decision:
        costs = cost.Settings(AVX512, measure=measure)
        done = pipeline.transform(text, [lowering, stage], costs=costs)
        (decision,) = done.outcome.decisions
        assert isinstance(decision, cost.Decision)
        return decision

    modelled = decided(measure=False)
    assert modelled.model == "roofline"
    timed = {"before_ms": 1.0, "after_ms": 4.0, "ratio": 0.25, "ratio_low": 0.2}
    timed |= {"ratio_high": 0.3, "rounds": 9}
    monkeypatch.setattr(cost.Judge, "_time", lambda *_: timed)
    assert not decided(measure=True).cached
    monkeypatch.setattr(cost.Judge, "_time", lambda *_: pytest.fail("it is timed again"))
    kept = decided(measure=False)
    assert (kept.model, kept.cached, kept.ratio, kept.applies) == ("measured", True, 0.25, False)
    assert "kept from an earlier run" in str(kept)


def layer(rows: int, inner: int, columns: int, turned: bool) -> str:
    """A product by a constant, as the torch stages leave it: as it lies, or a linear layer's."""
    x, w, t, y = (
        f"tensor<{a}x{b}xf32>"
        for a, b in ((rows, inner), (inner, columns), (columns, inner), (rows, columns))
    )
    weights = f"  %w = arith.constant dense<1.0> : {w}"
    if turned:
        weights = f"""  %t = arith.constant dense<1.0> : {t}
  %e = tensor.empty() : {w}
  %w = linalg.generic {{
    indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]}} ins(%t : {t}) outs(%e : {w}) {{
  ^bb0(%in: f32, %out: f32):
    linalg.yield %in : f32
  }} -> {w}"""
    return f"""func.func @main(%x: {x}, %o: {y}) -> {y} {{
{weights}
  %y = linalg.matmul ins(%x, %w : {x}, {w}) outs(%o : {y}) -> {y}
  return %y : {y}
}}"""


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("sizes", "packed"),
    [
        # Few pairs of numbers, and five times as fast when packed.
        ((7, 128, 193), True),
        # The start of one more kernel takes longer than all that packing saves.
        ((1, 40, 16), False),
        ((256, 1019, 256), True),
        # Beyond what was measured: by their number.
        ((1, 4, 8), False),
        ((4096, 4096, 4096), True),
    ],
)
def test_products_are_packed_where_the_model_says_so(
    sizes: tuple[int, int, int], packed: bool, turned: bool
) -> None:
    module = compiler.parse(layer(*sizes, turned), "<test>", context())
    line, _ = makeway.for_products(Pipeline.load("cpu-fast"), module, AVX512)
    assert ("--iree-global-opt-data-tiling" in line.flags) == packed
    assert sizes != (7, 128, 193) or makeway.multiplied(module) < makeway.SMALL


def test_few_columns_are_not_packed_whatever_was_learned() -> None:
    """Of 593 numbers by eight columns: 0.08 ms packed, 0.03 as they lie (a Zen 4)."""
    target = Target.parse("cpu:znver4")
    model = learned.for_target(target)
    assert model is not None
    said = model.seconds(forms.Product(77, 593, 8))
    assert said["packed"] < said["unpacked"]
    module = compiler.parse(layer(77, 593, 8, turned=False), "<test>", context())
    line, _ = makeway.for_products(Pipeline.load("cpu-fast"), module, target)
    assert "--iree-global-opt-data-tiling" not in line.flags


def test_the_errors_of_a_model_are_by_the_margins_of_the_default_pipeline() -> None:
    stages = Pipeline.load("cpu-fast").stages
    assert {stage.yields for stage in stages} - {None} == {learned.MARGINS["kernel"]}
    (forms_,) = (stage for stage in stages if stage.name == "linalg-forms")
    assert forms_.margin == learned.MARGINS["plain"]
