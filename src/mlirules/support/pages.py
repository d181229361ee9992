"""Pages and other files by templates that lie beside the code: sandboxed, and pages escaped."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

__all__ = ["plain", "render"]


@functools.lru_cache(maxsize=32)
def _environment(folder: Path, escape: bool) -> SandboxedEnvironment:
    import jinja2  # most of what knows how to show itself as a page is never asked to
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=escape,
        keep_trailing_newline=not escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: Path, /, **values: object) -> str:
    """The page of a template with these values, escaped. It can include those of its folder."""
    return _environment(template.parent, True).get_template(template.name).render(**values)


def plain(template: Path, /, **values: object) -> str:
    """The file of a template that is no page, with these values as they are."""
    return _environment(template.parent, False).get_template(template.name).render(**values)
