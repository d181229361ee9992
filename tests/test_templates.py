"""The generator's templates: what a user puts in their place, and faults at their lines."""

import re
from pathlib import Path

import pytest

from mlirules import cli
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.generator.emit import artefacts, pdll
from mlirules.generator.emit.transform_spec import Entry, Function, Reached, Use, spec_text
from mlirules.generator.render import Templates, render
from mlirules.language.faults import MlirulesError
from mlirules.support.package import TEMPLATES

CONFIG = "configs/mmt-2048x1280x5120-f16-cpu"


def _generate(*words: object) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", *map(str, words)])
    return int(ended.value.code or 0)


def test_a_template_of_the_users_takes_the_shipped_ones_place(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    given = (TEMPLATES / "tuning-spec.mlir.j2").read_text()
    (folder / "tuning-spec.mlir.j2").write_text("// Of ours.\n" + given)
    out = tmp_path / "out"
    plain, own = out / "plain", out / "own"
    assert _generate(CONFIG, "--to", "tuning-spec", "-o", plain) == 0
    assert _generate(CONFIG, "--to", "tuning-spec", "-o", own, "--templates", folder) == 0
    (spec,) = own.glob("*.mlir")
    assert spec.read_text() == "// Of ours.\n" + (plain / spec.name).read_text()


def test_a_block_of_a_shipped_template_can_be_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "tuning-spec.mlir.j2").write_text(
        '{% extends "shipped/tuning-spec.mlir.j2" %}\n'
        '{% block head %}\n{% include "_licence.j2" %}\n// {{ rules | length }} rule\n'
        "{% endblock %}\n"
    )
    (folder / "_licence.j2").write_text("// Licensed.\n")
    out = tmp_path / "o"
    assert _generate(CONFIG, "--to", "tuning-spec", "-o", out, "--templates", folder) == 0
    (spec,) = out.glob("*.mlir")
    assert spec.read_text().startswith("// Licensed.\n// 1 rule\nmodule @")


def test_a_question_of_a_transform_spec_can_be_replaced(tmp_path: Path) -> None:
    """The ops that ask about sizes are written by the template: they are not handed to it."""
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "transform-spec.mlir.j2").write_text(
        '{% extends "shipped/transform-spec.mlir.j2" %}\n'
        "{% block guard %}\n"
        '{% set name = "size_" ~ loop.index %}\n'
        "{{ reached(guard.value, name) | shifted(4) -}}\n"
        "{% if guard.bounds.multiple %}\n"
        "    transform.iree.match.dim_is_multiple_of %{{ name }}_v[{{ guard.axis }}], "
        "{{ guard.bounds.multiple * 2 }} : !transform.any_value\n"
        "{% endif %}\n"
        "{% endblock %}\n"
    )
    rule = Path(__file__).parent / "spec_rules" / "transposed-matmul-any-size.yaml"
    plain, own = tmp_path / "plain", tmp_path / "own"
    assert _generate(rule, "--to", "transform", "-o", plain) == 0
    assert _generate(rule, "--to", "transform", "-o", own, "--templates", folder) == 0
    (spec,) = own.glob("*.transform.mlir")
    before, after = ((at / spec.name).read_text() for at in (plain, own))
    asks = "transform.iree.match.dim_"
    (first, *_) = (m for m in before.split("named_sequence @match_") if asks in m)
    assert [row.strip() for row in first.splitlines() if "%g" in row] == [
        "%g0_v = transform.get_operand %root[0] : (!transform.any_op) -> !transform.any_value",
        "transform.iree.match.dim_is_multiple_of %g0_v[1], 4 : !transform.any_value",
        "%g1_v = transform.get_operand %root[0] : (!transform.any_op) -> !transform.any_value",
        "transform.iree.match.dim_bounds %g1_v[0], umin = 2, none : !transform.any_value",
        "%g2_v = transform.get_operand %root[0] : (!transform.any_op) -> !transform.any_value",
        "transform.iree.match.dim_bounds %g2_v[0], none, umax = 64 : !transform.any_value",
    ]
    (first, *_) = (m for m in after.split("named_sequence @match_") if asks in m)
    assert [row.strip() for row in first.splitlines() if "%size" in row] == [
        "%size_1_v = transform.get_operand %root[0] : (!transform.any_op) -> !transform.any_value",
        "transform.iree.match.dim_is_multiple_of %size_1_v[1], 8 : !transform.any_value",
        "%size_2_v = transform.get_operand %root[0] : (!transform.any_op) -> !transform.any_value",
        "%size_3_v = transform.get_operand %root[0] : (!transform.any_op) -> !transform.any_value",
    ]
    assert "%g0" not in after
    assert "dim_bounds" not in after


