"""Config rules: their checks, their entries, and the proof that they took effect."""

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mlirules.cli import build
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree import target_facts as targetfacts
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import ExpectationError, compile_program, rule_set
from mlirules.drivers.quality.config_test import run_config_test
from mlirules.drivers.tuning_specs import compile as configs
from mlirules.drivers.tuning_specs.check import load_source, round_trip
from mlirules.drivers.tuning_specs.compile import (
    NotApplied,
    compile_with,
    config_set,
    configure,
    prove,
)
from mlirules.drivers.tuning_specs.examples import example_tests, program
from mlirules.drivers.tuning_specs.importer import import_entries
from mlirules.drivers.tuning_specs.match import refusal
from mlirules.drivers.tuning_specs.reader import read_spec
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.language.checks.config_gpu import mma_of
from mlirules.language.config.op import ConfigRule
from mlirules.language.config.write import write_config
from mlirules.language.config_loader import CONFIGS, load_config
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rules
from mlirules.language.pipeline import Pipeline
from mlirules.language.rulefiles import LIBRARY

HERE = Path(__file__).parent
FAULTY = sorted((HERE / "faulty_configs").glob("*.yaml"))
SHIPPED = sorted(CONFIGS.rglob("*.yaml"))
CPU = Target.parse("cpu")

RULES: dict[str, dict[str, Any]] = {
    "mm": {
        "match": {
            "op": "contraction",
            "compute": "c[m, n] += a[m, k] * b[k, n]",
            "types": {"a": "f32", "b": "f32", "c": "f32"},
            "dims": {"m": 64, "n": {"multiple_of": 32}, "k": {"min": 16, "max": 128}},
        },
        "set": {
            "pipeline": "DoubleTilingExpert",
            "tiles": {
                "distribution": {"m": 32, "n": 32},
                "vector_common_parallel": {"m": 4, "n": 16},
                "vector_reduction": {"k": 8},
            },
        },
    },
    "conv": {
        "match": {
            "op": "convolution",
            "compute": "o[n, i, j, f] += x[n, i*2 + u, j*2 + v, c] * w[u, v, c, f]",
            "types": {"x": "f32", "w": "f32", "o": "f32"},
            "dims": {"n": 1, "i": 8, "j": 8, "f": 32, "u": 3, "v": 3, "c": {"multiple_of": 4}},
        },
        "set": {
            "pipeline": "ConvTileAndDecomposeExpert",
            "tiles": {
                "distribution": {"n": 1, "i": 8, "j": 8, "f": 32},
                "vector_common_parallel": {"n": 1, "i": 1, "j": 4, "f": 16},
                "vector_reduction": {"u": 1, "v": 1, "c": 4},
            },
        },
    },
    "attention": {
        "match": {
            "op": "attention",
            "compute": "o[b, m, n] = attention(q[b, m, d], k[b, s, d], v[b, s, n])",
            "types": {"q": "f32", "k": "f32", "v": "f32", "o": "f32"},
            "dims": {"m": {"multiple_of": 32}, "d": 32},
        },
        "set": {
            "pipeline": "LinalgExtTileAndVectorize",
            "tiles": {
                "distribution": {"b": 1, "m": 16, "n": 32},
                "vector_common_parallel": {"b": 1, "m": 4, "n": 32},
                "vector_reduction": {"s": 16},
            },
            "decomposition": {
                "qk": {"tiles": {"vector_common_parallel": {"b": 1, "m": 4, "s": 16}}},
                "pv": {"tiles": {"vector_common_parallel": {"b": 1, "m": 4, "n": 16}}},
            },
        },
    },
}


def made(name: str, **changes: Any) -> ConfigRule:
    """One of the rules above, as a checked rule."""
    data = {
        "rule": f"{name}-cpu",
        "kind": "config",
        "summary": "A rule of a test.",
        "reason": "A test needs it.",
        "targets": ["cpu"],
        **RULES[name],
        **changes,
    }
    generic = [
        {"name": "the op", "input": GENERIC},
        {"name": "another", "unchanged": GENERIC, "because": "dims.j"},
    ]
    data["tests"] = generic if data["match"]["op"] == "generic" else example_tests(data)
    return load_config(f"{name}.yaml", json.dumps(data), facts=targetfacts.facts)


def example(rule: ConfigRule) -> str:
    """The program of a rule's positive test."""
    return next(t.input for t in rule.tests if t.input is not None)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda p: p.stem)
def test_shipped_rules_hold(file: Path) -> None:
    (rule,) = config_set([file])
    for test in rule.tests:
        result = run_config_test(rule, test, devices=[])
        assert result.passed, "\n".join(result.problems)


