"""Parsing, passes and compilation against the installed compiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler, dialects
from mlirules.drivers.iree.compiler import (
    CompileError,
    Job,
    compile_job,
    compile_module,
    lower_to,
    parse,
)
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import Fault, MlirulesError

CPU = Target.parse("cpu")
RELU = """\
func.func @main(%a: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %r = torch.aten.relu %a : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %r : !torch.vtensor<[4],f32>
}
"""
# What no conversion knows.
UNKNOWN = RELU.replace("torch.aten.relu %a", 'torch.operator "my.op"(%a)').replace(
    ": !torch.vtensor<[4],f32> ->", ": (!torch.vtensor<[4],f32>) ->"
)
LINALG = """\
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.elementwise <exp>
       ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def only(error: MlirulesError) -> Fault:
    (fault,) = error.faults
    return fault


def test_faults_of_nested_modules_come_back() -> None:
    # In a process of its own: MLIR's threads and Python's lock once waited for each other here.
    wrong = "func.func @f{}(%x: tensor<2xf32>) -> tensor<3xf32> {{ return %x : tensor<2xf32> }}\n"
    nested = "".join(
        f"module @m{i} {{\n{''.join(wrong.format(n) for n in range(3))}}}\n" for i in range(3)
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from mlirules.drivers.iree.compiler import parse\n"
            "from mlirules.language.faults import MlirulesError\n"
            "for _ in range(50):\n"
            "    try:\n"
            "        parse(sys.argv[1])\n"
            "    except MlirulesError as error:\n"
            "        said = error.faults[0].message\n"
            "print(said)\n",
            nested,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "tensor<2xf32>" in done.stdout


def test_a_module_parses_and_its_torch_ops_are_reachable() -> None:
    module = parse(RELU)
    function = module.body.operations[0]
    relu = function.regions[0].blocks[0].operations[0]
    assert relu.operation.name == "torch.aten.relu"
    assert str(relu.results[0].type) == "!torch.vtensor<[4],f32>"


def test_stand_ins_serve_only_dialects_without_a_module() -> None:
    registered = set(compiler.known_dialects())
    missing = {name for name in dialects.DIALECTS if name != "index"} - registered
    assert not missing
    assert dialects.install() == ()


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "suggestion"),
    [
        ('\n"torch.aten.mmm"() : () -> ()', 2, 1, "torch.aten.mmm", "'torch.aten.mm'"),
        ("%0 = arith.constnt 1 : i32", 1, 6, "'arith.constnt' is unknown", "'arith.constant'"),
        ("  %0 = torc.aten.mm : i32", 1, 8, "`torc' not found", "'torch'"),
        ("func.func @f() {", 1, 15, "expected", ""),
        (RELU.replace("return %r", "return %a %r"), 3, 12, "expected", ""),
    ],
)
def test_a_parse_error_is_located(
    text: str, line: int, column: int, message: str, suggestion: str
) -> None:
    with pytest.raises(MlirulesError) as refused:
        parse(text, "model.mlir")
    fault = only(refused.value)
    assert (fault.span.path, fault.span.line, fault.span.column) == ("model.mlir", line, column)
    assert fault.span.source_line == text.split("\n")[line - 1]
    assert message in fault.message
    assert suggestion in fault.suggestion


def test_a_verification_error_is_located_where_the_text_says() -> None:
    text = '%a = "arith.constant"() {value = 1.0 : f32} : () -> i32 loc("user.py":4:5)'
    with pytest.raises(MlirulesError) as refused:
        parse(text)
    assert str(only(refused.value).span) == "user.py:4:5"


def test_ops_are_known_and_listed() -> None:
    assert compiler.is_registered_op("torch.aten.mm")
    assert not compiler.is_registered_op("torch.aten.mmm")
    torch_ops = compiler.registered_ops("torch")
    assert {"torch.aten.mm", "torch.prim.ListConstruct", "torch.prims.var"} <= set(torch_ops)
    assert all(name.startswith("torch.") for name in torch_ops)
    assert "linalg.matmul" in compiler.registered_ops()
    assert "did you mean 'linalg.matmul'" in compiler.op_suggestion("linalg.matmull")


def test_passes_run_in_place() -> None:
    module = parse(RELU)
    compiler.run_passes(module, "builtin.module(func.func(convert-torch-to-linalg))")
    assert "linalg.generic" in str(module)


def test_an_unknown_pass_is_located_in_the_pipeline() -> None:
    with pytest.raises(MlirulesError) as refused:
        compiler.run_passes(parse(RELU), "builtin.module(func.func(nopass))")
    fault = only(refused.value)
    assert fault.code == "pipeline"
    assert fault.span.source_line[fault.span.column - 1 :] == "nopass))"


def test_a_failing_pass_names_the_op() -> None:
    with pytest.raises(CompileError) as failed:
        compiler.run_passes(parse(UNKNOWN), "builtin.module(torch-to-iree)")
    assert failed.value.kind == "error"
    assert failed.value.op == "torch.operator"