def test_values_of_a_transform_spec_are_reached_through_producers() -> None:
    (rule,) = rule_set(("linalg/linalg-transposed-matmul",))
    deep = Reached((1, 0), 2)
    entries = [
        Entry(rule, "^bb0:", (), (Use(value, 3),), Function((("%a", "f32"),), "()", "  one"))
        for value in (deep, Reached((), 3, result=True), deep)
    ]
    text = spec_text(entries, "deep", require=False)
    rows = [row.strip() for row in text.splitlines()]
    assert [row.partition(" : ")[0] for row in rows if row.startswith("%u")] == [
        "%u0_p0 = transform.get_producer_of_operand %root[1]",
        "%u0_p1 = transform.get_producer_of_operand %u0_p0[0]",
        "%u0_v = transform.get_operand %u0_p1[2]",
        "%u0_o = transform.get_defining_op %u0_v",
        "%u0_c = transform.get_consumers_of_result %u0_o[3]",
        "%u0_n = transform.num_associations %u0_c",
        "%u0_1 = transform.param.constant 1",
        "%u0_v = transform.get_result %root[3]",
        "%u0_o = transform.get_defining_op %u0_v",
        "%u0_c = transform.get_consumers_of_result %u0_o[3]",
        "%u0_n = transform.num_associations %u0_c",
        "%u0_1 = transform.param.constant 1",
    ]
    # Other uses are another action, though the function is the same.
    stem = "mlirules_linalg_transposed_matmul"
    assert re.findall(r"@(match\w+) -> @apply_(\w+)", text) == [
        ("match_linalg_transposed_matmul_1", f"{stem}_1"),
        ("match_linalg_transposed_matmul_2", f"{stem}_2"),
        ("match_linalg_transposed_matmul_3", f"{stem}_1"),
    ]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("// one\n{{ nothing }}\n", "2:1", "'nothing' is undefined"),
        ("// one\n{% for rule in rules %}\n", "2:1", "Unexpected end of template"),
        ("\n\n  {{ 1 // 0 }}\n", "3:3", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "1:1", "access to attribute '__class__' of 'str' object"),
        ("{{ rules[0].nothing }}", "1:1", "has no attribute 'nothing'"),
    ],
)
def test_a_fault_of_a_template_is_at_its_line(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    (tmp_path / "rules.pdll.j2").write_text(text)
    (rule,) = rule_set(("linalg/linalg-transposed-matmul",))
    with pytest.raises(MlirulesError, match=re.escape(message)) as raised:
        pdll.pdll([rule], templates=Templates(tmp_path))
    span = raised.value.faults[0].span
    assert str(span) == f"{tmp_path}/rules.pdll.j2:{place}"
    assert span.source_line == text.splitlines()[span.line - 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tuning-spec.mlir", "did you mean 'tuning-spec.mlir.j2'"),
        ("transform-spec.mlir.j2", "the forms asked for do not use it"),
    ],
)
def test_a_template_without_an_effect_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(MlirulesError, match=message):
        Templates(tmp_path).check(artefacts.templates_of(artefacts.FORMS), {"tuning-spec.mlir.j2"})