@pytest.mark.parametrize("file", FAULTY, ids=lambda p: p.stem)
def test_faulty_rules_are_refused_where_they_are_wrong(file: Path) -> None:
    found = re.match(r"# EXPECT: (\d+):(\d+) ([\w-]+): (.*)", file.read_text())
    assert found is not None
    fault = load_source(str(file)).faults[0]
    place = (str(fault.span.line), str(fault.span.column), fault.code, fault.message)
    assert place == found.groups()
    assert fault.span.source_line


@pytest.mark.parametrize("name", RULES)
def test_entry_hits_and_numbers_stay(name: str) -> None:
    rule = made(name)
    for test in rule.tests:
        numbers = {"run": {"low": -1.0, "high": 1.0, "rtol": 1e-3, "atol": 1e-3}}
        checked = (
            test
            if test.input is None
            else test.model_validate(
                {**test.model_dump(exclude_defaults=True), **numbers, "hits": 1}
            )
        )
        result = run_config_test(rule, checked)
        assert result.passed, "\n".join(result.problems)


def test_a_mask_tells_attentions_apart() -> None:
    plain = made("attention")
    match = {
        **RULES["attention"]["match"],
        "compute": "o[b, m, n] = attention(q[b, m, d], k[b, s, d], v[b, s, n], w[b, m, s])",
        "types": dict.fromkeys("qkvwo", "f32"),
    }
    masked = made("attention", rule="masked-cpu", match=match)
    for rule in (plain, masked):
        report = configure(example(rule), CPU, [plain, masked])
        assert [hit.rule.name for hit in report.hits] == [rule.name]
    assert round_trip([masked]) == []
    (entry,) = import_entries(read_spec(tuning.tuning_spec([masked]), "spec.mlir"), target="cpu")
    assert entry.faults == []
    assert entry.rule is not None
    assert entry.rule.match.dims == masked.match.dims
    report = configure(example(masked), CPU, [plain, entry.rule])
    assert [hit.rule.name for hit in report.hits] == [entry.rule.name]


def test_what_a_rule_says_in_mlir_goes_with_its_report() -> None:
    counted: Any = compiler.ir.Context
    gc.collect()
    before = counted._get_live_count()
    for name in ("attention", "mm"):
        rule = made(name)
        report = configure(example(rule), CPU, [rule])
        assert report.hits
        assert refusal(rule, report.hits[0].op.operation) is None
        del report
        gc.collect()
        assert counted._get_live_count() <= before


def test_every_class_reads_back_as_itself() -> None:
    assert round_trip([made(name) for name in RULES]) == []
    assert round_trip([rule for file in SHIPPED for rule in config_set([file])]) == []


def test_written_rules_read_back() -> None:
    for rule in [made(name) for name in RULES] + config_set(["configs"]):
        assert load_config("again.yaml", write_config(rule.doc)).doc == rule.doc


GENERIC = """
func.func @f(%x: tensor<64x256xf16>) -> tensor<64xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<64xf32>) -> tensor<64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<64x256xf16>) outs(%i : tensor<64xf32>) {
  ^bb0(%a: f16, %acc: f32):
    %w = arith.extf %a : f16 to f32
    %t = arith.mulf %w, %w : f32
    %s = arith.addf ORDER : f32
    linalg.yield %s : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}
"""


def squares() -> ConfigRule:
    """A rule for sums of squares."""
    return made(
        "mm",
        match={
            "op": "generic",
            "compute": "s[i] += x[i, j] * x[i, j]",
            "types": {"x": "f16", "s": "f32"},
            "dims": {"j": {"multiple_of": 64}},
        },
        set={
            "pipeline": "DoubleTilingExpert",
            "tiles": {
                "distribution": {"i": 16},
                "vector_common_parallel": {"i": 4},
                "vector_reduction": {"j": 32},
            },
        },
    )


@pytest.mark.parametrize("order", ["%t, %acc", "%acc, %t"])
def test_generic_is_found_in_either_order(order: str) -> None:
    report = configure(GENERIC.replace("ORDER", order), CPU, [squares()])
    assert [hit.op.op for hit in report.hits] == ["linalg.generic"]


def test_generic_that_computes_something_else_is_left_alone() -> None:
    from_input = GENERIC.replace(
        "%x: tensor<64x256xf16>)", "%x: tensor<64x256xf16>, %i: tensor<64xf32>)"
    )
    from_input = re.sub(r"  %[zei] = .*\n", "", from_input).replace("ORDER", "%t, %acc")
    assert configure(from_input, CPU, [squares()]).hits, "it may go on from any value"
    cubes = from_input.replace("%w, %w : f32", "%w, %acc : f32")
    assert not configure(cubes, CPU, [squares()]).hits


