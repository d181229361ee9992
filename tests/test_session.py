"""Nothing is kept from one program to the next but what a session says, and that is right."""

import ast
import contextvars
import gc
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Bounded, Session, current
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.match import matcher as matching
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Match, Refusal
from mlirules.drivers.measure.together import Calls
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.insert import with_rules
from mlirules.drivers.pipelines.transform import Recipe, Run, program_at, transform
from mlirules.drivers.quality.check import check_rule
from mlirules.language.faults import MlirulesError
from mlirules.language.library import Contents
from mlirules.language.loader import load_rule
from mlirules.language.pipeline import default_for
from mlirules.language.stage import Stage
from sources import modules

RULE = """\
rule: {name}
kind: fusion
summary: A rule of a test.
reason: It shows what a session keeps.
types: {{x: 'vtensor<M x N x T>', y: 'vtensor<M x N x T>'}}
match: ['y = torch.aten.{op}(x)']
rewrite: ['{rewrite}']
tests:
  - name: positive
    input: "module {{}}"
    check: "CHECK: module"
  - name: negative
    unchanged: "module {{}}"
"""


def text_of(name: str, op: str, rewrite: str) -> str:
    return RULE.format(name=name, op=op, rewrite=rewrite)


def rule(name: str, op: str, rewrite: str) -> Any:
    return load_rule(f"{name}.yaml", text_of(name, op, rewrite), ops=compiler.op_oracle)


def program(op: str, kind: str = "f32") -> str:
    type_ = f"!torch.vtensor<[4,4],{kind}>"
    return (
        f"func.func @main(%x: {type_}) -> {type_} {{\n"
        f"  %y = torch.aten.{op} %x : {type_} -> {type_}\n  return %y : {type_}\n}}\n"
    )


#: It says f64, and is let in for every element type.
WRONG = ("wrong", "relu", "y[i, j] = cast(x[i, j], f64)")


@pytest.mark.parametrize("driver", ["greedy", "walk", "conversion"])
def test_a_good_program_after_a_bad_one(driver: Any) -> None:
    with Session() as session:
        engine = session.engine_for([rule(*WRONG)])
        for _ in range(2):
            with pytest.raises(MlirulesError, match="wrong"):
                engine.run(compiler.parse(program("relu"), "p", session.context), Options(driver))
            good = compiler.parse(program("relu", "f64"), "p", session.context)
            assert engine.run(good, Options(driver)).total == 1
            other = compiler.parse(program("tanh"), "p", session.context)
            assert engine.run(other, Options(driver)).total == 0


def test_a_match_a_refusal_and_a_fault() -> None:
    context = compiler.context()
    matcher = Matcher(rule(*WRONG), context)
    found = []
    modules = [compiler.parse(program("relu", kind), "p", context) for kind in ("f64", "f32")]
    modules.append(compiler.parse(program("tanh"), "p", context))
    for module in modules:
        op = module.body.operations[0].regions[0].blocks[0].operations[0].operation
        found.append(matcher.match(op))
    match, fault, refusal = found
    assert isinstance(match, Match)
    assert isinstance(fault, Refusal)
    assert fault.error is not None
    assert isinstance(refusal, Refusal)
    assert refusal.error is None
    assert "torch.aten.tanh" in refusal.message


def test_a_rule_file_that_is_edited_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "edited.yaml"
    stage = Stage(phase="torch", rules=[str(file)], driver="greedy")
    for new in ("tanh", "sigmoid", "exp2"):
        file.write_text(text_of("edited", "relu", f"y = torch.aten.{new}(x)"), encoding="utf-8")
        assert f"torch.aten.{new}" in transform(program("relu"), [stage]).text


def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "edited.yaml"
    stage = Stage(phase="torch", rules=[str(file)], driver="greedy")
    for new in ("tanh", "sqrt"):
        file.write_text(text_of("edited", "relu", f"y = torch.aten.{new}(x)"), encoding="utf-8")
        os.utime(file, ns=(1, 1))
        assert f"torch.aten.{new}" in transform(program("relu"), [stage]).text


