"""Ops of any name (`y = Op(x)`), ops for every item of a list (`ys[i] = op(xs[i])`), and packs."""

from __future__ import annotations

from typing import Any

import pytest

from mlirules.drivers.apply import alternatives
from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed, shared_context
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.traversal import ops_below
from mlirules.generator.emit import inductor, standalone
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.loader import load_rule

TENSOR = "!torch.vtensor<[4,8],f32>"


def rule(match: str, where: str, rewrite: str, types: str = "") -> Any:
    """A rule of these lines; its tests are never run."""
    text = (
        "rule: mine\nkind: fusion\nsummary: For a test.\nreason: For a test.\n"
        + (f"types: {{{types}}}\n" if types else "")
        + "match:\n"
        + "".join(f"  - '{line}'\n" for line in match.split("; "))
        + ("where:\n" if where else "")
        + "".join(f"  - '{line}'\n" for line in where.split("; ") if line)
        + "rewrite:\n"
        + "".join(f"  - '{line}'\n" for line in rewrite.split("; "))
        + "tests:\n  - {name: applies, input: 'module {}', check: 'CHECK: module'}\n"
        + "  - {name: refuses, unchanged: 'module {}'}\n"
    )
    return load_rule("mine.yaml", text, ops=compiler.op_oracle)


def faults(match: str, where: str, rewrite: str, types: str = "") -> list[Fault]:
    with pytest.raises(MlirulesError) as told:
        rule(match, where, rewrite, types)
    return told.value.faults


def function(*lines: str, result: str = "%y") -> str:
    """A program over %x, %a and %b, all of one type; `:` stands for the types of a unary op."""
    types = f" : {TENSOR} -> {TENSOR}"
    body = "\n".join(line.removesuffix(" :") + types * line.endswith(" :") for line in lines)
    arguments = f"%x: {TENSOR}, %a: {TENSOR}, %b: {TENSOR}"
    return f"func.func @f({arguments}) -> {TENSOR} {{\n{body}\nreturn {result} : {TENSOR}\n}}"


def cat(*parts: str, size: int) -> str:
    """Lines that join parts."""
    kinds = ", ".join([TENSOR] * len(parts))
    joined = f"!torch.vtensor<[{size},8],f32>"
    return (
        (
            "%0 = torch.constant.int 0\n"
            f"%l = torch.prim.ListConstruct {', '.join(parts)} ({kinds}) -> !torch.list<vtensor>\n"
            f"%c = torch.aten.cat %l, %0 : !torch.list<vtensor>, !torch.int -> {joined}\n"
            f"return %c {joined}\n}}"
        )
        .replace(" (", " : (", 1)
        .replace("return %c ", "return %c : ")
    )


def joining(*lines: str, parts: tuple[str, ...]) -> str:
    size = 4 * len(parts)
    head = (
        function(*lines)
        .partition("return")[0]
        .replace(f"-> {TENSOR} {{", f"-> !torch.vtensor<[{size},8],f32> {{", 1)
    )
    return head + cat(*parts, size=size)


def applied(made: Any, program: str) -> tuple[int, list[str]]:
    """How often a rule applies, and the torch ops of the result that are no constants."""
    module = parsed(program)
    count = Engine([made], shared_context()).run(module, Options(driver="greedy")).total
    names = [op.name for op in ops_below(module.operation)]
    return count, [n.removeprefix("torch.aten.") for n in names if n.startswith("torch.aten.")]


def refused(made: Any, program: str, root: str) -> tuple[str, str]:
    """The line that refuses at the one op of that name, and what it says."""
    module = parsed(program)
    (op,) = (op for op in ops_below(module.operation) if op.name == root)
    refusal = Engine([made], shared_context()).explain(made, op)
    assert refusal is not None
    return str(refusal.line), refusal.message


NEG = ("t = torch.aten.neg(x); y = Op(t)", "Op in [torch.aten.relu, torch.aten.abs]; one_use(t)")


def test_an_op_of_a_set_is_made_again_with_another_operand() -> None:
    made = rule(*NEG, "u = Op(x); y = torch.aten.neg(u)")
    assert made.root_ops == ("torch.aten.relu", "torch.aten.abs")
    for name in ("relu", "abs"):
        program = function("%t = torch.aten.neg %x :", f"%y = torch.aten.{name} %t :")
        assert applied(made, program) == (1, [name, "neg"])
    program = function("%t = torch.aten.neg %x :", "%y = torch.aten.exp %t :")
    assert applied(made, program) == (0, ["neg", "exp"])
    assert refused(made, program, "torch.aten.exp") == (
        "Op in [torch.aten.relu, torch.aten.abs]",
        'Op is "torch.aten.exp", not one of ["torch.aten.relu", "torch.aten.abs"]',
    )


