"""What notebooks show: pieces of HTML, everything from outside escaped."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2

__all__ = ["plain", "render"]


@functools.cache
def _environment(escape: bool) -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    return jinja2.Environment(
        loader=loader,
        autoescape=escape,
        keep_trailing_newline=not escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: object) -> str:
    """A page with these values, escaped."""
    return _environment(True).get_template(template).render(**values)


def plain(template: str, **values: object) -> str:
    """A file that is no page, with these values as they are."""
    return _environment(False).get_template(template).render(**values)
