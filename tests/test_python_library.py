"""The library: sessions on MLIR programs, with numpy arrays. Nothing here needs PyTorch."""

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlirules
from mlirules.api import binaries
from mlirules.api.dynamo.report import Compiled, Eager, Report
from mlirules.api.rules import RuleText
from mlirules.drivers.iree.program import MAGIC
from mlirules.support import cache, package

T = "!torch.vtensor<[2,3],f32>"
PROGRAM = f"""func.func @main(%x: {T}) -> ({T}, {T}) {{
  %y = torch.aten.sigmoid %x : {T} -> {T}
  return %y, %x : {T}, {T}
}}
"""
X = np.array([[-1.0, 0.0, 1.0], [2.0, 3.0, -4.0]], np.float32)


def tanh_rule() -> RuleText:
    made: RuleText = mlirules.rule(
        "y = torch.aten.sigmoid(x)",
        types={"x": "vtensor<M x N x T>", "y": "vtensor<M x N x T>"},
        rewrite="y = torch.aten.tanh(x)",
        name="sigmoid-to-tanh",
    )
    return made


@pytest.mark.slow
def test_text_bytes_module_and_path_compile_to_the_same(tmp_path: Path) -> None:
    session = mlirules.Session("cpu")
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    module = mlirules.parse(PROGRAM)
    before = str(module)
    bytecode = tmp_path / "program.mlirbc"
    with bytecode.open("wb") as file:
        module.operation.write_bytecode(file)
    assert bytecode.read_bytes().startswith(MAGIC)
    first = session.compile(PROGRAM)
    given: list[Any] = [module, bytecode.read_bytes(), PROGRAM.encode(), path, str(path), bytecode]
    for source in given:
        again = session.compile(source)
        assert again.facts.warm  # where it was written is no part of what it is
        assert again.binary == first.binary
    assert str(module) == before
    assert first.applications == {"torch-sigmoid-to-linalg": 1}
    y, x = first(X)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-X)), rtol=1e-5)
    np.testing.assert_array_equal(x, X)
    # The second result is the argument handed through: the caller's array stays its own.
    x[:] = 7
    assert X[0, 0] == -1


def test_rules_of_ones_own_go_first() -> None:
    session = mlirules.Session(target="cpu", rules=[tanh_rule()])
    done = session.apply(mlirules.parse(PROGRAM))
    assert done.applications == {"sigmoid-to-tanh": 1, "torch-tanh-to-linalg": 1}
    assert not done.leftovers
    assert "math.tanh" in str(done.module)
    assert [change.rules for change in done.diff().changes] == [
        ["sigmoid-to-tanh", "torch-tanh-to-linalg"]
    ]
    assert [a.rule for a in done.trace] == ["sigmoid-to-tanh", "torch-tanh-to-linalg"]
    np.testing.assert_allclose(session.compile(PROGRAM)(X)[0], np.tanh(X), rtol=1e-5)


def test_a_refusal_names_its_line() -> None:
    session = mlirules.Session(rules=tanh_rule())
    other = PROGRAM.replace("[2,3]", "[3]")
    said = session.apply(other).explain("sigmoid-to-tanh")
    assert not said.applies
    assert "sigmoid-to-tanh.yaml:6" in str(said)
    with pytest.raises(mlirules.MlirulesError, match="did you mean 'sigmoid-to-tanh'"):
        session.apply(other).explain("sigmoid-to-tan")


def test_what_notebooks_show_is_escaped() -> None:
    session = mlirules.Session()
    program = PROGRAM.replace("@main", '@"<script>"')
    page = session.apply(program)._repr_html_()
    assert "torch-sigmoid-to-linalg" in page
    compiled = session.compile(PROGRAM)
    compiled.name = "<script>alert(1)</script>"
    assert "<script>" not in compiled._repr_html_()
    assert "&lt;script&gt;" in compiled._repr_html_()
    eager = Eager("aten.<script>", 2, "a & b", "model.py:3", "y = x")
    graph = Compiled("main", 3, 2, 1, 0.5, 0, notes=("a note",), eager=(eager,))
    assert Report((graph,), {})._repr_html_() == (
        "<pre>main: 2 of 3 ops in 1 programs, 0 applications of 0 rules, 0.50 s\n"
        "  model.py:3: aten.&lt;script&gt; (2 of them) runs eagerly: a &amp; b\n"
        "      y = x\n  note: a note</pre>"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: mlirules.Session("cpuu"), "unknown target 'cpuu'"),
        (lambda: mlirules.Session(pipeline="cpu-fats"), "did you mean 'cpu-fast'"),
        (lambda: mlirules.Session(rules=["no/such"]), "no/such"),
        (lambda: mlirules.Session().compile("model.mlirr"), "neither a file nor"),
        (lambda: mlirules.Session().compile(3), "cannot be compiled: int"),
        (lambda: mlirules.Session().compile(b"\xff\xfe"), "neither MLIR bytecode nor"),
        (lambda: mlirules.Session().compile("func.func @f( {\n"), "<string>:1"),
    ],
)
def test_what_is_wrong_is_said(make: Any, said: str) -> None:
    with pytest.raises(mlirules.MlirulesError) as caught:
        make()
    assert said in str(caught.value)


