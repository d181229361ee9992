"""The notebook of the tour runs: every cell, in order, as far as what is installed allows."""

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).resolve().parents[1] / "examples" / "tour.ipynb"


def run(source: str, space: dict[str, Any]) -> Any:
    """A cell; the value of its last expression, which a notebook would show."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(TOUR), "exec"), space)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), str(TOUR), "eval"), space)


@pytest.mark.slow
def test_every_cell_runs(capsys: Any) -> None:
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)  # they would grow old
    space: dict[str, Any] = {"__name__": "tour"}
    shown: list[str] = []
    for cell in cells:
        source = "".join(cell["source"])
        if source.startswith("import torch") and importlib.util.find_spec("torch") is None:
            break
        value = run(source, space)
        if hasattr(value, "_repr_html_"):
            shown.append(value._repr_html_())
    assert "torch-sigmoid-to-linalg" in shown[0]
    assert "T in [f64]" in capsys.readouterr().out
    assert "my-sigmoid.yaml" in shown[1]
    if "torch" in space:
        assert "torch-addmm-to-linalg" in shown[2]
        assert "aten.rand_like.default runs eagerly" in shown[3] or "aten.rand" in shown[3]
