"""Structural differences: what must not count, and single edits found as what they are."""

import json
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import served
from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.irdiff import folders, page
from mlirules.drivers.irdiff.changes import Change, Kind, compare
from mlirules.drivers.irdiff.provenance import Provenance
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.pipelines.transform import Run, rule_set, transform
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline
from mlirules.language.rulefiles import LIBRARY, holds_config, rule_files
from mlirules.language.stage import Stage

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
T = "!torch.vtensor<[4,4],f32>"


# ---------------------------------------------------------------- programs


def torch_program(seed: int, size: int = 30) -> str:
    """A random program of torch ops on 4x4 tensors, every value of which is used."""
    rng = random.Random(seed)
    lines, values, used = [], ["%x", "%y"], set[str]()
    for n in range(size):
        a, b = values[-1], rng.choice(values[-6:])
        kind = rng.choice(["relu", "sigmoid", "mm", "add", "transpose"])
        used |= {a, b} if kind in ("mm", "add") else {a}
        if kind == "mm":
            lines.append(f"%v{n} = torch.aten.mm {a}, {b} : {T}, {T} -> {T}")
        elif kind == "add":
            lines.append(f"%c{n} = torch.constant.int {rng.randint(1, 3)}")
            lines.append(
                f"%v{n} = torch.aten.add.Tensor {a}, {b}, %c{n} : {T}, {T}, !torch.int -> {T}"
            )
        elif kind == "transpose":
            lines.append(f"%c{n} = torch.constant.int 0")
            lines.append(f"%d{n} = torch.constant.int 1")
            lines.append(
                f"%v{n} = torch.aten.transpose.int {a}, %c{n}, %d{n} : {T}, !torch.int, !torch.int"
                f" -> {T}"
            )
        else:
            lines.append(f"%v{n} = torch.aten.{kind} {a} : {T} -> {T}")
        values.append(f"%v{n}")
    body = "\n  ".join(lines)
    return (
        f"func.func @main(%x: {T}, %y: {T}) -> {T} {{\n  {body}\n  return {values[-1]} : {T}\n}}\n"
    )


LOOPS = """
#id = affine_map<(d0) -> (d0)>
util.global private mutable @state = 1.0 : f32
func.func @work(%m: memref<8xf32>, %n: index, %f: i1, %t: tensor<8xf32>) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %two = arith.constant 2.0 : f32
  scf.for %i = %c0 to %n step %c1 {
    %three = arith.constant 3.0 : f32
    %a = memref.load %m[%i] : memref<8xf32>
    %b = arith.mulf %a, %two : f32
    %c = arith.addf %b, %three : f32
    memref.store %c, %m[%i] : memref<8xf32>
  }
  %r = scf.if %f -> f32 {
    %p = arith.negf %two : f32
    scf.yield %p : f32
  } else {
    %q = math.exp %two : f32
    scf.yield %q : f32
  }
  memref.store %r, %m[%c0] : memref<8xf32>
  memref.store %two, %m[%c1] : memref<8xf32>
  %e = tensor.empty() : tensor<8xf32>
  %g = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%t : tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %s = arith.mulf %in, %r : f32
    %u = arith.addf %s, %in : f32
    linalg.yield %u : f32
  } -> tensor<8xf32>
  return %g : tensor<8xf32>
}
func.func @branches(%f: i1, %x: f32) -> f32 {
  cf.cond_br %f, ^one(%x : f32), ^two
^one(%a: f32):
  %b = arith.negf %a : f32
  cf.br ^end(%b : f32)
^two:
  %c = arith.addf %x, %x : f32
  cf.br ^end(%c : f32)
^end(%d: f32):
  return %d : f32
}
"""


def sources() -> Iterator[tuple[str, str]]:
    """Programs of many kinds: examples, the inputs of rules' tests, what rules make of them."""
    yield "loops", LOOPS
    for seed in range(3):
        yield f"random {seed}", torch_program(seed)
    for name in ("hello_nn_world.mlir", "toy_model.aten.mlir"):
        yield name, read_program(EXAMPLES / name)
    text = read_program(EXAMPLES / "toy_model.mlir")
    yield "toy_model, rewritten", transform(text, "cpu").text


FILES = [file for file in rule_files(LIBRARY) if not holds_config(file)]


