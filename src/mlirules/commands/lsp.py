"""``mlirules lsp``: a language server for rule files, over stdin and stdout."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules lsp"
PREVIEW = "mlirules.previewPdll"
RUN_TEST = "mlirules.runTest"


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
        from pygls.exceptions import JsonRpcInvalidParams
        from pygls.lsp.server import LanguageServer
    except ImportError:
        raise MlirulesError.not_installed(
            "lsp", "the language server needs pygls, which is not installed", "lsp"
        ) from None
    from mlirules.drivers.quality import completion, symbols
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
        if fault.severity != "error":
            warns = fault.severity == "warning"
            severity = getattr(types.DiagnosticSeverity, "Warning" if warns else "Information")
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
        text = made.workspace.get_text_document(uri).source
        shown = types.Command("Preview PDLL", PREVIEW, arguments=[uri])
        found = [
            types.CodeLens(span(language.Part(n, 0, len(row))), shown)
            for n, row in enumerate(text.split("\n"))
            if row.startswith("rule:")
        ]
        for name, part in symbols.tests(path_of(uri), text) if found else ():
            run = types.Command("Run this test", RUN_TEST, arguments=[uri, name])
            found.append(types.CodeLens(span(part), run))
        return found

    def run_test(uri: str, name: str) -> Any:
        text = made.workspace.get_text_document(uri).source
        done = language.run_test(path_of(uri), text, name)
        kind = types.MessageType.Info if done["passed"] else types.MessageType.Error
        said = "passed" if done["passed"] else "failed: " + "\n".join(done["problems"])
        made.window_show_message(types.ShowMessageParams(kind, f"{name}: {said}"))
        return done

    kinds = {
        "key": types.CompletionItemKind.Property,
        "value": types.CompletionItemKind.Value,
        "op": types.CompletionItemKind.Class,
        "function": types.CompletionItemKind.Function,
        "symbol": types.CompletionItemKind.Variable,
        "type": types.CompletionItemKind.TypeParameter,
        "name": types.CompletionItemKind.Reference,
    }

    def complete(params: Any) -> Any:
        document = made.workspace.get_text_document(params.text_document.uri)
        at = params.position
        path = path_of(document.uri)
        found = completion.complete(path, document.source, at.line, at.character)
        row = document.source.split("\n")[at.line][: at.character]
        return types.CompletionList(
            len(found) >= completion.MAX_OPS,
            [
                types.CompletionItem(
                    item.label,
                    kind=kinds[item.kind],
                    detail=item.detail or None,
                    documentation=types.MarkupContent(types.MarkupKind.Markdown, item.documentation)
                    if item.documentation
                    else None,
                    sort_text=f"{n:05}",
                    insert_text_format=types.InsertTextFormat.Snippet,
                    text_edit=types.TextEdit(
                        span(_typed(row, item.label, at.line)), item.snippet or item.label
                    ),
                )
                for n, item in enumerate(found)
            ],
        )

    def signature(params: Any) -> Any:
        document = made.workspace.get_text_document(params.text_document.uri)
        at = params.position
        found = completion.signature(document.source, at.line, at.character)
        if found is None:
            return None
        said, number = found
        names = [types.ParameterInformation(name) for name in said.parameters]
        shown = types.SignatureInformation(
            str(said), documentation=said.documentation or None, parameters=names
        )
        return types.SignatureHelp([shown], active_signature=0, active_parameter=number)

    def actions(params: Any) -> Any:
        uri = params.text_document.uri
        text = made.workspace.get_text_document(uri).source
        out = []
        for fault in language.faults(path_of(uri), text):
            if not params.range.start.line <= fault.span.line - 1 <= params.range.end.line:
                continue
            for title, edits in symbols.fixes(fault, text):
                changes = {uri: [types.TextEdit(span(e.part), e.text) for e in edits]}
                out.append(
                    types.CodeAction(
                        title,
                        kind=types.CodeActionKind.QuickFix,
                        diagnostics=[diagnostic(fault)],
                        edit=types.WorkspaceEdit(changes=changes),
                    )
                )
        return out

    def name_at(params: Any) -> tuple[Any, str]:
        document = made.workspace.get_text_document(params.text_document.uri)
        at = params.position
        rows = document.source.split("\n")
        row = rows[at.line] if at.line < len(rows) else ""
        found = language.word_at(document.source, at.line, at.character)
        word = found[0] if found else ""
        for n in re.finditer(r"[a-z0-9]+(?:-[a-z0-9]+)+", row):  # the name of a rule
            if n.start() <= at.character <= n.end():
                word = n[0]
        return document, word

    def searched() -> Path | None:
        root = made.workspace.root_path
        return Path(root) if root else None

    def uri_of(path: str, document: Any) -> str:
        return str(document.uri if path == path_of(document.uri) else Path(path).as_uri())

    def references(params: Any) -> Any:
        document, word = name_at(params)
        path = path_of(document.uri)
        found = symbols.references(path, document.source, word, searched())
        return [types.Location(uri_of(e.path, document), span(e.part)) for e in found]

    def rename(params: Any) -> Any:
        document, word = name_at(params)
        path = path_of(document.uri)
        try:
            edits = symbols.rename(path, document.source, word, params.new_name, searched())
        except MlirulesError as error:
            raise JsonRpcInvalidParams(error.faults[0].message) from None
        changes: dict[str, list[Any]] = {}
        for e in edits:
            text_edit = types.TextEdit(span(e.part), e.text)
            changes.setdefault(uri_of(e.path, document), []).append(text_edit)
        return types.WorkspaceEdit(changes=changes)

    shapes = {
        "section": types.SymbolKind.Namespace,
        "symbol": types.SymbolKind.Variable,
        "line": types.SymbolKind.Operator,
        "test": types.SymbolKind.Method,
    }

    def shown_symbol(found: symbols.Symbol) -> Any:
        return types.DocumentSymbol(
            found.name,
            shapes[found.kind],
            span(found.part),
            span(found.part),
            detail=found.detail or None,
            children=[shown_symbol(inner) for inner in found.below],
        )

    def outline(params: Any) -> Any:
        uri = params.text_document.uri
        text = made.workspace.get_text_document(uri).source
        return [shown_symbol(found) for found in symbols.outline(path_of(uri), text)]

    def tidied(params: Any) -> Any:
        uri = params.text_document.uri
        text = made.workspace.get_text_document(uri).source
        after = language.tidy(path_of(uri), text)
        if after == text:
            return []
        rows = text.split("\n")
        whole = types.Range(types.Position(0, 0), types.Position(len(rows) - 1, len(rows[-1])))
        return [types.TextEdit(whole, after)]

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
        (types.TEXT_DOCUMENT_REFERENCES, references),
        (types.TEXT_DOCUMENT_RENAME, rename),
        (types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, outline),
        (types.TEXT_DOCUMENT_FORMATTING, tidied),
    )
    for name, function in features:
        made.feature(name)(function)
    opening = types.CompletionOptions(trigger_characters=[".", ":", "(", "[", " "])
    made.feature(types.TEXT_DOCUMENT_COMPLETION, opening)(complete)
    brackets = types.SignatureHelpOptions(trigger_characters=["(", ","])
    made.feature(types.TEXT_DOCUMENT_SIGNATURE_HELP, brackets)(signature)
    fixing = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
    made.feature(types.TEXT_DOCUMENT_CODE_ACTION, fixing)(actions)
    made.command(PREVIEW)(preview)
    made.command(RUN_TEST)(run_test)
    return made


def _typed(row: str, label: str, line: int) -> Any:
    """The part of a row that a completion replaces: what of it has been typed."""
    from mlirules.drivers.quality.editor import Part

    for length in range(min(len(row), len(label)), 0, -1):
        if label.startswith(row[-length:]):
            return Part(line, len(row) - length, len(row))
    return Part(line, len(row), len(row))


def path_of(uri: str) -> str:
    """The file that a URI names."""
    return unquote(urlparse(uri).path) or uri
