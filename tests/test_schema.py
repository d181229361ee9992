"""The JSON Schema of rule files: up to date, complete, and where the rules say it is."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from mlirules.language import model as rule_model
from mlirules.language import schema
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.config import model as config
from mlirules.language.rulefiles import LIBRARY

MODELINE = re.compile(r"^# yaml-language-server: \$schema=(\S+)$")


@pytest.mark.parametrize("path", [schema.PACKAGED, schema.PUBLISHED], ids=["packaged", "docs"])
def test_files_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == schema.text(), (
        "run: python -m mlirules.language.schema"
    )


def test_writing_touches_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PACKAGED", tmp_path / "rules" / "schema" / "rule.json")
    monkeypatch.setattr(schema, "PUBLISHED", tmp_path / "docs" / "schema" / "rule.json")
    assert schema.write() == [schema.PACKAGED], "docs/ is written only where it exists"
    (tmp_path / "docs").mkdir()
    assert schema.write() == [schema.PUBLISHED]
    assert schema.write() == []
    schema.PACKAGED.write_text("{}")
    assert schema.write() == [schema.PACKAGED]
    assert schema.PACKAGED.read_text() == schema.PUBLISHED.read_text()


def test_ships_with_the_package() -> None:
    shipped = resources.files("mlirules.rules").joinpath("schema/rule.json")
    assert json.loads(shipped.read_text(encoding="utf-8")) == schema.schema()


def _mappings() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    made = schema.schema()
    models = [rule_model.RuleDoc, rule_model.Body, rule_model.RunDoc, rule_model.Test]
    models += [
        config.ConfigDoc,
        config.Match,
        config.DimRange,
        config.Settings,
        config.MmaKind,
        config.Basis,
        config.SubConfig,
        config.Decomposition,
        config.PipelineOptions,
        config.Measured,
        config.ConfigTest,
    ]
    for model in models:
        yield model.__name__, model, made["definitions"][model.__name__]


@pytest.mark.parametrize(("name", "model", "part"), list(_mappings()), ids=lambda v: str(v)[:10])
def test_every_key_is_explained(name: str, model: Any, part: dict[str, Any]) -> None:
    assert part["additionalProperties"] is False
    assert part["description"]
    of_families = {"with", "for"}  # what the loader takes away before the model reads the rest
    assert [k for k in part["properties"] if k not in of_families] == list(model.model_fields)
    required = [n for n, f in model.model_fields.items() if f.is_required()]
    assert part.get("required", []) == required
    for key, field in part["properties"].items():
        assert field["description"], (name, key)
        assert "$ref" not in field, "draft 7 ignores a description beside a $ref"
        assert {"type": "null"} not in field.get("anyOf", ())


def test_hover_texts_list_the_functions() -> None:
    where = schema.schema()["definitions"]["RuleDoc"]["properties"]["where"]["markdownDescription"]
    for function in FUNCTIONS.values():
        if function.impl is not None:
            assert f"`{function.example}`: {function.doc}" in where


def test_references_resolve() -> None:
    made = schema.schema()
    for reference in re.findall(r'"\$ref": "([^"]+)"', schema.text()):
        assert reference.startswith("#/definitions/")
        assert reference.removeprefix("#/definitions/") in made["definitions"]


def test_modelines_of_shipped_rules_point_at_it() -> None:
    wrong = []
    for path in sorted(LIBRARY.rglob("*.yaml")):
        found = MODELINE.match(path.read_text(encoding="utf-8").split("\n", 1)[0])
        if found and (path.parent / found[1]).resolve() != schema.PACKAGED:
            up = "../" * len(path.parent.relative_to(LIBRARY).parts)
            wrong.append(f"{path.relative_to(LIBRARY)}: write $schema={up}schema/rule.json")
    assert not wrong, "\n".join(wrong)