BYTES = """
func.func @f(%x: tensor<64x256xi8>) -> tensor<64xi32> {
  %z = arith.constant 0 : i32
  %e = tensor.empty() : tensor<64xi32>
  %i = linalg.fill ins(%z : i32) outs(%e : tensor<64xi32>) -> tensor<64xi32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<64x256xi8>) outs(%i : tensor<64xi32>) {
  ^bb0(%a: i8, %acc: i32):
    %w = CAST %a : i8 to i32
    %t = arith.muli %w, %w : i32
    %s = arith.addi %t, %acc : i32
    linalg.yield %s : i32
  } -> tensor<64xi32>
  return %r : tensor<64xi32>
}
"""


def of_bytes(element: str) -> ConfigRule:
    rule = {
        "match": squares().doc.match.model_dump(exclude_defaults=True),
        "set": squares().doc.set.model_dump(exclude_defaults=True),
    }
    rule["match"]["types"] = {"x": element, "s": "i32"}
    return made("mm", **rule)


def test_a_generic_is_told_by_the_sign_that_its_types_say() -> None:
    for element, cast in (("si8", "arith.extsi"), ("ui8", "arith.extui")):
        rule = of_bytes(element)
        for op in ("arith.extsi", "arith.extui"):
            assert bool(configure(BYTES.replace("CAST", op), CPU, [rule]).hits) == (op == cast)
    with pytest.raises(MlirulesError, match=r"do not say whether integers are signed"):
        configure(BYTES.replace("CAST", "arith.extsi"), CPU, [of_bytes("i8")])


def test_what_should_have_hit_and_did_not_is_a_fault(tmp_path: Path) -> None:
    rule = made("mm")
    compiler.lower_to(
        example(rule),
        compiler.Job(CPU, flags=(f"{configs.DUMP}={tmp_path}",)),
        "executable-configurations",
    )
    with pytest.raises(NotApplied, match=r"mm\.yaml:1:\d+: .*did not hit this op") as caught:
        prove(tmp_path, [rule], CPU)
    (fault,) = caught.value.faults
    assert "distribution" in fault.message, "says what configuration it has instead"


def test_another_configuration_than_the_rule_says_is_a_fault(tmp_path: Path) -> None:
    rule = made("mm")
    spec = tmp_path / "spec.mlir"
    spec.write_text(tuning.tuning_spec([rule]).replace("[32, 32, 0]", "[16, 32, 0]"))
    dump = tmp_path / "dump"
    flags = [f"{configs.DUMP}={dump}", configs.hook(CPU, spec)]
    compiler.lower_to(
        example(rule), compiler.Job(CPU, flags=tuple(flags)), "executable-configurations"
    )
    with pytest.raises(NotApplied, match=r"lowering config is .*\[16, 32, 0\].*not.*\[32, 32, 0\]"):
        prove(dump, [rule], CPU)


def test_the_first_of_two_rules_wins() -> None:
    first, second = made("mm"), made("mm", rule="mm-other")
    report = configure(example(first), CPU, [second, first])
    assert [hit.rule.name for hit in report.hits] == ["mm-other"]
    assert [rule.name for rule in report.unused] == ["mm-cpu"]


def test_rules_of_which_none_hits_an_op_are_an_error(tmp_path: Path) -> None:
    rule = LIBRARY / "configs" / "mmt-2048x1280x5120-f16-cpu.yaml"
    program = tmp_path / "model.mlir"
    program.write_text(
        "func.func @main(%a: T, %b: T, %c: T) -> T {\n"
        "  %0 = linalg.matmul ins(%a, %b : T, T) outs(%c : T) -> T\n  return %0 : T\n}\n".replace(
            "T", "tensor<128x128xf32>"
        )
    )
    done = run("compile", program, "--configs", rule, "-o", tmp_path / "none.vmfb")
    assert done.exit_code
    assert isinstance(done.exception, NotApplied)
    said = str(done.exception)
    assert f"the config rule {rule.stem} finds no op in the program, and the program" in said
    assert "without --iree-global-opt-data-tiling for it" in said
    assert said.startswith(f"{rule}:")
    assert not (tmp_path / "none.vmfb").exists()


