"""Where the data that ships lies: rules and specs, beside the code in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"
PACKAGE = Path(__file__).resolve().parents[1]
#: The library of rules, by folders.
RULES = (PACKAGE / "rules").resolve()
#: Pipelines, facts about targets, search spaces, the demo's program.
SPECS = (PACKAGE / "specs").resolve()
#: The generator's Jinja templates.
TEMPLATES = (PACKAGE / "generator" / "templates").resolve()
#: What was made when the package was built, kept by content as in the cache; none in a checkout.
PREBUILT = PACKAGE / "prebuilt"