@pytest.mark.slow
def test_text_and_module_compile_alike() -> None:
    assert compile_module(parse(RELU), CPU) == compile_module(RELU, CPU)


def test_a_program_that_mixes_torch_and_linalg_compiles() -> None:
    text = """
func.func @main(%a: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %t = torch_c.to_builtin_tensor %a : !torch.vtensor<[4],f32> -> tensor<4xf32>
  %e = tensor.empty() : tensor<4xf32>
  %x = linalg.elementwise <exp>
       ins(%t : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %b = torch_c.from_builtin_tensor %x : tensor<4xf32> -> !torch.vtensor<[4],f32>
  %r = torch.aten.relu %b : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %r : !torch.vtensor<[4],f32>
}
"""
    assert compile_module(text, CPU)


TORCH = "--iree-input-type=torch"
KEEP_F64 = "--iree-input-demote-f64-to-f32=false"
PRIVATE = LINALG + "func.func private @helper(%a: f64) -> f64 {\n  return %a : f64\n}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LINALG, set()),
        (RELU, {TORCH}),
        (RELU.replace("f32", "f64"), {TORCH, KEEP_F64}),
        ("func.func @main(%a: !torch.float) {\n  return\n}", {TORCH, KEEP_F64}),
        ("func.func @main(%a: tensor<4xcomplex<f64>>) {\n  return\n}", {KEEP_F64}),
        (PRIVATE, set()),
        ('func.func @main(\n  %a: i1 {my.note = "} {"},\n  %b: f64) {\n  return\n}', {KEEP_F64}),
        ("func.func @main() {\n  %c = arith.constant 1.0 : f64\n  return\n}", set()),
    ],
)
def test_flags_follow_from_the_program(text: str, expected: set[str]) -> None:
    assert set(compiler.flags_for(CPU, text)) - set(CPU.flags) == expected


def test_lowering_stops_at_a_phase_and_resumes() -> None:
    text = lower_to(RELU, CPU, "input")
    assert "linalg.generic" in text
    assert "torch.aten" not in text
    assert compile_module(text, CPU, compile_from="input")


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(MlirulesError, match="did you mean 'preprocessing'"):
        lower_to(RELU, CPU, "preprocesing")


def test_a_compile_error_is_located_and_names_the_op() -> None:
    with pytest.raises(CompileError) as failed:
        compile_module(UNKNOWN, CPU, path="model.mlir")
    error = failed.value
    fault = only(error)
    assert (error.kind, error.op) == ("error", "torch.operator")
    assert (fault.span.path, fault.span.line) == ("model.mlir", 2)
    assert fault.message.endswith("that was explicitly marked illegal")


def test_a_link_error_is_located_at_the_op_that_caused_it() -> None:
    text = """\
func.func @main(%a: !torch.vtensor<[4],f64>) -> !torch.vtensor<[4],f64> {
  %r = torch.aten.sin %a : !torch.vtensor<[4],f64> -> !torch.vtensor<[4],f64>
  return %r : !torch.vtensor<[4],f64>
}
"""
    with pytest.raises(CompileError) as failed:
        compile_module(text, CPU)
    error = failed.value
    assert (error.kind, error.op) == ("error", "torch.aten.sin")
    assert "undefined symbol: sin" in only(error).message
    assert only(error).span.line == 2


def test_a_crash_of_the_compiler_is_survived() -> None:
    # An inner dimension of 0 divides by zero in the dispatch namer.
    text = """
func.func @main(%a: tensor<4x0xf32>, %b: tensor<0x4xf32>, %c: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %r = linalg.matmul ins(%a, %b : tensor<4x0xf32>, tensor<0x4xf32>)
                     outs(%c : tensor<4x4xf32>) -> tensor<4x4xf32>
  return %r : tensor<4x4xf32>
}
"""
    with pytest.raises(CompileError) as failed:
        compile_module(text, CPU, path="model.mlir")
    assert failed.value.kind == "crash"
    assert "SIG" in failed.value.faults[-1].message
    assert "Stack dump" not in str(failed.value)


def test_a_time_out_stops_the_compiler() -> None:
    with pytest.raises(CompileError, match="stopped after") as failed:
        compile_module(RELU, CPU, timeout=0.01)
    assert failed.value.kind == "timeout"


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(CompileError) as failed:
        compile_module(RELU, CPU, flags=["--iree-llvmcpu-target-cp=host"])
    assert "did you mean '--iree-llvmcpu-target-cpu=host'" in only(failed.value).suggestion


def test_a_given_flag_wins_over_the_usual_one() -> None:
    said: list[Fault] = []
    compile_job(LINALG, Job(CPU, ("--iree-llvmcpu-target-cpu=",), warn=said.append))
    assert [fault.severity for fault in said] == ["warning"]
    quiet: list[Fault] = []
    compile_job(LINALG, Job(CPU, warn=quiet.append))
    assert quiet == []


def test_an_unknown_preprocessing_pass_does_not_pass_silently() -> None:
    flag = "--iree-preprocessing-pass-pipeline=builtin.module(nopass)"
    with pytest.raises(CompileError, match="'nopass' does not refer"):
        compile_module(LINALG, CPU, flags=[flag])