def test_targets_are_texts_wherever_one_is_taken() -> None:
    binary = mlirules.compile_module(PROGRAM, "cpu")
    (y, _) = mlirules.run(binary, [X], "cpu")
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-X)), rtol=1e-5)


# ---------------------------------------------------------------- rules in Python


def test_a_rule_of_a_function_and_of_a_dictionary() -> None:
    types = {"x": "vtensor<M x N x T>", "y": "vtensor<M x N x T>"}

    @mlirules.rule("y = torch.aten.sigmoid(x)", types=types)
    def sigmoid_to_tanh() -> str:
        """The reason."""
        return "y = torch.aten.tanh(x)"

    @mlirules.rule
    def whole() -> dict[str, Any]:
        """Another."""
        return {
            "match": "y = torch.aten.sigmoid(x)",
            "types": types,
            "rewrite": "y[m, n] = 0.5",
            "where": "T in [f32]",
        }

    assert sigmoid_to_tanh.name == "sigmoid-to-tanh"
    assert sigmoid_to_tanh.document["reason"] == "The reason."
    assert sigmoid_to_tanh.document["kind"] == "fusion"
    assert whole.document["kind"] == "conversion"
    assert mlirules.Session(rules=[whole]).apply(PROGRAM).applications == {"whole": 1}


def test_a_rule_needs_tests_as_a_file_alone(tmp_path: Path) -> None:
    made = tanh_rule()
    assert "tests" not in made.document
    assert "module" not in made.text
    session = mlirules.Session(rules=[made])
    assert session.apply(PROGRAM).applications["sigmoid-to-tanh"] == 1
    again = mlirules.Session(pipeline=session.pipeline)
    assert again.apply(PROGRAM).applications["sigmoid-to-tanh"] == 1
    # Such a text is no rule file, neither alone nor beside rules of Python's.
    file = tmp_path / "sigmoid-to-tanh.yaml"
    file.write_text(made.text)
    with pytest.raises(mlirules.MlirulesError, match=r"sigmoid-to-tanh\.yaml:1:1: .*'tests'"):
        mlirules.Session(rules=[file])
    other = replace(made, document={**made.document, "rule": "another"})
    with pytest.raises(mlirules.MlirulesError, match=r"sigmoid-to-tanh\.yaml:1:1: .*'tests'"):
        mlirules.Session(rules=[other, file])
    assert made.write(tmp_path) == file
    assert mlirules.Session(rules=[other, file]).apply(PROGRAM).applications["another"] == 1


def test_a_rule_that_nothing_is_known_to_refuse_is_not_written(tmp_path: Path) -> None:
    made = mlirules.rule(
        "y = torch.aten.sigmoid(x)",
        types={"x": "vtensor", "y": "vtensor"},
        rewrite="y = torch.aten.tanh(x)",
        name="sigmoid-to-tanh",
    )
    with pytest.raises(mlirules.MlirulesError, match="no test shows the rule refusing"):
        made.write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_rule_that_is_wrong_is_told_at_its_line() -> None:
    with pytest.raises(mlirules.MlirulesError, match=r"sgm\.yaml:\d+:\d+.*torch\.aten\.sigmod"):
        mlirules.rule("y = torch.aten.sigmod(x)", rewrite="y = torch.aten.tanh(x)", name="sgm")


def test_a_rule_is_written_with_tests_that_pass(tmp_path: Path) -> None:
    from mlirules.drivers.iree.compiler import op_oracle
    from mlirules.drivers.quality.ruletest import run_tests
    from mlirules.language.loader import load_rule

    made = mlirules.rule(
        "y = torch.aten.sigmoid(x)",
        types={"x": "vtensor<M x N x T>", "y": "vtensor<M x N x T>"},
        where="T in [f32, f64]",
        rewrite="y[m, n] = 1 / (1 + exp(-x[m, n]))",
    )
    rule = load_rule(made.write(tmp_path), ops=op_oracle)
    assert [test.because for test in rule.tests if test.unchanged] != []
    results = run_tests((rule, test) for test in rule.tests)
    assert [r.test.name for r in results if not r.passed] == []


# ---------------------------------------------------------------- the cache


def programs(folder: Path) -> list[Path]:
    return sorted(p for p in (folder / "programs").iterdir() if not p.name.startswith("."))


def test_a_damaged_entry_is_made_again(own_cache: Path) -> None:
    session = mlirules.Session()
    whole = session.compile(PROGRAM)
    assert not whole.facts.warm
    (entry,) = programs(own_cache)
    good = entry.read_bytes()
    for bad in (good[:-1], bytes(len(good))):
        entry.write_bytes(bad)
        assert not session.compile(PROGRAM).facts.warm
        assert cache.read_checked(entry) == cache.read_checked(entry) is not None
        assert session.compile(PROGRAM).facts.warm