def test_a_folder_without_templates_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MlirulesError, match=r"holds no template|is no folder"):
            Templates(folder).check(artefacts.templates_of(artefacts.FORMS), set())


def test_shipped_templates_are_sandboxed_and_strict() -> None:
    with pytest.raises(MlirulesError, match=r"'pages' is undefined"):
        render("index.md.j2")
    with pytest.raises(MlirulesError, match=r"nowhere\.j2"):
        render("nowhere.j2")


def test_what_a_config_rule_sets_is_written_by_a_template(tmp_path: Path) -> None:
    folder, out = tmp_path / "templates", tmp_path / "out"
    folder.mkdir()
    given = (TEMPLATES / "configuration.mlir.j2").read_text()
    changed = given.replace("#iree_cpu.lowering_config<{{ settings(config) }}>", "#ours.tiles<>")
    (folder / "configuration.mlir.j2").write_text(changed)
    assert _generate(CONFIG, "--to", "tuning-spec", "-o", out, "--templates", folder) == 0
    (spec,) = out.glob("*.mlir")
    assert "    lowering_config = #ours.tiles<>,\n" in spec.read_text()


def test_the_head_of_pdl_is_a_templates(tmp_path: Path) -> None:
    folder, out = tmp_path / "templates", tmp_path / "out"
    folder.mkdir()
    (folder / "pdl.mlir.j2").write_text(
        '{% extends "shipped/pdl.mlir.j2" %}\n'
        "{% block head %}\n// Ours, {{ reader }}: {{ rules[0].name }}\n{% endblock %}\n"
    )
    rule = "linalg/linalg-transposed-matmul"
    assert _generate(rule, "--to", "pdl", "-o", out, "--templates", folder) == 0
    (file,) = out.glob("*.pdl.mlir")
    head, _, pdl = file.read_text().partition("\n")
    assert head == "// Ours, driver: linalg-transposed-matmul"
    assert pdl.startswith("module {")
    assert pdl.endswith("}\n")


def test_the_ops_of_patterns_are_written_by_a_template(tmp_path: Path) -> None:
    given = (TEMPLATES / "rules.pdll.j2").read_text()
    (tmp_path / "rules.pdll.j2").write_text(given.replace("= op<", "= /* of ours */ op<"))
    (rule,) = rule_set(("linalg/linalg-transposed-matmul",))
    plain, own = pdll.pdll([rule]), pdll.pdll([rule], templates=Templates(tmp_path))
    assert own == plain.replace("= op<", "= /* of ours */ op<") != plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "op<torch.constant.none>()"),
        (True, 'op<torch.constant.bool>() {value = attr<"true">}'),
        (-3, 'op<torch.constant.int>() {value = attr<"-3 : i64">}'),
        (0.5, 'op<torch.constant.float>() {value = attr<"0.5 : f64">}'),
        ('a"\\', 'op<torch.constant.str>() {value = attr<"\\"a\\"\\\\\\"">}'),
    ],
)
def test_constants_in_patterns(value: object, text: str) -> None:
    pattern = pdll.Pattern("p", (pdll.constant("k_1", value),), "root")
    view = pdll.RuleView("r", "r", "A rule.", "r.yaml:1", 1, True, [], [], [], [pattern])
    made = render(pdll.TEMPLATE, rules=[view], origin="a test", driver=True)
    assert f"\n  let k_1 = {text};\n" in made


def test_a_linked_spec_begins_with_what_became_of_its_sources() -> None:
    values = {"overlaps": [], "dropped": [], "empty": ["p.mlir"], "spec": "module {}\n"}
    head = "// p.mlir changes nothing\n"
    assert render("linked-spec.mlir.j2", **values, count=0) == head + "module {}\n"
    by_compiler = head + "// 2 specs, linked by the compiler.\nmodule {}\n"
    assert render("linked-spec.mlir.j2", **values, count=2) == by_compiler
