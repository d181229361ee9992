"""What a rule leaves open is told by `check`: dims exchanged, tests that show nothing, no turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirules.cli import main
from mlirules.drivers.iree import compiler
from mlirules.drivers.quality.check import check_rule
from mlirules.drivers.quality.remarks import left_open, untrue
from mlirules.language.faults import Fault
from mlirules.language.loader import load_rule, load_rules
from mlirules.language.rulefiles import LIBRARY, holds_config, rule_files

RULE = """\
rule: my-mm
kind: conversion
summary: A product.
reason: It shows what check tells.
types: {{a: vtensor<M x K x T>, b: vtensor<K x N x T>, c: vtensor<M x N x T>}}
match: [{match}]
where: [{where}]
rewrite: ['{rewrite}']
tests:
  - name: positive
    input: |
      func.func @main(%a: !torch.vtensor<[{m},{k}],f32>, %b: !torch.vtensor<[{k},{n}],f32>) -> !torch.vtensor<[{m},{n}],f32> {{
        %c = torch.aten.mm %a, %b : !torch.vtensor<[{m},{k}],f32>, !torch.vtensor<[{k},{n}],f32> -> !torch.vtensor<[{m},{n}],f32>
        return %c : !torch.vtensor<[{m},{n}],f32>
      }}
    {run}
  - name: negative
    unchanged: |
      func.func @main(%a: !torch.vtensor<[2,3],f64>, %b: !torch.vtensor<[3,4],f64>) -> !torch.vtensor<[2,4],f64> {{
        %c = torch.aten.mm %a, %b : !torch.vtensor<[2,3],f64>, !torch.vtensor<[3,4],f64> -> !torch.vtensor<[2,4],f64>
        return %c : !torch.vtensor<[2,4],f64>
      }}
    because: T == f32
"""  # noqa: E501 - the programs' lines


def text(
    rewrite: str = "c[m, n] += a[m, k] * b[k, n]",
    sizes: tuple[int, int, int] = (2, 3, 4),
    where: str = "T == f32",
    run: str = "run: {devices: [cpu]}",
    match: str = "'c = torch.aten.mm(a, b)'",
) -> str:
    m, n, k = sizes
    return RULE.format(rewrite=rewrite, where=where, run=run, match=match, m=m, n=n, k=k)


def told(faults: list[Fault]) -> list[tuple[str, int, int]]:
    return [(f.code, f.span.line, f.span.column) for f in faults]


def test_a_transposed_operand() -> None:
    wrong = "c[m, n] += a[m, k] * b[n, k]"
    faults = check_rule("my-mm.yaml", text(wrong, (4, 4, 4)))
    assert told(faults) == [("unequal-sizes", 8, 35), ("unequal-sizes", 8, 38)]
    assert faults[0].message == (
        "n runs over N in c and over K in b: that fits only where N and K are equal"
    )
    assert "`N == K` in `where:`" in faults[0].suggestion
    assert check_rule("my-mm.yaml", text(wrong, where="T == f32, N == K")) == []
    assert check_rule("my-mm.yaml", text()) == []


@pytest.mark.parametrize(
    ("rewrite", "fine"),
    [
        ("c[m, n] += a[m, k] * b[k, n] for k < K", True),
        ("c[m, n] = a[m, n]", False),
        ("c[m, n] = a[m, n] for n < min(N, K)", True),
        ("c[m, n] = a[m, n + 1]", True),
    ],
)
def test_what_bounds_say(rewrite: str, fine: bool) -> None:
    assert bool(check_rule("my-mm.yaml", text(rewrite))) != fine


def test_sizes_that_coincide_in_all_tests() -> None:
    (found,) = left_open(load_rule("my-mm.yaml", text(sizes=(4, 4, 2)), ops=compiler.op_oracle))
    assert (found.code, found.severity, found.span.line) == ("sizes-coincide", "note", 5)
    assert found.message.startswith("M and N of c are equal in every test (4)")
    assert not list(left_open(load_rule("my-mm.yaml", text(), ops=compiler.op_oracle)))


def test_tests_that_compare_no_numbers() -> None:
    rule = load_rule("my-mm.yaml", text(run="check: 'CHECK: linalg'"), ops=compiler.op_oracle)
    (found,) = left_open(rule)
    assert (found.code, found.severity, found.span.line) == ("no-numbers", "note", 9)


BITS = """\
rule: my-low-half
kind: conversion
summary: The low half of a byte.
reason: It shows what check tells.
types: {q: vtensor<N x ui8>, y: vtensor<N x ui8>}
match: ['y = torch.aten.__and__.Scalar(q, 15)']
rewrite: ['y[n] = bitand(q[n], 15)']
tests:
  - name: positive
    input: |
      func.func @main(%q: !torch.vtensor<[5],ui8>) -> !torch.vtensor<[5],ui8> {
        %m = torch.constant.int 15
        %y = torch.aten.__and__.Scalar %q, %m : !torch.vtensor<[5],ui8>, !torch.int -> !torch.vtensor<[5],ui8>
        return %y : !torch.vtensor<[5],ui8>
      }
    run: {devices: [cpu]}