def test_a_file_that_was_settled_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "rule.yaml"
    file.write_text("one", encoding="utf-8")
    contents = Contents()
    fresh = contents.of(str(file))
    assert contents.of(str(file)) is not fresh  # a second change could bear the same time
    held = replace(fresh, settled=True)
    contents._held[str(file)] = held
    assert contents.of(str(file)) is held
    file.write_text("two", encoding="utf-8")
    assert contents.of(str(file)).raw == b"two"


def test_a_rule_that_was_changed_in_memory_is_another_rule() -> None:
    first = rule("changed", "relu", "y = torch.aten.tanh(x)")
    changed = replace(first, rewrite=rule("changed", "relu", "y = torch.aten.exp2(x)").rewrite)
    with Session() as session:
        for given, op in ((first, "tanh"), (changed, "exp2"), (first, "tanh")):
            module = compiler.parse(program("relu"), "<program>", session.context)
            session.engine_for([given]).run(module, Options(driver="greedy"))
            assert f"torch.aten.{op}" in str(module)
        assert session.engine_for([first]) is session.engine_for([first])


@pytest.mark.parametrize("driver", ["greedy", "walk", "conversion"])
def test_runs_nest(driver: Any) -> None:
    """The inner run is over when the outer one goes on, with its own limits and counts."""
    with Session() as session:
        engine = session.engine_for([rule("turn", "relu", "y = torch.aten.tanh(x)")])
        outer = Engine([rule("outer", "exp", "y = torch.aten.exp2(x)")], session.context)
        inner_totals = []

        def accept(_match: Match, _around: Any) -> bool:
            inner = compiler.parse(program("relu"), "inner", session.context)
            inner_totals.append(engine.run(inner, Options(driver)).total)
            # The engine that is running runs within itself, too.
            again = compiler.parse(program("exp"), "again", session.context)
            inner_totals.append(outer.run(again, Options(driver)).total)
            return True

        text = program("exp").replace(
            "  return %y",
            "  %z = torch.aten.exp %y : !torch.vtensor<[4,4],f32> -> !torch.vtensor<[4,4],f32>\n"
            "  return %z",
        )
        module = compiler.parse(text, "outer", session.context)
        done = outer.run(module, Options("greedy", accept=accept))
        assert done.total == 2
        assert inner_totals == [1, 1, 1, 1]
        assert str(module).count("torch.aten.exp2") == 2


def test_two_sessions_in_two_threads_give_the_results_of_one(tmp_path: Path) -> None:
    files = []
    for name in ("tanh", "sigmoid"):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(text_of(name, "relu", f"y = torch.aten.{name}(x)"), encoding="utf-8")

    def work(file: Path, out: list[str]) -> None:
        with Session():
            for _ in range(20):
                stage = Stage(phase="torch", rules=[str(file)], driver="greedy")
                out.append(transform(program("relu"), [stage]).text)

    alone: list[list[str]] = [[], []]
    for file, out in zip(files, alone, strict=True):
        work(file, out)
    together: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=work, args=given) for given in zip(files, together, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert "torch.aten.tanh" in alone[0][0]
    assert "torch.aten.sigmoid" in alone[1][0]


def test_a_thread_has_a_session_of_its_own() -> None:
    found: list[Session] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(current()))
        thread.start()
        thread.join()
    assert found[0] is not found[1]
    assert current() is current()
    with Session() as session:
        assert current() is session
    assert current() is not session


