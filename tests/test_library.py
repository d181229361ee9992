"""Compiled rule sets: the same rules as read, faults told whatever is kept, only what is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler
from mlirules.language import loader
from mlirules.language.faults import MlirulesError
from mlirules.language.library import RuleSet, open_rules, reachable
from mlirules.language.loader import load_rules
from mlirules.support import cache

RULE = """\
rule: neg-twice
kind: fusion
summary: Two negations are none.
reason: A rule for the tests of rule sets.
types: {x: "vtensor<S... x T>", z: "vtensor<S... x T>"}
match:
  - y = torch.aten.neg(x)
  - z = torch.aten.neg(y)
where: ["T in [f16, f32]"]
rewrite: ["z = torch.aten.abs(x)"]
tests:
  - name: twice
    input: "module {}"
    check: "CHECK: module"
  - name: once
    unchanged: "module {}"
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "cache")


def opened(*paths: str | Path) -> RuleSet:
    return open_rules(paths, ops=compiler.op_oracle, compiler=compiler.version())


@pytest.mark.parametrize("shipped", ["torch/to-linalg/matmul", "kernels/kernel-gelu"])
def test_what_is_kept_is_what_was_read(shipped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_rules([shipped], ops=compiler.op_oracle)
    opened(shipped)
    # From now on only what is kept can give them.
    monkeypatch.setattr(loader, "rules_of", lambda *_args, **_rest: pytest.fail("read again"))
    kept = opened(shipped).rules()
    for one, other in zip(kept, read, strict=True):
        # As drivers ask for it, before the whole is asked for.
        assert (one.name, one.kind, one.benefit) == (other.name, other.kind, other.benefit)
        assert (one.tags, one.commutative) == (other.tags, other.commutative)
        if one.variants:
            assert one.kernel_inputs == other.kernel_inputs
            variants = zip(one.variants, other.variants, strict=True)
            assert all(a.doc.body == b.doc.body for a, b in variants)
            variants = zip(one.variants, other.variants, strict=True)
            assert all(a.doc.targets == b.doc.targets for a, b in variants)
    assert [repr(r.doc) for r in kept] == [repr(r.doc) for r in read]
    for one, other in zip(kept, read, strict=True):
        assert (one.origin, one.order, one.names) == (other.origin, other.order, other.names)
        assert one.root_ops == other.root_ops
        assert one.produced_ops == other.produced_ops
        assert [e for _, e in one.where] == [e for _, e in other.where]
        assert [e for _, e in one.rewrite] == [e for _, e in other.rewrite]
        assert [p.equation for p in one.match] == [p.equation for p in other.match]
        lines = [
            [*(line for line, _ in r.where), *(line for line, _ in r.rewrite)] for r in (one, other)
        ]
        assert [line.span for line in lines[0]] == [line.span for line in lines[1]]
        assert [line.text.places for line in lines[0]] == [line.text.places for line in lines[1]]


def test_a_changed_file_is_read_and_a_fault_is_told(tmp_path: Path) -> None:
    file = tmp_path / "set" / "neg-twice.yaml"
    file.parent.mkdir()
    file.write_text(RULE, encoding="utf-8")
    first = opened(file.parent)
    file.write_text(RULE.replace("abs", "relu"), encoding="utf-8")
    second = opened(file.parent)
    assert first.digest != second.digest
    assert second.entries[0].rule.produced_ops == {"torch.aten.relu"}
    file.write_text(RULE.replace("aten.abs", "aten.abbs"), encoding="utf-8")
    for _ in range(2):  # a fault is never kept
        with pytest.raises(MlirulesError) as caught:
            opened(file.parent)
        assert caught.value.faults[0].span.line == 10
    file.write_text(RULE, encoding="utf-8")
    assert opened(file.parent).digest == first.digest


def test_names_stand_once_in_a_set_also_where_it_is_kept(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(RULE, encoding="utf-8")
    for _ in range(2):
        with pytest.raises(MlirulesError) as caught:
            opened(tmp_path / "one.yaml", tmp_path / "two.yaml")
        assert caught.value.faults[0].code == "duplicate-rule"
        assert caught.value.faults[0].span.path.endswith("two.yaml")


def test_a_file_of_the_cache_that_is_not_whole_is_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "neg-twice.yaml"
    file.write_text(RULE, encoding="utf-8")
    opened(file)
    (kept,) = (tmp_path / "cache" / "rules").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole.replace(b"torch.aten.abs", b"torch.aten.cos"))
    assert opened(file).entries[0].rule.produced_ops == {"torch.aten.abs"}
    assert kept.read_bytes() == whole


def test_a_rule_of_the_cache_that_is_not_whole_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "neg-twice.yaml"
    file.write_text(RULE, encoding="utf-8")
    opened(file)
    (kept,) = (tmp_path / "cache" / "rules").iterdir()
    head, _, body = kept.read_bytes().rpartition(b'{"plain"')
    kept.write_bytes(head + b'{"plain"' + body.replace(b"torch.aten.abs", b"torch.aten.cos"))
    assert opened(file).entries[0].rule.produced_ops == {"torch.aten.abs"}
    # Nor is it kept on when another file of the set is read anew.
    found = opened(file)
    kept.write_bytes(kept.read_bytes()[:-1])
    assert found.entries[0].rule.produced_ops == {"torch.aten.abs"}


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder", encoding="utf-8")
    monkeypatch.setattr(cache, "directory", lambda: blocked)
    file = tmp_path / "neg-twice.yaml"
    file.write_text(RULE, encoding="utf-8")
    assert opened(file).entries[0].name == "neg-twice"


def test_only_rules_whose_ops_can_occur_are_given() -> None:
    entries = opened("torch/decompose", "torch/to-linalg").entries
    chosen = {e.name for e in reachable(entries, {"torch.aten.mm", "func.func"})}
    assert any("mm" in name for name in chosen)
    assert len(chosen) < len(entries) / 10
    assert reachable(entries, {"func.func"}) == []


def chosen_of(folder: Path, *elements: str) -> list[str]:
    entries = opened(folder).entries
    return [e.name for e in reachable(entries, {"torch.aten.neg"}, lambda: elements)]


def test_rules_for_types_of_elements_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.yaml").write_text(RULE, encoding="utf-8")  # T in [f16, f32]
    narrow = RULE.replace("neg-twice", "bytes").replace(
        'x: "vtensor<S... x T>"', 'x: "vtensor<S... x ui8>"'
    )
    (folder / "b.yaml").write_text(narrow, encoding="utf-8")
    assert chosen_of(folder, "f32") == ["neg-twice"]
    assert chosen_of(folder, "bf16") == []
    assert chosen_of(folder, "f16", "i8") == ["neg-twice", "bytes"]
    assert chosen_of(folder) == []
    both = RULE.replace('["T in [f16, f32]"]', '["rank(x) == 2 and T in [bf16]"]')
    (folder / "a.yaml").write_text(both, encoding="utf-8")
    assert chosen_of(folder, "f32") == []
    assert chosen_of(folder, "bf16") == ["neg-twice"]
    # What is not known of the program leaves none out.
    entries = opened(folder).entries
    assert len(reachable(entries, {"torch.aten.neg"})) == 2


def test_what_rules_make_may_be_of_types_that_were_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    wide = RULE.replace(
        'z: "vtensor<S... x T>"', 'z: "vtensor<S... x T>", w: "vtensor<S... x f32>"'
    )
    copies = [
        "w = torch.aten._to_copy(x, 6, none, none, none, false, none)",
        "z = torch.aten._to_copy(w, 5, none, none, none, false, none)",
    ]
    wide = wide.replace("T in [f16, f32]", "T == f16").replace(
        '["z = torch.aten.abs(x)"]', str(copies).replace("'", '"')
    )
    (folder / "a.yaml").write_text(wide, encoding="utf-8")
    (folder / "b.yaml").write_text(
        RULE.replace("neg-twice", "floats").replace("T in [f16, f32]", "T in [f32]"),
        encoding="utf-8",
    )
    assert chosen_of(folder, "bf16") == []
    assert chosen_of(folder, "f32") == ["floats"]
    assert chosen_of(folder, "f16") == ["neg-twice", "floats"]
    # Without a declared type it may be of any.
    (folder / "a.yaml").write_text(wide.replace(', w: "vtensor<S... x f32>"', ""), encoding="utf-8")
    (folder / "b.yaml").write_text(
        RULE.replace("neg-twice", "halves").replace("T in [f16, f32]", "T in [bf16]"),
        encoding="utf-8",
    )
    assert chosen_of(folder, "f16") == ["neg-twice", "halves"]


def test_rules_for_what_other_rules_make_are_given(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RULE, encoding="utf-8")
    after = RULE.replace("rule: neg-twice", "rule: abs-once").replace(
        "  - y = torch.aten.neg(x)\n  - z = torch.aten.neg(y)", "  - z = torch.aten.abs(x)"
    )
    (tmp_path / "b.yaml").write_text(
        after.replace('z = torch.aten.abs(x)"]', 'z = torch.aten.relu(x)"]'), encoding="utf-8"
    )
    entries = opened(tmp_path / "a.yaml", tmp_path / "b.yaml").entries
    assert len(reachable(entries, {"torch.aten.neg"})) == 2
    assert [e.name for e in reachable(entries, {"torch.aten.abs"})] == ["abs-once"]