"""  # noqa: E501 - the program's line


def test_bits_of_which_tests_set_the_lowest_alone() -> None:
    negative = "  - {name: negative, unchanged: 'module {}'}\n"
    (found,) = left_open(load_rule("b.yaml", BITS + negative, ops=compiler.op_oracle))
    assert (found.code, found.severity, found.span.line) == ("low-bits", "note", 16)
    assert found.message == (
        "my-low-half computes with bits, and its tests draw whole numbers up to 2: none sets a "
        "higher bit"
    )
    wide = BITS.replace("[cpu]", "[cpu], high: 255.0")
    assert not list(left_open(load_rule("b.yaml", wide + negative, ops=compiler.op_oracle)))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("ui8(bitxor(i1(q[n]), q[n] > 3))", False),
        ("ui8(bitand(bitor(i1(q[n]), not i1(q[n])), q[n] == 1 or q[n] == 2))", False),
        ("ui8(bitxor(i1(q[n]), i1(bitand(q[n], 8))))", True),
        ("shr(q[n], 1)", True),
    ],
)
def test_truth_values_have_one_bit(expression: str, told: bool) -> None:
    negative = "  - {name: negative, unchanged: 'module {}'}\n"
    text = BITS.replace("torch.aten.__and__.Scalar(q, 15)", "torch.aten.relu(q)")
    text = text.replace("bitand(q[n], 15)", expression)
    found = list(left_open(load_rule("b.yaml", text + negative, ops=compiler.op_oracle)))
    assert [f.code for f in found] == ["low-bits"] * told


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(a) for a in arguments])
    return int(done.value.code or 0)


FUSION = """\
rule: my-linear-relu
kind: fusion
summary: A layer and its relu.
reason: It wants what a shipped rule takes first, from another root.
types: {x: vtensor<M x K x T>, w: vtensor<N x K x T>, b: vtensor<N x T>, y: vtensor<M x N x T>}
match:
  - t = torch.aten.t(w)
  - y = torch.aten.addmm(b, x, t, 1, 1)
where: [T == f32]
rewrite:
  - y = torch.aten.linear(x, w, b)
tests:
  - name: positive
    input: |
      func.func @main(%x: !torch.vtensor<[2,3],f32>, %w: !torch.vtensor<[4,3],f32>, %b: !torch.vtensor<[4],f32>) -> !torch.vtensor<[2,4],f32> {
        %i = torch.constant.int 1
        %t = torch.aten.t %w : !torch.vtensor<[4,3],f32> -> !torch.vtensor<[3,4],f32>
        %y = torch.aten.addmm %b, %x, %t, %i, %i : !torch.vtensor<[4],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[3,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,4],f32>
        return %y : !torch.vtensor<[2,4],f32>
      }
    check: 'CHECK: func.func'
  - name: negative
    unchanged: |
      func.func @main(%x: !torch.vtensor<[2,3],f64>, %w: !torch.vtensor<[4,3],f64>, %b: !torch.vtensor<[4],f64>) -> !torch.vtensor<[2,4],f64> {
        %i = torch.constant.int 1
        %t = torch.aten.t %w : !torch.vtensor<[4,3],f64> -> !torch.vtensor<[3,4],f64>
        %y = torch.aten.addmm %b, %x, %t, %i, %i : !torch.vtensor<[4],f64>, !torch.vtensor<[2,3],f64>, !torch.vtensor<[3,4],f64>, !torch.int, !torch.int -> !torch.vtensor<[2,4],f64>
        return %y : !torch.vtensor<[2,4],f64>
      }
    because: T == f32