def library_programs() -> Iterator[tuple[str, str]]:
    for rule in rule_set((str(LIBRARY),)):
        for test in rule.tests:
            if test.input is not None:
                yield f"{rule.name}: {test.name}", test.input


# ---------------------------------------------------------------- what must not count


_PURE = (
    "torch.aten.",
    "torch.constant.",
    "torch.prim.List",
    "arith.",
    "math.",
    "tensor.",
    "linalg.",
    "torch_c.",
    "torch.vtensor",
)


def reordered(module: ir.Module, rng: random.Random) -> None:
    """Put pure ops in another order that their uses allow; the others keep theirs."""

    def visit(op: ir.Operation) -> None:
        for region in op.regions:
            for block in region.blocks:
                operations = [o.operation for o in block.operations]
                for inner in operations:
                    visit(inner)
                if len(operations) > 2 and op.name != "builtin.module":
                    shuffle(operations)

    def shuffle(operations: list[ir.Operation]) -> None:
        last = operations[-1]
        waiting = operations[:-1]
        inside = {o: n for n, o in enumerate(operations)}
        needs = {o: {inside[d] for d in definers(o) if d in inside} for o in waiting}
        fixed = [o for o in waiting if not (o.name.startswith(_PURE) and len(o.results))]
        done: set[int] = set()
        while waiting:
            ready = [o for o in waiting if needs[o] <= done and (o not in fixed or o == fixed[0])]
            chosen = rng.choice(ready)
            waiting.remove(chosen)
            if chosen in fixed:
                fixed.remove(chosen)
            done.add(inside[chosen])
            chosen.move_before(last)

    def definers(op: ir.Operation) -> set[ir.Operation]:
        found = set()
        for value in op.operands:
            owner = value.owner
            if not isinstance(owner, ir.Block):
                found.add(owner.operation)
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    found |= definers(inner.operation)
        return found

    visit(module.operation)


def disguised(text: str, seed: int) -> str:
    """The same program: other names, other order, other aliases, locations."""
    rng = random.Random(seed)
    module = compiler.parse(text)
    reordered(module, rng)
    printed = module.operation.get_asm(
        enable_debug_info=rng.random() < 0.5,
        print_generic_op_form=rng.random() < 0.3,
        # Resources are printed outside of any op: they would be lost.
        use_local_scope=rng.random() < 0.3 and "dense_resource" not in text,
    )
    program, mark, resources = str(printed).partition("\n{-#")
    names = sorted(set(re.findall(r"%[A-Za-z_]\w*|%\d+", program)))
    order = list(range(len(names)))
    rng.shuffle(order)
    renamed = {name: f"%w{k}_" for name, k in zip(names, order, strict=True)}
    program = re.sub(r"%[A-Za-z_]\w*|%\d+", lambda m: renamed[m[0]], program)
    types = sorted(set(re.findall(r"!torch\.vtensor<\[[\d,?]*\],\w+>", program)))
    aliases = [t for t in types if rng.random() < 0.5]
    for n, type_ in enumerate(aliases):
        program = program.replace(type_, f"!alias{n}")
    head = "".join(f"!alias{n} = {type_}\n" for n, type_ in enumerate(aliases))
    return head + program + mark + resources


def _same(name: str, text: str, seed: int) -> None:
    other = disguised(text, seed)
    assert other != text
    changes = [f"{c.kind}: {c.summary()} {c.details}" for c in compare(text, other).changes]
    assert changes == [], f"{name}, seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_names_order_aliases_and_locations_do_not_count(seed: int) -> None:
    for name, text in sources():
        _same(name, text, seed)


@pytest.mark.slow
def test_disguised_programs_of_the_library_do_not_differ() -> None:
    for n, file in enumerate(FILES[::25]):
        for rule in rule_set((str(file),)):
            for test in rule.tests:
                if test.input is not None:
                    _same(f"{rule.name}: {test.name}", test.input, n)


@pytest.mark.slow
def test_no_disguised_program_of_the_library_differs() -> None:
    count = 0
    for n, (name, text) in enumerate(library_programs()):
        _same(name, text, n)
        count += 1
    assert count > 500


def test_a_renamed_function_keeps_its_callers() -> None:
    before = """
    func.func private @f(%x: f32) -> f32 { %y = math.exp %x : f32  return %y : f32 }
    func.func @g(%x: f32) -> f32 { %y = func.call @f(%x) : (f32) -> f32  return %y : f32 }
    """
    (change,) = compare(before, before.replace("@f", "@other")).changes
    assert (change.kind, change.details) == (Kind.ATTRIBUTE, [("sym_name", "@f", "@other")])


