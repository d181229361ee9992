"""The generator's Jinja templates: sandboxed, those of a user before the shipped ones.

What goes wrong in a template is a fault at its line. A template of a user can take up the shipped
one of the same name (``{% extends "shipped/tuning-spec.mlir.j2" %}``) and replace its blocks.
"""

from __future__ import annotations

import functools
import textwrap
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.support import package

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

__all__ = ["Templates", "render", "shipped"]


class Templates:
    """Templates by name. Those in ``folder`` take the place of shipped ones of the same name.

    Names that begin with ``_`` are parts, which other templates include.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def check(self, known: Collection[str], used: Collection[str]) -> None:
        """Raise :class:`MlirulesError` unless every file of the folder takes effect.

        ``known`` are the templates that can be replaced, ``used`` those that are asked for.
        """
        if self.folder is None:
            return
        if not self.folder.is_dir():
            raise MlirulesError.at(str(self.folder), "is no folder of templates", code="templates")
        files = sorted(p for p in self.folder.iterdir() if not p.name.startswith((".", "_")))
        if not files:
            raise MlirulesError.at(
                str(self.folder),
                "holds no template",
                code="templates",
                suggestion="a copy of a shipped one, changed: " + ", ".join(sorted(known)),
            )
        faults = []
        for file in files:
            if file.name not in known:
                hint = did_you_mean(file.name, known) or "known: " + ", ".join(sorted(known))
                message = "no template has this name: it would change nothing"
            elif file.name not in used:
                hint = "ask for its form with --to"
                message = "the forms asked for do not use it: it would change nothing"
            else:
                continue
            faults.append(Fault(Span(str(file)), "templates", message, hint))
        if faults:
            raise MlirulesError(faults)

    @functools.cached_property
    def _environment(self) -> SandboxedEnvironment:
        import jinja2  # the walk driver writes no patterns
        from jinja2.sandbox import SandboxedEnvironment

        own = jinja2.FileSystemLoader(package.TEMPLATES)
        loaders: list[jinja2.BaseLoader] = [own, jinja2.PrefixLoader({"shipped": own})]
        if self.folder is not None:
            loaders.insert(0, jinja2.FileSystemLoader(self.folder))
        made = SandboxedEnvironment(
            loader=jinja2.ChoiceLoader(loaders),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        made.filters["shifted"] = _shifted
        return made

    def render(self, template: str, /, **values: object) -> str:
        """The template filled in. Raises :class:`MlirulesError` at the template's line."""
        try:
            return self._environment.get_template(template).render(**values)
        except Exception as error:
            raise MlirulesError(self._fault(template, error)) from error

    def call(self, template: str, macro: str, /, *values: object) -> str:
        """What a macro of a template makes. Raises :class:`MlirulesError` at its line."""
        try:
            made = getattr(self._environment.get_template(template).module, macro)
            return str(made(*values))
        except Exception as error:
            raise MlirulesError(self._fault(template, error)) from error

    def _fault(self, name: str, error: Exception) -> Fault:
        """What went wrong, at the line of a template: Jinja puts its lines into the traceback."""
        import jinja2

        path, line = "", 0
        if isinstance(error, jinja2.TemplateSyntaxError):
            path, line = error.filename or "", error.lineno
        else:
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.filename.endswith(".j2"):
                    path, line = frame.filename, frame.lineno or 0
        if not path:
            given = self.folder / name if self.folder is not None else None
            path = str(given) if given is not None and given.exists() else name
        span = Span(path)
        if line and Path(path).is_file():
            rows = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
            row = rows[line - 1] if line <= len(rows) else ""
            start = len(row) - len(row.lstrip())
            span = Span(path, line, start + 1, max(1, len(row.strip())), row)
        message = str(error) or type(error).__name__
        if not isinstance(error, jinja2.TemplateError):
            message = f"{type(error).__name__}: {message}"
        return Fault(span, "template", message)


def _shifted(text: str, by: int) -> str:
    """Every line of a text moved to the right, but empty ones: Jinja's `indent` moves the first."""
    return textwrap.indent(text, " " * by, lambda line: line != "\n")


@functools.cache
def shipped() -> Templates:
    """The templates that ship."""
    return Templates()


def render(template: str, /, **values: object) -> str:
    """Render one of the templates that ship."""
    return shipped().render(template, **values)
