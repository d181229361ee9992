"""The house: arrows point one way, nothing goes round in a circle, no module is too long."""

import functools
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import cli

ROOT = Path(__file__).parents[1]
#: More lines than this are two modules.
LONGEST = 700


@functools.cache
def _graph() -> Any:
    return grimp.build_graph("mlirules", cache_dir=None)


def _circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """What is left when everything that imports none of what is left has gone."""
    left = {module: set(found) & set(edges) for module, found in edges.items()}
    while free := {m for m, found in left.items() if not found}:
        left = {m: found - free for m, found in left.items() if m not in free}
    return [sorted(left)] if left else []


def test_the_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(ROOT)
    failed = cli.lint_imports(cache_dir=None, no_cache=True)
    said = capsys.readouterr().out
    assert not failed, said
    assert "0 broken" in said


def test_modules_form_no_circle() -> None:
    graph = _graph()
    edges = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    assert not _circles(edges)


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "e"}, "c": {"a"}, "e": set[str](), "d": {"e"}}
    assert _circles(edges) == [["a", "b", "c"]]
    assert not _circles({"a": {"b"}, "b": set[str]()})


def test_no_module_is_too_long() -> None:
    # The links are not followed twice: `drivers` and `generator` are met where they lie.
    folders = [ROOT / name for name in ("src", "drivers", "generator", "benchmarks")]
    sizes = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for file in folder.rglob("*.py")
        if not any(part.is_symlink() for part in file.parents)
    }
    assert len(sizes) > 200
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}