# ---------------------------------------------------------------- single edits

Edit = Callable[[ir.Module, random.Random], str]
"""Edits a module in place; returns the name of the op that the change is about."""


def _body(module: ir.Module) -> list[ir.Operation]:
    return [o.operation for o in module.body.operations[0].regions[0].blocks[0].operations]


def _aten(module: ir.Module) -> list[ir.Operation]:
    return [o for o in _body(module) if o.name.startswith("torch.aten.")]


def _unary(module: ir.Module, rng: random.Random) -> ir.Operation:
    names = ("torch.aten.relu", "torch.aten.sigmoid")
    return rng.choice([op for op in _aten(module) if op.name in names])


def _is_tensor(value: ir.Value) -> bool:
    return str(value.type) == T


def _make(name: str, operands: list[ir.Value], at: ir.Operation) -> ir.Value:
    made = ir.Operation.create(
        name,
        results=[ir.Type.parse(T, at.context)],
        operands=operands,
        ip=ir.InsertionPoint(at),
        loc=ir.Location.unknown(at.context),
    )
    return made.result


def _replace(old: ir.Value, new: ir.Value) -> None:
    old.replace_all_uses_with(new)


def delete(module: ir.Module, rng: random.Random) -> str:
    op = _unary(module, rng)
    name = op.name
    _replace(op.result, op.operands[0])
    op.erase()
    return name


def insert(module: ir.Module, rng: random.Random) -> str:
    op = rng.choice(_aten(module))
    op.operands[0] = _make("torch.aten.tanh", [op.operands[0]], op)
    return "torch.aten.tanh"


def change_attribute(module: ir.Module, rng: random.Random) -> str:
    op = rng.choice([o for o in _body(module) if o.name == "torch.constant.int"])
    value = ir.IntegerAttr(op.attributes["value"])
    op.attributes["value"] = ir.IntegerAttr.get(value.type, value.value + 7)
    return "torch.constant.int"


def retype(module: ir.Module, rng: random.Random) -> str:
    last = _body(module)[-1]
    ops = [o for o in _aten(module) if o.result != last.operands[0]]
    op = rng.choice(ops)
    op.result.set_type(ir.Type.parse("!torch.vtensor<[?,4],f32>", op.context))
    return op.name


def rewire(module: ir.Module, rng: random.Random) -> str:
    ops = _body(module)
    op = rng.choice([o for o in _aten(module)[6:] if len(list(o.operands)) > 1])
    at = ops.index(op)
    choices = [
        value
        for o in ops[:at]
        for value in o.results
        if _is_tensor(value) and value != op.operands[0] and len(list(value.uses))
    ]
    # The value must keep a user: what nobody reads any more would be another edit's business.
    assert choices
    op.operands[0] = rng.choice(choices)
    return op.name


def replace(module: ir.Module, rng: random.Random) -> str:
    op = _unary(module, rng)
    _replace(op.result, _make("torch.aten.erf", [op.operands[0]], op))
    op.erase()
    return "torch.aten.erf"


def one_to_many(module: ir.Module, rng: random.Random) -> str:
    op = _unary(module, rng)
    name = op.name
    inner = _make("torch.aten.erf", [op.operands[0]], op)
    _replace(op.result, _make("torch.aten.cos", [inner], op))
    op.erase()
    return name


def _edited(text: str, edit: Edit, seed: int) -> tuple[str, str]:
    module = compiler.parse(text)
    name = edit(module, random.Random(seed))
    assert module.operation.verify()
    return str(module), name


def _only(before: str, after: str) -> Change:
    changes = compare(before, after).changes
    roots = [c for c in changes if not c.follows]
    assert len(roots) == 1, [f"{c.kind}: {c.summary()} {c.details}" for c in changes]
    assert len(changes) == 1, [f"{c.kind}: {c.summary()} {c.details}" for c in changes]
    return roots[0]


EDITS = [
    (insert, Kind.INSERTED),
    (delete, Kind.DELETED),
    (change_attribute, Kind.ATTRIBUTE),
    (retype, Kind.RETYPED),
    (rewire, Kind.REWIRED),
    (replace, Kind.REPLACED),
    (one_to_many, Kind.ONE_TO_MANY),
]


