"""What mkdocs is told beside mkdocs.yml: the README as the front page, a page for every rule."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from mlirules.commands.docs import rule_page
from mlirules.drivers.quality.config_test import any_rules
from mlirules.generator import pages
from mlirules.language.rulefiles import LIBRARY

ROOT = Path(__file__).resolve().parent.parent

#: Rule sets to make pages for, by commas; all that ships when it is empty.
RULES = "MLIRULES_SITE_RULES"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file in docs/ holds."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    made = {"index.md": re.sub(r"\]\(docs/", "](", readme)}
    chosen = os.environ.get(RULES, "")
    rules = any_rules([s for s in chosen.split(",") if s] or [str(LIBRARY)])
    listed = [rule_page(rule) for rule in rules]
    made |= {f"rules/{page.file}": page.text for page in listed}
    made["rules/index.md"] = pages.index(listed)
    for name, text in made.items():
        page = File.generated(config, name, content=text)
        if name.startswith("rules/") and name != "rules/index.md":
            page.inclusion = InclusionLevel.NOT_IN_NAV  # hundreds: found by search and the index
        files.append(page)
    return files