def test_a_configuration_that_does_not_compile_is_the_rules_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mlirules.language.checks.config_tiles.MAX_NATIVE_VECTORS", 1 << 20)
    tiles = {"distribution": {"m": 64, "n": 128}, "vector_common_parallel": {"m": 64, "n": 128}}
    match = {**RULES["mm"]["match"], "dims": {"m": 64, "n": 128}}
    rule = made("mm", match=match, set={"pipeline": "DoubleTilingExpert", "tiles": tiles})
    with pytest.raises(compiler.CompileError) as caught:
        compile_with(example(rule), CPU, [rule])
    (fault,) = caught.value.faults
    assert (fault.code, fault.span.path) == ("config-fails", "mm.yaml")
    assert "large vector sizes" in fault.message


def test_rules_for_other_targets_are_refused() -> None:
    with pytest.raises(MlirulesError, match="none of the 1 config rules is for vulkan"):
        configs.for_target([made("mm")], Target.parse("vulkan"))


def test_facts_come_from_the_compiler() -> None:
    hip, cuda = targetfacts.facts("hip:gfx942"), targetfacts.facts("cuda:sm_80")
    assert "MFMA_F32_16x16x16_F16" in hip.mma_kinds
    assert "NV_MMA_SYNC_F32_16x8x16_F16" in cuda.mma_kinds
    assert (hip.subgroup_sizes, cuda.subgroup_sizes) == ((64,), (32,))
    assert hip.shared_bytes == 65536
    for name in hip.mma_kinds | cuda.mma_kinds:
        assert mma_of(name) is not None, name


def test_pipeline_stage_configures_and_expects(tmp_path: Path) -> None:
    rule = made("mm")
    (tmp_path / "rule.yaml").write_text(write_config(rule.doc))
    stage = {"phase": "configuration", "rules": [str(tmp_path / "rule.yaml")]}

    def line(**expect: Any) -> Pipeline:
        return Pipeline.of(
            {
                "pipeline": "configured",
                "summary": "For a test.",
                "targets": ["cpu"],
                "stages": [{**stage, **expect}],
            }
        )

    _, done = compile_program(example(rule), CPU, line(expect={"applied": 1}))
    assert done.configs is not None
    assert done.configs.count("mm-cpu") == 1
    with pytest.raises(ExpectationError, match="rule mm-cpu must apply at least 2 times"):
        compile_program(example(rule), CPU, line(expect_rules={"mm-cpu": {"min": 2}}))


def test_folders_may_hold_rules_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(write_config(made("mm").doc))
    relu = rule_set(("torch/to-linalg/elementwise/torch-relu-to-linalg",))[0]
    (tmp_path / "relu.yaml").write_text(Path(relu.path).read_text())
    assert [r.name for r in load_rules([tmp_path])] == [relu.name]
    assert [r.name for r in config_set([tmp_path])] == ["mm-cpu"]
    with pytest.raises(MlirulesError, match="a config rule rewrites nothing"):
        load_rules([tmp_path / "config.yaml"])
    with pytest.raises(MlirulesError, match="takes rules of `kind: config`"):
        config_set([tmp_path / "relu.yaml"])


PRODUCT: dict[str, Any] = {
    "match": {
        "op": "convolution",
        "compute": "o[n, i, j, f] += x[n, i + u, j + v, c] * w[u, v, c, f]",
        "types": {"x": "f16", "w": "f16", "o": "f32"},
        "dims": {"n": 2, "i": 32, "j": 32, "f": 320, "c": 320, "u": 3, "v": 3},
    },
    "set": {
        "pipeline": "TileAndFuse",
        "tiles": {
            "workgroup": {"n": 1, "i": 4, "j": 32, "f": 32},
            "subgroup": {"n": 1, "i": 2, "j": 1, "f": 2},
            "reduction": {"k": 2},
        },
        "workgroup_size": [256, 1, 1],
        "promote_operands": [0, 1],
        "promotion_types": ["derived_thread_config", "derived_thread_config"],
        "padding": {"n": 1, "i": 4, "j": 32, "f": 32, "k": 32},
        "padding_conv": {"n": 1, "i": 4, "j": 32, "f": 32},
        "prefetch_stages": 2,
        "pipeline_options": {"use_igemm_convolution": True},
    },
}
INSTRUCTIONS = {
    "hip:gfx942": {"mma_kind": "MFMA_F32_16x16x16_F16", "subgroup_size": 64},
    "cuda:sm_80": {"mma_kind": "NV_MMA_SYNC_F32_16x8x16_F16", "subgroup_size": 32},
}