"""  # noqa: E501 - the programs' lines


def test_a_rule_that_other_sets_leave_nothing_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my-linear-relu.yaml"
    file.write_text(FUSION)
    # Another root: it rewrites the transpose, and my rule's ops are gone.
    other = tmp_path / "others" / "no-transpose.yaml"
    other.parent.mkdir()
    other.write_text(
        FUSION.replace("my-linear-relu", "no-transpose")
        .replace("  - y = torch.aten.addmm(b, x, t, 1, 1)\n", "")
        .replace(
            "types: {x: vtensor<M x K x T>, w: vtensor<N x K x T>, b: vtensor<N x T>, y:",
            "types: {w: vtensor<N x K x T>, t:",
        )
        .replace("vtensor<M x N x T>}", "vtensor<K x N x T>}")
        .replace("y = torch.aten.linear(x, w, b)", "t = torch.aten.permute(w, [1, 0])")
    )
    assert run("check", file, "--against", other.parent) == 0
    said = capsys.readouterr().out
    assert (
        f"{file}:1:7: warning[shadowed]: my-linear-relu never applies beside no-transpose" in said
    )
    assert f"({other}:1:7)" in said
    assert run("check", file, "--against", other.parent, "--strict") == 1
    capsys.readouterr()
    assert run("check", other, "--against", tmp_path) == 0
    assert "shadowed" not in capsys.readouterr().out


def test_no_shipped_rule_has_unequal_sizes() -> None:
    from mlirules.drivers.quality.remarks import unequal_sizes

    files = [file for file in rule_files(LIBRARY) if not holds_config(file)]
    assert not [f for rule in load_rules(files) for f in unequal_sizes(rule)]


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        (
            "because: T == f32",
            "because: vtensor<M x N x T>",
            "23:5 test-because",
            "refused by another line: T == f32 (T is f64, not f32)",
        ),
        (
            "f64",
            "f32",
            "18:5 test-applies",
            "the rule rewrites the program of 'negative', which it is to leave alone",
        ),
        (
            "run: {",
            "applied: 2\n    run: {",
            "16:5 test-applied",
            "the rule applied 1 times, not 2",
        ),
        (
            "run: {devices: [cpu]}",
            "check: 'CHECK-NOT: linalg.matmul'",
            "16:13 check-never-matches",
            "the rewritten program of 'positive' does not fit this line: CHECK-NOT: excluded "
            "string found in input ('linalg.matmul')",
        ),
    ],
)
def test_what_tests_say_that_is_not_so(old: str, new: str, place: str, said: str) -> None:
    rule = load_rule("my-mm.yaml", text().replace(old, new), ops=compiler.op_oracle)
    found = [(f"{f.span.line}:{f.span.column} {f.code}", f.message) for f in untrue(rule)]
    assert found == [(place, said)]


def test_a_fault_of_one_file_keeps_nothing_from_being_told_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my-mm.yaml").write_text(text().replace("run: {", "applied: 2\n    run: {"))
    (tmp_path / "other.yaml").write_text("rule: other\n")
    assert run("check", tmp_path) == 2
    said = capsys.readouterr().out
    assert "error[test-applied]" in said
    assert "other.yaml:1:1: error[missing-key]" in said


def test_what_tests_of_config_rules_say_that_is_not_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = LIBRARY / "configs" / "mmt-2048x1280x5120-f16-cpu.yaml"
    mine = shipped.read_text().replace("mmt-2048x1280x5120-f16-cpu", "my-mmt")
    file = tmp_path / "my-mmt.yaml"
    file.write_text(
        mine.replace("hits: 1", "hits: 2").replace("because: dims.k", "because: dims.m")
    )
    assert run("check", file) == 2
    said = capsys.readouterr().out
    assert f"{file}:30:5: error[test-hits]: the rule hit 1 ops, not 2" in said
    assert "error[test-because]: refused by another part: " in said
    assert "dims.k (k is 2560, not 5120)" in said