def test_attributes_go_with_the_op() -> None:
    made = rule(
        "t = torch.aten.neg(x); y = Op(t)",
        "Op in [torch.operator]",
        "u = Op(x); y = torch.aten.neg(u)",
        "u: 'vtensor<M x N x T>', x: 'vtensor<M x N x T>'".replace("'", '"'),
    )
    module = parsed(
        function(
            "%t = torch.aten.neg %x :",
            f'%y = torch.operator "torch.mine.twice"(%t) : ({TENSOR}) -> {TENSOR}',
        )
    )
    assert Engine([made], shared_context()).run(module, Options(driver="greedy")).total == 1
    assert 'torch.operator "torch.mine.twice"(%arg0)' in str(module)


def test_any_op_with_one_use() -> None:
    made = rule(
        "t = Op(rest...); u = torch.aten.neg(t); y = torch.aten.neg(u)", "one_use(t)", "y = t"
    )
    twice = ("%u = torch.aten.neg %t :", "%y = torch.aten.neg %u :")
    for name in ("exp", "relu"):
        program = function(f"%t = torch.aten.{name} %x :", *twice)
        assert applied(made, program) == (1, [name])
    binary = f": {TENSOR}, {TENSOR} -> {TENSOR}"
    elsewhere = f"%v = torch.aten.mul.Tensor %y, %t {binary}"
    program = function("%t = torch.aten.exp %x :", *twice, elsewhere, result="%v")
    assert applied(made, program) == (0, ["exp", "neg", "neg", "mul.Tensor"])
    assert applied(made, function(*(line.replace("%t", "%x") for line in twice)))[0] == 0


def test_one_variable_stands_for_one_op() -> None:
    made = rule("a = Op(x); y = Op(a)", "Op in [torch.aten.relu, torch.aten.abs]", "y = a")
    for first, second, count in (("relu", "relu", 1), ("abs", "relu", 0)):
        program = function(f"%t = torch.aten.{first} %x :", f"%y = torch.aten.{second} %t :")
        assert applied(made, program)[0] == count


PARTS = ("%p = torch.aten.relu %a :", "%q = torch.aten.relu %b :", "%r = torch.aten.abs %x :")
MAPPED = "ys[i] = torch.aten.relu(xs[i]); c = torch.aten.cat([ys...], d)"
JOINED = "j = torch.aten.cat([xs...], d); c = torch.aten.relu(j)"


def test_an_op_for_every_item() -> None:
    made = rule(MAPPED, "one_use(ys)", JOINED)
    assert applied(made, joining(*PARTS, parts=("%p", "%q"))) == (1, ["abs", "cat", "relu"])
    program = joining(*PARTS, parts=("%p", "%r"))
    assert applied(made, program)[0] == 0
    assert refused(made, program, "torch.aten.cat") == (
        "ys[i] = torch.aten.relu(xs[i])",
        "ys[1] is the result of torch.aten.abs, not of torch.aten.relu",
    )
    program = joining(*PARTS, parts=("%p", "%p"))
    assert refused(made, program, "torch.aten.cat") == (
        "one_use(ys)",
        "ys[0] has 2 uses: torch.prim.ListConstruct, torch.prim.ListConstruct",
    )


def test_an_op_for_every_item_reads_other_items_and_values() -> None:
    made = rule(
        "t = torch.aten.neg(x); ys[i] = torch.aten.mul.Tensor(xs[i], t); "
        "zs[i] = torch.aten.relu(ys[i]); c = torch.aten.cat([zs...], d)",
        "len(xs) == 2",
        "us[i] = torch.aten.add.Tensor(xs[i], t, 1); c = torch.aten.cat([us...], d)",
    )
    binary = f": {TENSOR}, {TENSOR} -> {TENSOR}"
    lines = (
        "%t = torch.aten.neg %x :",
        f"%p = torch.aten.mul.Tensor %a, %t {binary}",
        f"%q = torch.aten.mul.Tensor %b, %t {binary}",
        f"%o = torch.aten.mul.Tensor %b, %x {binary}",
        "%r = torch.aten.relu %p :",
        "%s = torch.aten.relu %q :",
        "%w = torch.aten.relu %o :",
    )
    count, names = applied(made, joining(*lines, parts=("%r", "%s")))
    assert (count, names[-3:]) == (1, ["add.Tensor", "add.Tensor", "cat"])
    # One of them reads something else than t.
    assert refused(made, joining(*lines, parts=("%r", "%w")), "torch.aten.cat") == (
        "t = torch.aten.neg(x)",
        "t is an argument, not the result of torch.aten.neg",
    )