def as_product(target: str, **changes: Any) -> ConfigRule:
    settings = {**PRODUCT["set"], **INSTRUCTIONS[target], **changes}
    return made(
        "conv",
        rule="conv-as-product",
        targets=[target],
        match=PRODUCT["match"],
        set={k: v for k, v in settings.items() if v is not None},
    )


@pytest.mark.parametrize("target", INSTRUCTIONS)
def test_a_convolution_is_configured_as_the_product_that_it_becomes(target: str) -> None:
    rule = as_product(target)
    _, report = compile_with(example(rule), Target.parse(target), [rule])
    (hit,) = report.hits
    for part in (
        "padding = [1, 4, 32, 32, 32]",
        "padding_conv = [1, 4, 32, 32, 0, 0, 0]",
        "reduction = [0, 0, 0, 0, 2]",
        "promotion_types = [#iree_gpu.derived_thread",
    ):
        assert part in hit.op.lowering_config
    spec = read_spec(tuning.tuning_spec([rule]), "spec.mlir")
    (entry,) = import_entries(spec, target=target, facts=targetfacts.facts)
    assert entry.faults == []
    assert entry.rule is not None
    again = tuning.lowering_config(entry.rule, target.partition(":")[0])
    assert again == tuning.lowering_config(rule, target.partition(":")[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tiles": {"workgroup": {"n": 1}, "reduction": {"c": 2}}}, "the product has no loop 'c'"),
        ({"padding": {"u": 3}}, "there is no loop 'u'"),
        ({"padding": {"f": 48}}, "48 is not a multiple of 32"),
        (
            {"pipeline_options": None, "padding": None, "tiles": {"workgroup": {"n": 1}}},
            "padding_conv is for convolutions as matrix products",
        ),
        ({"promotion_types": ["derived_thread_config"]}, "1 ways for 2 promoted operands"),
        ({"promotion_types": ["by_magic"] * 2}, "by_magic"),
        ({"pipeline": "VectorDistribute"}, "computes no convolution as a matrix product"),
    ],
)
def test_what_does_not_go_with_a_product_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(MlirulesError) as caught:
        as_product("hip:gfx942", **changes)
    assert any(said in str(f) for f in caught.value.faults), caught.value


def test_packing_and_a_configuration_of_a_product_exclude_each_other() -> None:
    rule = made("mm")
    packing = "--iree-opt-data-tiling"
    with pytest.raises(compiler.CompileError) as caught:
        compile_with(example(rule), compiler.Job(CPU, (packing,)), [rule])
    (fault,) = caught.value.faults
    assert (fault.code, fault.span.path) == ("config-packed", "mm.yaml")
    assert packing in fault.message


def run(*arguments: object) -> Any:
    return CliRunner().invoke(build(), [str(a) for a in arguments])


def test_compile_and_generate_commands(tmp_path: Path) -> None:
    rule = made("mm")
    (tmp_path / "rule.yaml").write_text(write_config(rule.doc))
    (tmp_path / "mm.mlir").write_text(example(rule))
    done = run(
        "compile",
        tmp_path / "mm.mlir",
        "--configs",
        tmp_path / "rule.yaml",
        "-o",
        tmp_path / "mm.vmfb",
        "--json",
    )
    assert done.exit_code == 0, done.output
    (hit,) = json.loads(done.stdout)["configs"]["hits"]
    assert hit["rule"] == "mm-cpu"
    assert "distribution = [32, 32, 0]" in hit["lowering_config"]
    done = run("generate", tmp_path / "rule.yaml", "--to", "tuning-spec", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    (written,) = (tmp_path / "out").rglob("*.mlir")
    assert load_source(str(written)).faults == []


def test_measured_speedup_is_told_in_the_spec() -> None:
    measured = {
        "device": "a device",
        "compiler": "3.13.0",
        "default_ms": 3.0,
        "tuned_ms": 2.0,
        "spread": 0.02,
    }
    text = tuning.tuning_spec([made("mm", measured=measured)])
    assert "// 1.50 times as fast as the default: 2 ms for 3 ms, spread 2.0%, on a device" in text


def test_examples_of_collapsible_ops_stand_alone() -> None:
    match = {
        "op": "contraction",
        "compute": "c[b0, b1, m, n] += a[b0, b1, m, k] * b[b0, b1, k, n]",
        "types": {"a": "f32", "b": "f32", "c": "f32"},
    }
    text = program(match, dict.fromkeys(["b0", "b1", "m", "n", "k"], 8))
    assert "flow.dispatch.workgroups" in text
    report = configure(text, CPU)
    (product,) = [op for op in report.ops if op.op == "linalg.generic"]
    assert product.shape.startswith("tensor<8x8x8x8xf32>, ")
