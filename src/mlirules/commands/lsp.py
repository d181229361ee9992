"""``mlirules lsp``: a language server for rule files, over stdin and stdout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlparse

from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules lsp"
PREVIEW = "mlirules.previewPdll"


def command() -> None:
    """Serve an editor: faults as you type, what ops and words mean, the PDLL of a rule.

    Speaks the Language Server Protocol on stdin and stdout; an editor starts it. Needs the extra
    `lsp`: pip install 'mlirules[lsp]'.
    """
    server().start_io()


def server() -> Any:
    """The server, not yet started. Raises MlirulesError when pygls is missing."""
    try:
        from lsprotocol import types
        from pygls.lsp.server import LanguageServer
    except ImportError:
        raise MlirulesError.not_installed(
            "lsp", "the language server needs pygls, which is not installed", "lsp"
        ) from None
    from mlirules.drivers.quality import editor as language
    from mlirules.language.faults import Fault
    from mlirules.support.package import VERSION

    made: Any = LanguageServer("mlirules", VERSION)

    def span(part: language.Part) -> Any:
        return types.Range(
            types.Position(part.line, part.start), types.Position(part.line, part.end)
        )

    def diagnostic(fault: Fault) -> Any:
        line = max(0, fault.span.line - 1)
        start = max(0, fault.span.column - 1)
        severity = types.DiagnosticSeverity.Error
        if fault.severity == "warning":
            severity = types.DiagnosticSeverity.Warning
        hint = f"\n{fault.suggestion}" if fault.suggestion else ""
        return types.Diagnostic(
            span(language.Part(line, start, start + fault.span.length)),
            fault.message + hint,
            severity=severity,
            code=fault.code,
            source="mlirules",
        )

    def told(uri: str) -> None:
        text = made.workspace.get_text_document(uri).source
        found = [diagnostic(f) for f in language.faults(path_of(uri), text)]
        made.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found))

    def opened(params: Any) -> None:
        told(params.text_document.uri)

    def changed(params: Any) -> None:
        told(params.text_document.uri)

    def saved(params: Any) -> None:
        told(params.text_document.uri)

    def word(params: Any) -> Any:
        document = made.workspace.get_text_document(params.text_document.uri)
        at = params.position
        return document, language.word_at(document.source, at.line, at.character)

    def hover(params: Any) -> Any:
        document, found = word(params)
        if found is None:
            return None
        said = language.explanation(path_of(document.uri), document.source, found[0])
        if not said:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, said)
        return types.Hover(content, span(found[1]))

    def definition(params: Any) -> Any:
        document, found = word(params)
        if found is None:
            return None
        part = language.definition(path_of(document.uri), document.source, found[0])
        return None if part is None else types.Location(document.uri, span(part))

    def links(params: Any) -> Any:
        text = made.workspace.get_text_document(params.text_document.uri).source
        return [
            types.DocumentLink(span(part), target=target, tooltip="documentation of the op")
            for part, target in language.links(text)
        ]

    def lenses(params: Any) -> Any:
        uri = params.text_document.uri
        rows = made.workspace.get_text_document(uri).source.split("\n")
        shown = types.Command("Preview PDLL", PREVIEW, arguments=[uri])
        return [
            types.CodeLens(span(language.Part(n, 0, len(row))), shown)
            for n, row in enumerate(rows)
            if row.startswith("rule:")
        ]

    def preview(uri: str) -> str:
        text = made.workspace.get_text_document(uri).source
        try:
            return language.preview(path_of(uri), text)
        except MlirulesError as error:
            return "".join(f"// {row}\n" for row in str(error).split("\n"))

    features: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        (types.TEXT_DOCUMENT_DID_OPEN, opened),
        (types.TEXT_DOCUMENT_DID_CHANGE, changed),
        (types.TEXT_DOCUMENT_DID_SAVE, saved),
        (types.TEXT_DOCUMENT_HOVER, hover),
        (types.TEXT_DOCUMENT_DEFINITION, definition),
        (types.TEXT_DOCUMENT_DOCUMENT_LINK, links),
        (types.TEXT_DOCUMENT_CODE_LENS, lenses),
    )
    for name, function in features:
        made.feature(name)(function)
    made.command(PREVIEW)(preview)
    return made


def path_of(uri: str) -> str:
    """The file that a URI names."""
    return unquote(urlparse(uri).path) or uri
