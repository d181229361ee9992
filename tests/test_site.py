"""The documentation site: built with a page for some rules; with all of them where time allows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlirules
from mlirules.drivers.quality.config_test import any_rules
from mlirules.language.rulefiles import LIBRARY

pytest.importorskip("mkdocstrings", reason="the site's API pages are made by it")
pytest.importorskip("material", reason="the site is made by mkdocs-material")

ROOT = Path(__file__).resolve().parent.parent
SOME = "configs,torch/to-linalg/matmul,torch/to-linalg/elementwise/torch-relu-to-linalg"


def _build(folder: Path, rules: str) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "MLIRULES_SITE_RULES": rules}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("site"), SOME)


def _pages(site: Path) -> set[str]:
    return {page.stem for page in (site / "rules").glob("*.html")} - {"index"}


def test_every_rule_has_a_page(site: Path) -> None:
    assert _pages(site) == {rule.name for rule in any_rules(SOME.split(","))}


@pytest.mark.slow
def test_every_shipped_rule_has_a_page(tmp_path: Path) -> None:
    assert _pages(_build(tmp_path, "")) == {rule.name for rule in any_rules([str(LIBRARY)])}


def test_a_rule_page_shows_what_the_rule_really_does(site: Path) -> None:
    page = (site / "rules" / "torch-relu-to-linalg.html").read_text(encoding="utf-8")
    assert "torch.aten.relu" in page
    assert "arith.maximumf" in page, "the program after the rule"
    assert "is_float(x) or is_int(x)" in page, "its condition"


def test_every_page_of_docs_is_there(site: Path) -> None:
    for source in (ROOT / "docs").glob("*.md"):
        assert (site / f"{source.stem}.html").is_file(), source
    assert "Five minutes" in (site / "index.html").read_text(encoding="utf-8")


def test_the_names_of_the_library_are_told_from_their_docstrings(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in set(mlirules.__all__) - {"__version__"}:
        assert f'id="mlirules.{name}"' in page, name
    assert "Rules, a target and a pipeline, and what is kept" in page
    assert ":class:" not in page, "Sphinx' roles are plain code"
