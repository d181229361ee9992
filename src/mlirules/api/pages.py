"""What notebooks show, pieces of HTML, and the files of an export: the templates beside this."""

from __future__ import annotations

from pathlib import Path

from mlirules.support import pages

__all__ = ["plain", "render"]

_TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: object) -> str:
    """A page with these values, escaped."""
    return pages.render(_TEMPLATES / template, **values)


def plain(template: str, **values: object) -> str:
    """A file that is no page, with these values as they are."""
    return pages.plain(_TEMPLATES / template, **values)
