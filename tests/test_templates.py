"""The generator's templates: what a user puts in their place, and faults at their lines."""

import re
from pathlib import Path

import pytest

from mlirules import cli
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.generator.emit import artefacts, pdll
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
    shipped = (TEMPLATES / "tuning-spec.mlir.j2").read_text()
    (folder / "tuning-spec.mlir.j2").write_text("// Of ours.\n" + shipped)
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
        Templates(tmp_path).check(set(artefacts.FORMS.values()), {"tuning-spec.mlir.j2"})


def test_a_folder_without_templates_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MlirulesError, match=r"holds no template|is no folder"):
            Templates(folder).check(set(artefacts.FORMS.values()), set())


def test_shipped_templates_are_sandboxed_and_strict() -> None:
    with pytest.raises(MlirulesError, match=r"'pages' is undefined"):
        render("index.md.j2")
    with pytest.raises(MlirulesError, match=r"nowhere\.j2"):
        render("nowhere.j2")
