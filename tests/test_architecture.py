"""The house: arrows point one way, nothing goes round in a circle, no module is too long."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import cli

from sources import modules

ROOT = Path(__file__).parents[1]
#: More lines than this are two modules.
LONGEST = 700
#: A function with more parameters takes a dataclass.
MOST_PARAMETERS = 6
#: Those that have more, beside the commands themselves, whose parameters are the options of the
#: command line: keywords that users of the library write.
OPEN = (
    "api/rules.py:rule",
    "api/session.py:Session.__init__",
)
#: What parameters are called that are things of the compiler's, which `src/typings` has types for.
OF_THE_COMPILER = frozenset(
    ["op", "_op", "value", "type_", "block", "region", "module", "attribute", "context"]
)
#: Those that may be anything, and why.
ANYTHING = {
    "drivers/apply/walk.py": "the walk's loop, which is not typed yet",
    "drivers/discover/numeric.py:_Writer.index": "a number, or one written by indices",
    "drivers/match/comparing.py:_same_number": "a number of a rule",
    "drivers/prove/scalars.py:const": "a number of Python's or an exact one",
    "drivers/prove/symbols.py:Symbols.do_bound": "a number, or one written by sizes",
    "drivers/quality/torch_reference.py:array": "a tensor of PyTorch's, where that is installed",
    "src/mlirules/api/graphs/programs.py:_giver.give": "what the runtime gives",
}


def _files() -> dict[str, Path]:
    """The modules of the package, by their paths in it, and those of the benchmarks."""
    benchmarks = (ROOT / "benchmarks").rglob("*.py")
    return modules() | {file.relative_to(ROOT).as_posix(): file for file in benchmarks}


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


def _functions(source: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a module, with their names and those of what they stand in."""
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while waiting:
        within, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            name = within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{within}.{child.name}".lstrip(".")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, child
            waiting.append((name, child))


def _parameters(source: str) -> dict[str, int]:
    """How many parameters each function of a module has, by its name with its class's."""
    found = {}
    for name, function in _functions(source):
        a = function.args
        names = [one.arg for one in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        names += [one.arg for one in (a.vararg, a.kwarg) if one is not None]
        found[name] = len(names) - (names[:1] in (["self"], ["cls"]))
    return found


def _untyped(source: str) -> Iterator[str]:
    """Functions with a bare `Any` for a thing of the compiler's: one taken, or what they give."""
    for name, function in _functions(source):
        a = function.args
        said = {one.arg: one.annotation for one in (*a.posonlyargs, *a.args, *a.kwonlyargs)}
        # What is made by a function that is called `attribute` in a module that has `ir`.
        if re.search(r"\bir\.", source):
            said.setdefault(function.name, function.returns)
        if any(
            one in OF_THE_COMPILER and type_ is not None and ast.unparse(type_) == "Any"
            for one, type_ in said.items()
        ):
            yield name


def test_bare_any_is_found() -> None:
    text = "class A:\n def f(self, op: Any): ...\n def attribute(self) -> Any: ir.x\n"
    text += "def g(op: ir.Operation, other: Any, *, value: list[Any]) -> Any: ...\n"
    assert sorted(_untyped(text)) == ["A.attribute", "A.f"]


def test_things_of_the_compiler_have_types() -> None:
    """`Any` hides what is done with an op, a value, a type: they say so, or the list says why."""
    found = {
        f"{file.relative_to(ROOT)}:{name}"
        for folder in ("drivers", "generator", "src/mlirules")
        for file in (ROOT / folder).rglob("*.py")
        if not any(part.is_symlink() for part in file.parents)
        for name in _untyped(file.read_text(encoding="utf-8"))
    }
    told = {name for name in found if name in ANYTHING or name.partition(":")[0] in ANYTHING}
    assert sorted(found - told) == []


def test_parameters_are_counted() -> None:
    text = "class A:\n def f(self, a, /, b, *c, d=1, **e):\n  async def g(x): ...\n"
    assert _parameters(text) == {"A.f": 5, "A.f.g": 1}


def test_no_function_takes_too_much() -> None:
    """What belongs together is given together, as a dataclass that says what it is."""
    found = {
        f"{place}:{name}": count
        for place, file in _files().items()
        for name, count in _parameters(file.read_text(encoding="utf-8")).items()
        if count > MOST_PARAMETERS and not (file.parent.name == "commands" and name == "command")
    }
    assert sorted(found) == sorted(OPEN)


def test_processes_are_run_by_one_module() -> None:
    """What is started elsewhere is not ended with what started it."""
    begun = r"\bPopen\(|^(?:import|from) (?:multiprocessing|concurrent\.futures)"
    found = {
        str(file.relative_to(ROOT))
        for folder in ("drivers", "generator", "src/mlirules", "benchmarks", "examples")
        for file in (ROOT / folder).rglob("*.py")
        if not any(part.is_symlink() for part in file.parents)
        and re.search(begun, file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {"src/mlirules/support/children.py"}


def _markup(source: str) -> list[int]:
    """The lines of a module's texts that close a tag."""
    texts = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    return [n.lineno for n in texts if isinstance(n.value, str) and re.search("</[a-z]", n.value)]


def test_markup_is_found() -> None:
    assert _markup('a = 1\nb = f"<p>{a}</p>"\nc = "a < b / c"\n') == [2]


def test_pages_are_templates() -> None:
    """What escapes is `support.pages`, and not each line of Python that shows a name."""
    found = {
        str(file.relative_to(ROOT)): lines
        for folder in ("drivers", "generator", "src/mlirules", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
        if not any(part.is_symlink() for part in file.parents)
        and (lines := _markup(file.read_text(encoding="utf-8")))
    }
    assert not found


def test_no_module_is_too_long() -> None:
    sizes = {
        place: len(file.read_text(encoding="utf-8").splitlines())
        for place, file in _files().items()
    }
    assert len(sizes) > 200
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}