def test_a_session_that_is_given_is_the_only_one(tmp_path: Path) -> None:
    """What compiles, rewrites and weighs asks for no session of the thread's own."""
    session = Session()
    target = Target("cpu")
    cutting = Stage(phase="torch", rules=["torch/to-linalg"], driver="conversion")
    file = tmp_path / "twice.yaml"
    file.write_text(text_of("twice", "relu", "y = torch.aten.tanh(x)"), encoding="utf-8")
    weighed = Stage(phase="torch", rules=[str(file)], driver="cost")

    def work() -> str:
        recipe = Recipe(program("relu"), target, default_for("cpu"), session=session)
        recipe.compile()
        program_at(recipe, "flow")
        transform(
            program("relu"), [weighed, cutting], costs=cost.Settings(target), run=Run(session)
        )
        calls = Calls(target, session)
        result = calls.result(calls.add(program("relu"), [np.ones((4, 4), np.float32)]))
        assert isinstance(result, list)
        with_rules(default_for("cpu"), [str(file)], target, session)
        return " ".join(variable.name for variable in contextvars.copy_context())

    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(contextvars.Context().run(work)))
    thread.start()
    thread.join()
    assert len(told) == 1
    assert "session" not in told[0].split()
    assert len(session._engines)


#: Where a driver may ask which session the thread is in, other than for a default.
ASKING = (
    "drivers/apply/programs.py",
    "drivers/quality/mutation.py",
    "drivers/quality/studio.py",
)


def test_drivers_are_given_their_session() -> None:
    """`current()` stands for a session that was not given, and for nothing else."""
    asking = set()
    files = {place: file for place, file in modules().items() if place.startswith("drivers/")}
    assert len(files) > 100
    for place, file in files.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("mlirules.drivers.apply")
            for alias in node.names
        }
        defaults = {
            id(node.values[-1])
            for node in ast.walk(tree)
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                named = node.func.id
                if named in imported & {"current", "shared_context"} and id(node) not in defaults:
                    asking.add(place)
    assert sorted(asking) == sorted(ASKING)


def test_sessions_come_and_go() -> None:
    """A pattern set that outlived its context would end the process."""
    for _ in range(5):
        session = Session()
        engine = session.engine_for([rule("turn", "relu", "y = torch.aten.tanh(x)")])
        module = compiler.parse(program("relu"), "p", session.context)
        assert engine.run(module, Options()).total == 1
        cycle: list[Any] = [session, engine]
        cycle.append(cycle)
        del session, engine, module, cycle
        gc.collect()


def _contexts() -> int:
    gc.collect()
    counted: Any = compiler.ir.Context
    count: int = counted._get_live_count()
    return count


@pytest.mark.parametrize("driver", ["greedy", "walk", "conversion"])
def test_a_session_takes_its_context_along(driver: Any) -> None:
    """Nothing that outlives it holds types, attributes or ops of its programs."""
    before = _contexts()
    for _ in range(2):
        session = Session()
        engine = session.engine_for([rule("turn", "relu", "y = torch.aten.tanh(x)")])
        module = compiler.parse(program("relu"), "p", session.context)
        assert engine.run(module, Options(driver)).total == 1
        faults = check_rule("turn.yaml", text_of("turn", "relu", "y = torch.aten.tanh(x)"), session)
        assert faults
        assert _contexts() == before + 1
        del session, engine, module, faults
    assert _contexts() == before


def test_a_text_that_is_compiled_goes_with_its_context() -> None:
    before = _contexts()
    found = compiler._program(program("relu"))
    assert found is not None
    assert _contexts() == before + 1
    del found
    assert _contexts() == before


def test_what_matchers_decide_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a matcher keeps, also what the compiler was asked for the types of a rewrite."""
    monkeypatch.setattr(matching, "MAX_DECIDED", 0)
    text = RULE.format(name="two", op="relu", rewrite="a = torch.aten.tanh(x)")
    text = text.replace("tanh(x)']", "tanh(x)', 'y = torch.aten.exp(a)']")
    context = compiler.context()
    engine = Engine([load_rule("two.yaml", text, ops=compiler.op_oracle)], context)
    (matcher,) = engine.matchers.values()
    kept = matcher.judging.inference.known, matcher.judging.cache, matcher.fast
    for type_ in ("f32", "f64"):
        module = compiler.parse(program("relu", type_), "p", context)
        assert engine.run(module, Options("walk")).total == 1
        assert [len(cache) for cache in kept] == [1, 1, 1]


def test_what_is_kept_is_bounded() -> None:
    kept: Bounded[int, str] = Bounded(2)
    for n in range(3):
        kept.put(n, str(n))
        kept.get(0)
    assert len(kept) == 2
    assert kept.get(0) == "0"
    assert kept.get(1) is None


# ---------------------------------------------------------------- no state in modules

_CHANGES = {
    "add",
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setdefault",
    "update",
}


def _module_names(tree: ast.Module) -> set[str]:
    """Names of a module, with what it imports of others of ours."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlirules"):
            names |= {alias.asname or alias.name for alias in node.names}
        else:
            names |= _stored(node)
    return names