@pytest.mark.parametrize(("edit", "kind"), EDITS, ids=[e.__name__ for e, _ in EDITS])
@pytest.mark.parametrize("seed", range(5))
def test_a_single_edit_is_found_as_what_it_is(edit: Edit, kind: Kind, seed: int) -> None:
    text = torch_program(100 + seed)
    after, name = _edited(text, edit, seed)
    # Found whatever else was done to the program that does not count.
    change = _only(text, disguised(after, seed))
    assert change.kind == kind
    assert name in {op.name for op in (*change.before, *change.after)}


@pytest.mark.parametrize("seed", range(5))
def test_many_to_one(seed: int) -> None:
    text = torch_program(200 + seed)
    after, _ = _edited(text, one_to_many, seed)
    change = _only(after, disguised(text, seed))
    assert change.kind == Kind.MANY_TO_ONE
    assert [op.name for op in change.before] == ["torch.aten.erf", "torch.aten.cos"]
    assert len(change.after) == 1


def _swap(text: str, one: str, other: str) -> str:
    lines = text.split("\n")
    i, j = (next(n for n, line in enumerate(lines) if part in line) for part in (one, other))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


MOVES = [
    ("stores swapped", _swap(LOOPS, "store %r", "store %two"), "memref.store"),
    (
        "constant hoisted",
        LOOPS.replace("    %three = arith.constant 3.0 : f32\n", "").replace(
            "  scf.for", "  %three = arith.constant 3.0 : f32\n  scf.for"
        ),
        "arith.constant",
    ),
    (
        "out of a branch",
        LOOPS.replace("    %q = math.exp %two : f32\n", "").replace(
            "  %r = scf.if", "  %q = math.exp %two : f32\n  %r = scf.if"
        ),
        "math.exp",
    ),
]


@pytest.mark.parametrize(("text", "name"), [m[1:] for m in MOVES], ids=[m[0] for m in MOVES])
def test_moves(text: str, name: str) -> None:
    change = _only(LOOPS, disguised(text, 1))
    assert change.kind == Kind.MOVED
    assert [op.name for op in change.before] == [name]


SMALL = [
    ("body of a generic", ("arith.mulf %in, %r", "arith.divf %in, %r"), Kind.REPLACED),
    ("order of operands", ("arith.mulf %in, %r", "arith.mulf %r, %in"), Kind.REWIRED),
    ("constant in a loop", ("3.0 : f32", "4.0 : f32"), Kind.ATTRIBUTE),
    ("map", ("#id, #id]", "#id, affine_map<(d0) -> (7 - d0)>]"), Kind.ATTRIBUTE),
    ("blocks", ("^one(%x : f32), ^two", "^two, ^one(%x : f32)"), Kind.ATTRIBUTE),
    ("global", ("@state = 1.0", "@state = 2.0"), Kind.ATTRIBUTE),
    ("argument of a function", ("@branches(%f: i1", "@branches(%n: i32, %f: i1"), Kind.RETYPED),
]


@pytest.mark.parametrize(("change", "kind"), [s[1:] for s in SMALL], ids=[s[0] for s in SMALL])
def test_small_changes_in_regions(change: tuple[str, str], kind: Kind) -> None:
    text = LOOPS.replace(*change)
    assert text != LOOPS
    found = compare(LOOPS, text).changes
    assert [c.kind for c in found] == [kind], [(c.kind, c.summary(), c.details) for c in found]


def test_a_type_that_follows_is_told_apart() -> None:
    before = "func.func @f(%x: f32) -> f32 { %y = math.exp %x : f32  return %y : f32 }"
    found = compare(before, before.replace("f32", "f64")).changes
    assert [(c.before[0].name, str(c.kind), c.follows) for c in found] == [
        ("func.func", "retyped", False),
        ("math.exp", "retyped", True),
    ]


def test_duplicates_merged_and_split() -> None:
    twice = """func.func @f(%x: f32) -> f32 {
      %a = math.exp %x : f32
      %b = math.exp %x : f32
      %c = arith.mulf %a, %b : f32
      return %c : f32
    }"""
    once = re.sub(r"\s*%b = .*", "", twice).replace("%a, %b", "%a, %a")
    assert _only(twice, once).kind == Kind.MANY_TO_ONE
    assert _only(once, twice).kind == Kind.ONE_TO_MANY