@pytest.mark.slow
def test_what_a_program_depends_on_is_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path / "cache"))
    rule = tanh_rule()
    path = rule.write(tmp_path)
    sessions: list[dict[str, Any]] = [
        {},
        {"rules": [str(path)]},
        {"pipeline": "cpu"},
        {"flags": ["--iree-opt-level=O1"]},
        {"target": "cpu:x86-64-v3"},
    ]
    made = [mlirules.Session(**options).compile(PROGRAM).facts.warm for options in sessions]
    path.write_text(path.read_text().replace("torch.aten.tanh", "torch.aten.relu"))
    made.append(mlirules.Session(rules=[str(path)]).compile(PROGRAM).facts.warm)
    assert made == [False] * 6
    moved = tmp_path / "other" / path.name
    moved.parent.mkdir()
    shutil.copyfile(path, moved)
    assert mlirules.Session(rules=[str(moved)]).compile(PROGRAM).facts.warm
    monkeypatch.setattr(package, "VERSION", "0.0.0")
    assert not mlirules.Session().compile(PROGRAM).facts.warm


def test_without_a_cache_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
    key = "k"
    for _ in range(2):
        assert binaries.kept(key, lambda: (b"x", {}), use=False) == (b"x", {}, False)
    assert not (tmp_path / "programs").exists()


# ---------------------------------------------------------------- calling


def test_two_threads_call_and_compile() -> None:
    session = mlirules.Session()
    called = session.compile(PROGRAM)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        for _ in range(200):
            y, _ = called(x)
            if not np.allclose(y, 1 / (1 + np.exp(-x)), rtol=1e-4):
                wrong.append((x, y))
        if session.apply(PROGRAM).applications != {"torch-sigmoid-to-linalg": 1}:
            wrong.append("applications")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_constants_and_shared_results_are_the_callers_own() -> None:
    program = """func.func @main(%x: tensor<16xf32>)
    -> (tensor<16xf32>, tensor<16xf32>, tensor<16xf32>) {
  %c = arith.constant dense<2.0> : tensor<16xf32>
  %y = arith.addf %x, %x : tensor<16xf32>
  return %c, %y, %y : tensor<16xf32>, tensor<16xf32>, tensor<16xf32>
}
"""
    called = mlirules.Session().compile(program)
    x = np.ones(16, np.float32)
    c, y, z = called(x)
    c[:], y[:] = 5, 6
    assert (z == 2).all()
    assert (called(x)[0] == 2).all()


def test_arguments_that_do_not_fit_are_refused() -> None:
    called = mlirules.Session().compile(PROGRAM)
    with pytest.raises(mlirules.MlirulesError, match="takes 1 arguments, 2 given"):
        called(X, X)
    with pytest.raises(mlirules.MlirulesError, match=r"shape dimension|mismatch"):
        called(np.ones((3, 3), np.float32))


# ---------------------------------------------------------------- deploying


def test_an_exported_folder_runs_by_itself(tmp_path: Path) -> None:
    called = mlirules.Session().compile(PROGRAM)
    folder = called.export(tmp_path / "deployed")
    facts = json.loads((folder / "manifest.json").read_text())
    assert facts["arguments"] == [{"shape": [2, 3], "type": "f32", "numpy": "float32"}]
    assert facts["results"] == 2
    np.save(folder / "a0.npy", X)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "run.py", "a0.npy"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0.26894" in done.stdout
    with pytest.raises(mlirules.MlirulesError, match="is there already"):
        called.export(folder)
    source = os.environ.get("IREE_SOURCE_DIR")
    compiler = shutil.which("cc")
    if not source or compiler is None:
        pytest.skip("run.c was not compiled: set IREE_SOURCE_DIR to a checkout of IREE")
    checked = [
        compiler,
        "-Wall",
        "-Werror",
        "-c",
        "-o",
        str(tmp_path / "run.o"),
        "-DIREE_ALLOCATOR_SYSTEM_CTL=iree_allocator_libc_ctl",
        "-isystem",  # its own warnings are not of this file
        f"{source}/runtime/src",
        str(folder / "run.c"),
    ]
    subprocess.run(checked, check=True)


@pytest.mark.parametrize("budget", ["fast", "100"])
def test_a_search_wants_a_time(budget: str) -> None:
    with pytest.raises(mlirules.MlirulesError, match=r"write .*10m") as caught:
        mlirules.Session(tune=budget)
    assert caught.value.faults[0].span.path == "tune"


@pytest.mark.slow
def test_a_program_is_tuned_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
    session = mlirules.Session(tune="10s")
    made = session.compile(PROGRAM)
    (note,) = [n for n in made.facts.notes if n.startswith("tuned: ")]
    assert "as fast" in note or "is faster" in note
    assert list(tmp_path.glob("tuned/*/measured.sqlite"))
    assert session.compile(PROGRAM).facts.warm
    assert not mlirules.Session().compile(PROGRAM).facts.warm
    np.testing.assert_allclose(made(X)[0], 1 / (1 + np.exp(-X)), rtol=1e-5)