def _stored(node: ast.AST) -> set[str]:
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _held_by(node: ast.expr) -> str:
    """The name that a chain like ``name.part[0].other`` starts from, or nothing."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _state(tree: ast.Module) -> list[tuple[int, str]]:
    """Lines of a module that keep something in it, and how."""
    names = _module_names(tree)
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = [*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs]
        own = {a.arg for a in arguments} | _stored(function)
        own -= {name for n in ast.walk(function) if isinstance(n, ast.Global) for name in n.names}
        kept = names - own
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                found.append((node.lineno, f"global {', '.join(node.names)}"))
            target: ast.expr | None = None
            if isinstance(node, (ast.Subscript, ast.Attribute)):
                target = node if isinstance(node.ctx, (ast.Store, ast.Del)) else None
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value if node.func.attr in _CHANGES else None
            if target is not None and _held_by(target) in kept:
                found.append((node.lineno, f"{_held_by(target)} is changed"))
        for decorator in function.decorator_list:
            spelt = ast.unparse(decorator)
            unbounded = spelt in ("functools.cache", "cache") or "maxsize=None" in spelt
            if unbounded and any(a.annotation is None or not _few(a.annotation) for a in arguments):
                found.append((decorator.lineno, f"{function.name}: a cache without a bound"))
            by_ir = any("ir." in ast.unparse(a.annotation) for a in arguments if a.annotation)
            if by_ir and "cache" in spelt and "property" not in spelt:
                found.append((decorator.lineno, f"{function.name}: a cache that holds contexts"))
    return found


def _few(annotation: ast.expr) -> bool:
    """Whether few values have a type: then a cache by them needs no bound."""
    return ast.unparse(annotation) in ("bool", "Kind", "Literal")


def test_no_module_keeps_state() -> None:
    files = modules()
    assert len(files) > 200
    found = [
        f"{place}:{line}: {what}"
        for place, file in sorted(files.items())
        for line, what in _state(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_the_search_for_state_finds_it() -> None:
    text = """
from mlirules.drivers import other
kept = []
count = 0
one, two = threading.local(), {}
@functools.cache
def f(x: str):
    global count
    kept.append(x)
    count += 1
def g():
    kept = {}
    kept["own"] = 1
    one.runner = two["known"] = two["more"].last = 1
    two["more"].pop()
    del two["known"]
    g.calls = other.count = 1
    for one.last in kept:
        pass
@functools.lru_cache(maxsize=8)
def h(x: ir.Context):
    x.y = 1
"""
    assert sorted({what for _, what in _state(ast.parse(text))}) == [
        "f: a cache without a bound",
        "g is changed",
        "global count",
        "h: a cache that holds contexts",
        "kept is changed",
        "one is changed",
        "other is changed",
        "two is changed",
    ]
    found = Counter(what for _, what in _state(ast.parse(text)))
    assert (found["one is changed"], found["two is changed"]) == (2, 4)
