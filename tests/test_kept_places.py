"""A kernel that was kept knows where the rows of its body stand, and reads no file for that."""

import json
from pathlib import Path

import pytest

from mlirules.drivers.pipelines.transform import library
from mlirules.language.kept import decoded, encoded
from mlirules.language.rule import Rule
from mlirules.language.source import Text


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Rule]:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path / "cache"))
    return list(library(("kernels/kernel-mm", "kernels/kernel-layer-norm")).rules())


def test_the_rows_of_a_body_stand_where_they_stand_in_the_file(rules: list[Rule]) -> None:
    rows = 0
    for rule in rules:
        source = rule.source
        number = [r.name for r in rules if r.source.path == source.path].index(rule.name)
        known = json.loads(json.dumps(encoded(rule)))
        whole = json.dumps(source.data).encode()
        again = decoded(known, whole, source.path, source.text, number)
        for old, new in zip(rule.variants, again.variants, strict=True):
            assert old.body is not None
            assert new.body is not None
            before, after = old.body.text, new.body.text
            assert type(after) is not Text
            offset = 0
            for row in before.value.splitlines(keepends=True):
                start = offset + len(row) - len(row.lstrip())
                assert after.span(start) == before.span(start)
                offset += len(row)
                rows += 1
            assert after.span() == before.span()
        assert "_read" not in vars(again.source)
        # Any other place is found in the file.
        body = again.variants[0].body
        assert body is not None
        assert rule.variants[0].body is not None
        assert body.text.span(1, 1) == rule.variants[0].body.text.span(1, 1)
        assert "_read" in vars(again.source)
    assert rows > 100