def test_an_item_between_others_is_bound_by_a_line() -> None:
    made = rule(
        "q = torch.aten.relu(x); c = torch.aten.cat([before..., q, after...], d)",
        "len(before) > 0",
        "c = torch.aten.cat([before..., x, after...], d)",
    )
    # The first relu stands where the condition refuses: the next one is tried.
    program = joining(*PARTS, parts=("%p", "%a", "%q", "%b"))
    module = parsed(program)
    assert Engine([made], shared_context()).run(module, Options(driver="greedy")).total == 1
    assert "ListConstruct %0, %arg1, %arg2, %arg2" in str(module)
    assert refused(made, joining(*PARTS, parts=("%a", "%r")), "torch.aten.cat") == (
        "q = torch.aten.relu(x)",
        "q is an argument, not the result of torch.aten.relu",
    )


@pytest.mark.parametrize(
    ("match", "where", "rewrite", "place", "message"),
    [
        ("y = Op(x)", "", "y = x", "6:10", "the root may be any op: Op"),
        ("t = Op(x); y = torch.aten.neg(t)", "", "y = Op(x)", "9:10", "Op may be any op, and"),
        (NEG[0], "Op in [torch.aten.rellu]", "y = Op(x)", "9:13", "no op 'torch.aten.rellu'"),
        (NEG[0], 'Op in ["torch.aten.rellu"]', "y = Op(x)", "9:14", "no op 'torch.aten.rellu'"),
        ("y = foo(x)", "", "y = x", "6:6", "a match is an op equation or"),
        (
            "ys[i] = torch.aten.relu(x); c = torch.aten.cat([ys...], d)",
            "",
            "c = x",
            "6:6",
            "no operand of this op is an item of a list",
        ),
        (
            "ys[i] = torch.aten.relu(xs[j]); c = torch.aten.cat([ys...], d)",
            "",
            "c = xs",
            "6:30",
            "xs[j] is an item of a list, and 'j' no index here",
        ),
        ("ys[i] = torch.aten.relu(xs[i])", "", "ys = xs", "6:6", "the root stands for one op"),
        (
            "ys[i] += torch.aten.relu(xs[i])",
            "",
            "ys = xs",
            "6:6",
            "torch.aten.relu stands for the items of a list: one index, =, and no range",
        ),
        (
            MAPPED,
            "",
            "us[k] = torch.aten.abs(d); c = torch.aten.cat([us...], d)",
            "9:6",
            "no operand of this op is an item of a list",
        ),
    ],
)
def test_faults_have_their_place(
    match: str, where: str, rewrite: str, place: str, message: str
) -> None:
    found = [(f"{f.span.line}:{f.span.column}", f.message) for f in faults(match, where, rewrite)]
    assert any(at == place and message in said for at, said in found), found


def test_lists_that_differ_in_length() -> None:
    made = rule(
        "a = torch.aten.cat([xs...], d); b = torch.aten.cat([zs...], d); "
        "y = torch.aten.mul.Tensor(a, b)",
        "",
        "ys[i] = torch.aten.add.Tensor(xs[i], zs[i], 1); y = torch.aten.cat([ys...], d)",
    )
    wide = "!torch.vtensor<[8,8],f32>"
    parts = f"({TENSOR}, {TENSOR}) -> !torch.list<vtensor>"
    module = (
        f"func.func @f(%x: {TENSOR}, %w: {wide}) -> {wide} {{\n"
        "%0 = torch.constant.int 0\n"
        f"%l = torch.prim.ListConstruct %x, %x : {parts}\n"
        f"%m = torch.prim.ListConstruct %w : ({wide}) -> !torch.list<vtensor>\n"
        f"%a = torch.aten.cat %l, %0 : !torch.list<vtensor>, !torch.int -> {wide}\n"
        f"%b = torch.aten.cat %m, %0 : !torch.list<vtensor>, !torch.int -> {wide}\n"
        f"%y = torch.aten.mul.Tensor %a, %b : {wide}, {wide} -> {wide}\n"
        f"return %y : {wide}\n}}"
    )
    assert refused(made, module, "torch.aten.mul.Tensor") == (
        "ys[i] = torch.aten.add.Tensor(xs[i], zs[i], 1)",
        "the lists differ in length: xs has 2 items, zs has 1 items",
    )


def test_forms_that_cannot_say_it_name_the_line() -> None:
    made = rule(MAPPED, "", JOINED)
    why = "an op for every item of a list"
    with pytest.raises(MlirulesError, match=why) as told:
        standalone.standalone_pdll(made)
    assert told.value.faults[0].span.line == 6
    _, written, faults_ = inductor.inductor([made], origin="a test")
    assert not written
    assert [(f.span.line, why in f.message) for f in faults_] == [(6, True)]
    assert alternatives.unsuitable(made) is not None
    assert alternatives.unsuitable(rule(*NEG, "u = Op(x); y = torch.aten.neg(u)")) is None
