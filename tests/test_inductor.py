"""Rules as patterns of Inductor: what is written, what is refused, and that both sides agree."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from mlirules import cli
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.generator.emit.inductor import FUNCTIONS, inductor
from mlirules.language.builtins import FUNCTIONS as BUILTIN
from mlirules.language.loader import load_rules

HERE = Path(__file__).parent

RULE = """rule: {name}
kind: fusion
summary: Recognise something.
reason: A test.
commutative: [torch.aten.mul.Tensor]
types:
  x: vtensor<... x T>
match:
  - s = torch.aten.sigmoid(x)
  - y = torch.aten.mul.Tensor(x, s)
where:
  - {where}
rewrite:
  - {rewrite}
tests:
  - name: applies
    input: |
      func.func @f(%a0: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {{
        return %a0 : !torch.vtensor<[2],f32>
      }}
    check: |
      CHECK: return
  - name: does not apply
    unchanged: |
      func.func @f(%a0: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {{
        return %a0 : !torch.vtensor<[2],f32>
      }}
"""


def _rule(
    folder: Path,
    name: str = "a-rule",
    where: str = "T in [f32, f64]",
    rewrite: str = "y = torch.aten.silu(x)",
) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(RULE.format(name=name, where=where, rewrite=rewrite))
    return file


def test_what_is_written_is_python_over_torch_alone() -> None:
    assert set(BUILTIN) >= FUNCTIONS
    for name, least in (("torch/fusions", 80), ("torch/unfuse", 3), ("torch/decompose", 55)):
        rules = rule_set((name,))
        text, said, faults = inductor(rules, origin=name)
        tree = compile(text, name, "exec", ast.PyCF_ONLY_AST)
        roots = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        froms = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        tables = [
            n.value
            for n in tree.body
            if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "_FUNCTIONS"
        ]
        assert isinstance(tables[0], ast.Dict)
        assert {k.value for k in tables[0].keys if isinstance(k, ast.Constant)} == FUNCTIONS
        assert roots <= {"contextlib", "math", "operator", "torch"}
        assert all(m == "typing" or str(m).startswith("torch.") for m in froms)
        assert len(said) >= least
        assert len(said) + len({f.span.path for f in faults}) >= len({r.path for r in rules})
        assert all(f.span.line and f.code == "not-in-inductor" for f in faults)
        assert inductor(rules, origin=name)[0] == text


@pytest.mark.parametrize(
    ("section", "text", "said"),
    [
        ("rewrite", "y[i] = 2 * x[i]", "an index equation is no call of a torch op"),
        ("rewrite", "y = torch.aten.mul.Tensor(s, x)", "a value inside the match"),
        ("where", "T == promoted(x, x)", "the module has no function promoted"),
    ],
)
def test_what_cannot_be_said_is_refused_at_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], section: str, text: str, said: str
) -> None:
    file = _rule(tmp_path, **{section: text})
    with pytest.raises(SystemExit) as exit_:
        cli.main(["generate", str(file), "--to", "inductor", "-o", str(tmp_path / "out")])
    assert exit_.value.code == 1
    shown = capsys.readouterr()
    shown_text = shown.out + shown.err
    row = 1 + next(i for i, line in enumerate(file.read_text().splitlines()) if text in line)
    assert f"{file}:{row}:" in shown_text
    assert said in shown_text
    assert "nothing could be said in inductor" in shown_text


def test_no_text_of_a_rule_is_code(tmp_path: Path) -> None:
    file = _rule(tmp_path, rewrite="y = torch.aten.gelu(x, \"') or open('x')\")")
    hostile = file.read_text().replace(
        "summary: Recognise something.", 'summary: "A\\nimport os\\""'
    )
    file.write_text(hostile.replace("s = torch", "lambda = torch").replace("(x, s)", "(x, lambda)"))
    text, said, faults = inductor(load_rules([file]), origin='"""\nimport os\n')
    assert said == ["a-rule"]
    assert not faults
    tree = ast.parse(text)
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    assert "') or open('x')" in strings
    assert not any(isinstance(n, ast.Name) and n.id in ("os", "open") for n in ast.walk(tree))


# ---- with PyTorch --------------------------------------------------------------------------------


def _models() -> Any:
    pytest.importorskip("torch")
    if "inductor_models" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "inductor_models", HERE / "inductor_models.py"
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["inductor_models"] = module
        spec.loader.exec_module(module)
    return sys.modules["inductor_models"]


def test_conditions_types_and_orders_hold(tmp_path: Path) -> None:
    models = _models()
    import torch

    made = models.module_of(
        load_rules([_rule(tmp_path, where="one_use(s)\n  - T == f32")]), tmp_path
    )

    def count(function: Any, x: torch.Tensor) -> int:
        program = models.exported(models.Function(function), (x,), False)
        applied: dict[str, int] = made.apply(program.graph_module)
        torch.testing.assert_close(program.module()(x), function(x))
        return applied.get("a-rule", 0)

    def used_twice(x: torch.Tensor) -> Any:
        s = torch.sigmoid(x)
        return x * s, s

    x = torch.randn(3, 4)
    assert count(lambda x: x * torch.sigmoid(x), x) == 1
    assert count(lambda x: torch.sigmoid(x) * x, x) == 1
    assert count(lambda x: torch.sigmoid(x) * x, x.double()) == 0
    assert count(lambda x: x * torch.sigmoid(x + 1), x) == 0
    assert count(used_twice, x) == 0
    with pytest.raises(ValueError, match="no such rule here: other"):
        made.apply(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), ["other"])


@pytest.mark.slow
def test_models_have_the_same_applications_on_both_sides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every rule alone, on every model, as exported and as core ATen; results equal eager's."""
    assert _models().main() == 0
    shown = capsys.readouterr().out
    assert shown.count("core ATen:") >= 12


@pytest.mark.slow
def test_torch_compile_takes_what_was_rewritten(tmp_path: Path) -> None:
    models = _models()
    import torch

    made = models.module_of(load_rules([_rule(tmp_path)]), tmp_path)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * x + 1

    x = torch.randn(8, 8)
    program = models.exported(models.Function(function), (x,), False)
    assert made.apply(program.graph_module) == {"a-rule": 1}
    torch.testing.assert_close(torch.compile(program.module())(x), function(x))