def test_weights_count_and_their_names_do_not() -> None:
    program = """func.func @f() -> tensor<2xf32> {{
      %c = arith.constant dense_resource<{0}> : tensor<2xf32>
      return %c : tensor<2xf32>
    }}
    {{-# dialect_resources: {{ builtin: {{ {0}: "0x04000000{1}" }} }} #-}}"""
    one = program.format("a", "0000803F0000803F")
    assert not compare(one, program.format("b", "0000803F0000803F")).changes
    assert _only(one, program.format("a", "0000803F00000040")).kind == Kind.ATTRIBUTE


# ---------------------------------------------------------------- tied to rules


def _rewritten(name: str) -> tuple[str, str, Provenance]:
    text = read_program(EXAMPLES / name)
    done = transform(text, "cpu", path=name, run=Run(record=True))
    return text, done.text, Provenance.of(vars(a) for a in done.outcome.applications)


@pytest.mark.parametrize("name", ["hello_nn_world.mlir", "toy_model.mlir", "toy_model.aten.mlir"])
def test_every_change_of_apply_is_tied_to_its_rule(name: str) -> None:
    text, after, provenance = _rewritten(name)
    found = compare(text, after, provenance=provenance)
    assert all(change.rules for change in found.changes)
    told = {n for change in found.changes for n in change.applications}
    assert told == set(provenance.applications)
    for change in found.changes:  # the op that the rule starts at is among those it took
        roots = {provenance.applications[n]["op"] for n in change.applications}
        assert roots <= {op.name for op in change.before} | {op.name for op in change.after}


def test_an_op_that_a_rule_writes_anew_is_its_change(tmp_path: Path) -> None:
    tensor = "!torch.vtensor<[2,3],f32>"
    rule = tmp_path / "my-other.yaml"
    rule.write_text(
        "rule: my-other\nkind: fusion\nsummary: Another name.\nreason: It changes an attribute.\n"
        "match: ['y = torch.operator(x) {name = \"my.one\"}']\n"
        "rewrite: ['y = torch.operator(x) {name = \"my.other\"}']\n"
        "tests:\n  - {name: positive, input: 'module {}', check: 'CHECK: module'}\n"
        "  - {name: negative, unchanged: 'module {}'}\n"
    )
    called = f'torch.operator "my.one"(%x) : ({tensor}) -> {tensor}'
    text = (
        f"func.func @f(%x: {tensor}) -> {tensor} {{\n  %y = {called}\n  return %y : {tensor}\n}}\n"
    )
    stage = Stage(phase="torch", rules=[str(rule)])
    line = Pipeline(pipeline="one", summary="One rule.", targets=["cpu"], stages=[stage])
    done = transform(text, line, run=Run(record=True))
    provenance = Provenance.of(vars(a) for a in done.outcome.applications)
    found = compare(text, done.text, provenance=provenance)
    assert found.changes
    assert all(change.rules == ["my-other"] for change in found.changes)


def test_a_trace_of_other_programs_is_refused(tmp_path: Path) -> None:
    _, _, provenance = _rewritten("toy_model.mlir")
    small = "func.func @f() { return }"
    with pytest.raises(MlirulesError, match="made from other programs"):
        compare(small, small, provenance=provenance)
    (tmp_path / "t").write_text("{}\n")
    with pytest.raises(MlirulesError, match=r"t:1:1: error\[trace\]"):
        Provenance.load(tmp_path / "t")


# ---------------------------------------------------------------- command line, git, folders