def test_a_pdl_file_that_does_not_parse_does_not_pass_silently(tmp_path: Path) -> None:
    spec = tmp_path / "bad.mlir"
    spec.write_text("pdl.pattern @x : {")
    with pytest.raises(CompileError) as failed:
        compile_module(LINALG, CPU, flags=[f"--iree-preprocessing-pdl-spec-filename={spec}"])
    span = only(failed.value).span
    assert (span.path, span.line, span.source_line) == (str(spec), 1, "pdl.pattern @x : {")


@pytest.mark.parametrize("name", ["vulkan", "cuda:sm_80"])
def test_a_tuning_spec_that_would_be_ignored_is_refused(name: str) -> None:
    with pytest.raises(MlirulesError, match="ignores a tuning spec"):
        compile_module(
            LINALG, Target.parse(name), flags=["--iree-codegen-tuning-spec-path=spec.mlir"]
        )


def test_weights_survive_a_module() -> None:
    text = """\
func.func @main() -> tensor<2xf32> {
  %c = arith.constant dense_resource<w> : tensor<2xf32>
  return %c : tensor<2xf32>
}
{-# dialect_resources: { builtin: { w: "0x040000000000803F00000040" } } #-}
"""
    assert "0x040000000000803F00000040" in parse(text).operation.get_asm()
    assert compile_module(parse(text), CPU)


def test_tools_are_found_and_missing_ones_named() -> None:
    assert compiler.tool_path("iree-opt").is_file()
    with pytest.raises(MlirulesError, match="no 'iree-nothing'"):
        compiler.tool_path("iree-nothing")
    stdout, _ = compiler.run_tool("iree-opt", ["-", "--canonicalize"], stdin=LINALG)
    assert "linalg.elementwise" in stdout


def test_the_version_is_the_pinned_one() -> None:
    assert compiler.version().startswith("3.13.")


_HERE = """
import sys
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target

text, cpu = sys.stdin.read(), Target.parse("cpu")
compiler.single_threaded()
compiler.parse(text)  # the bindings and the embedded compiler live side by side
print(runtime.entries(compiler.compile_here(text, cpu)))
for broken, flags in ((text.replace("mm", "nn"), []), (text, ["--no-such-flag"])):
    try:
        compiler.compile_here(broken, cpu, flags=flags, path="p.mlir")
    except compiler.CompileError as error:
        print(error.kind, error)
once = ["--iree-global-opt-propagate-transposes=false"]  # no flag of a session
print("in its own process:", len(compiler.compile_here(text, cpu, flags=once)) > 1000)
print(len(compiler.compile_here(text, cpu)) > 1000, "and stderr is back", file=sys.stderr)
"""


def test_compiling_in_this_process() -> None:
    t = "!torch.vtensor<[2,2],f32>"
    text = f"""func.func @main(%a: {t}) -> {t} {{
      %0 = torch.aten.mm %a, %a : {t}, {t} -> {t}
      return %0 : {t}
    }}"""
    done = subprocess.run(
        [sys.executable, "-c", _HERE], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Entry(name='main', arguments='r', results='r')" in done.stdout
    assert "error p.mlir:2:12: error[compile]: custom op 'torch.aten.nn' is unknown" in done.stdout
    assert "no-such-flag" in done.stdout
    assert "in its own process: True" in done.stdout
    assert done.stderr == "True and stderr is back\n"


_SPEC = """\
module attributes { transform.with_named_sequence,
                    iree_codegen.tuning_spec_with_default_entrypoint } {
  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}) {
    transform.annotate %op "seen" : !transform.any_op
    transform.yield
  }
  transform.named_sequence @m(%op: !transform.any_op {transform.readonly}) -> !transform.any_op {
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    transform.yield %op : !transform.any_op
  }
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed})
      -> !transform.any_op attributes { iree_codegen.tuning_spec_entrypoint } {
    %done = transform.foreach_match in %variant
        @m -> @apply
      : (!transform.any_op) -> !transform.any_op
    transform.yield %done : !transform.any_op
  }
}
"""


def test_a_tuning_spec_is_read_before_there_are_executables(tmp_path: Path) -> None:
    # Read by the first executable that wants it, under a lock, it may be waited for for ever.
    spec = tmp_path / "spec.mlir"
    spec.write_text(_SPEC)
    flag = f"--iree-codegen-tuning-spec-path={spec}"
    preprocessed = lower_to(LINALG, Job(CPU, flags=(flag,)), "preprocessing")
    assert "iree_codegen.tuning_spec_mlirbc" in preprocessed
    own = (
        "--iree-preprocessing-pass-pipeline=builtin.module(util.func(iree-preprocessing-nonsense))"
    )
    with pytest.raises(CompileError, match="nonsense"):  # the user's own passes come after it
        lower_to(LINALG, Job(CPU, flags=(flag, own)), "preprocessing")
    configured = lower_to(LINALG, Job(CPU, flags=(flag,)), "executable-configurations")
    assert "seen" in configured