def _run(*arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [*served.command(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_exit_codes_and_json(tmp_path: Path) -> None:
    a, b, bad = (tmp_path / n for n in ("a.mlir", "b.mlir", "bad.mlir"))
    a.write_text(torch_program(1))
    b.write_text(_edited(torch_program(1), insert, 1)[0])
    bad.write_text("func.func @f( {")
    assert _run("diff", a, a).returncode == 0
    done = _run("diff", a, b, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["counts"] == {"inserted": 1}
    assert report["changes"][0]["after"][0]["op"] == "torch.aten.tanh"
    done = _run("diff", a, bad)
    assert (done.returncode, "bad.mlir:1:" in done.stderr) == (2, True)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_diff_driver_and_difftool(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    tool = f"{shlex.join(served.command())} diff"
    git("init", "-q")
    git("config", "diff.mlir.command", f"{tool} --git-driver")
    git("config", "difftool.mlirules.cmd", f'{tool} "$LOCAL" "$REMOTE"')
    (tmp_path / ".gitattributes").write_text("*.mlir diff=mlir\n")
    file = tmp_path / "model.mlir"
    text = torch_program(3)
    file.write_text(text)
    git("add", "-A")
    git("commit", "-qm", "one")
    file.write_text(disguised(text, 5))
    assert "no difference" in git("diff")
    file.write_text(_edited(text, insert, 2)[0])
    (tmp_path / "new.mlir").write_text("func.func @f() { return }")
    git("add", "-N", "new.mlir")
    said = git("diff")
    assert "diff --mlirules a/model.mlir b/model.mlir" in said
    assert "1 changes: 1 inserted" in said
    assert "+   func.func @f" in said
    assert "torch.aten.tanh" in git("difftool", "--no-prompt", "--tool=mlirules", "model.mlir")
    file.write_text("no program")  # compared as text, and git goes on
    assert "+no program" in git("diff", "--", "model.mlir")


@pytest.mark.slow
def test_differences_of_differences(tmp_path: Path) -> None:
    base, a, b = (tmp_path / n for n in ("base", "a", "b"))
    for folder in (base, a, b):
        folder.mkdir()
    for n in range(3):
        text = torch_program(n)
        (base / f"p{n}.mlir").write_text(text)
        (a / f"p{n}.mlir").write_text(_edited(text, replace, n)[0])
        edited = _edited(text, replace, n)[0]
        (b / f"p{n}.mlir").write_text(_edited(edited, insert, n)[0] if n else edited)
    report = folders.compare_folders(a, b, base)
    assert [p.status for p in report.programs] == ["same", "differs", "differs"]
    ((signature, lost, gained, names),) = report.signatures()
    assert (signature, lost, gained) == ("inserted: torch.aten.tanh", 0, 2)
    assert names == ["p1.mlir", "p2.mlir"]
    done = _run("diff", "--of-diffs", a, b, "--base", base)
    assert (done.returncode, "3 programs, 2 differ" in done.stdout) == (1, True)
    assert _run("diff", "--of-diffs", a, a, "--base", base).returncode == 0


@pytest.mark.slow
def test_ten_thousand_ops() -> None:
    text = torch_program(1, 7000)
    after, _ = _edited(text, replace, 3)
    found = compare(text, after)
    assert len(found.before.ops) > 10_000
    assert [c.kind for c in found.changes] == [Kind.REPLACED]


# ---------------------------------------------------------------- the page


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium is installed")


def _dom(path: Path, state: str, script: str = "") -> str:
    """The page's DOM after its scripts and ``script`` have run."""
    if script:
        text = path.read_text().replace("</body>", f"<script>{script}</script></body>")
        path = path.with_name("driven.html")
        path.write_text(text)
    command = [
        _chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        f"--user-data-dir={path.parent / 'profile'}",
        f"{path.as_uri()}{state}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_in_chromium(tmp_path: Path) -> None:
    text, after, provenance = _rewritten("toy_model.mlir")
    file = tmp_path / "diff.html"
    page.write(file, compare(text, after, provenance=provenance), title="toy")
    source = file.read_text()
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//|@import|url\(", source)
    plain = _dom(file, "")
    assert plain.count('class="tag"') == 7
    # The search, the theme and the filters are what the address says.
    found = _dom(file, "#?q=linalg.matmul&theme=dark&kind=deleted")
    assert 'data-theme="dark"' in found
    assert re.search(r'id="hits"[^>]*>1 of \d+ lines', found)
    assert len(re.findall(r'class="tag hidden"', found)) == 6
    # And by hand: unified, unfolded, next change, the theme's button.
    driven = _dom(
        file,
        "",
        "document.getElementById('view').click(); document.getElementById('unfold').click();"
        "document.getElementById('next').click(); document.getElementById('theme').click();",
    )
    assert 'id="diff" class="u"' in driven
    assert '<details class="fold">' not in driven
    assert 'class="tag at"' in driven
    assert 'data-theme="' in driven


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    before = 'func.func @f() attributes {x = "<script>alert(1)</script>"} { return }'
    after = before.replace("alert(1)", "alert(2)")
    page.write(tmp_path / "d.html", compare(before, after), title="<script>")
    assert "<script>alert" not in (tmp_path / "d.html").read_text()
