"""What an editor asks about a rule file: faults, what a word means, where it comes from, PDLL.

Plain functions of a file's text; :mod:`mlirules.commands.lsp` speaks the protocol around them.
Lines and columns count from 0, as in the protocol.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlirules.drivers.iree import compiler
from mlirules.drivers.quality.check import check_rule
from mlirules.generator.emit import pdll
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.format import formatted
from mlirules.language.loader import rules_of
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Rule
from mlirules.support import children
from mlirules.support.limits import Limits, limited

_WORD = re.compile(r"[A-Za-z_][\w.]*")
_OP = re.compile(r"(?<![\w.@%!#\"/-])([a-z][a-z0-9_]*\.[A-Za-z_][\w.]*)")

# Where the documentation of a dialect stands on the web.
_MLIR = "https://mlir.llvm.org/docs/Dialects/"
_PAGES = {
    "arith": "ArithOps",
    "math": "MathOps",
    "tensor": "TensorOps",
    "linalg": "Linalg",
    "memref": "MemRef",
    "scf": "SCFDialect",
    "vector": "Vector",
    "func": "Func",
    "transform": "Transform",
    "pdl": "PDLOps",
    "affine": "Affine",
    "complex": "ComplexOps",
    "cf": "ControlFlowDialect",
    "bufferization": "BufferizationOps",
    "shape": "ShapeDialect",
}


@dataclass(frozen=True)
class Part:
    """Part of a text: a line, its first column, and the one after its last."""

    line: int
    start: int
    end: int


def is_rule(text: str) -> bool:
    """Whether a file says that it holds a rule."""
    return re.search(r"^rule:", text, re.MULTILINE) is not None


def faults(path: str | Path, text: str) -> list[Fault]:
    """What `mlirules check` says of a file with this text; nothing for files without a rule."""
    return check_rule(path, text) if is_rule(text) else []


def word_at(text: str, line: int, column: int) -> tuple[str, Part] | None:
    """The word or op name at a place."""
    rows = text.split("\n")
    if line >= len(rows):
        return None
    for found in _WORD.finditer(rows[line]):
        if found.start() <= column <= found.end():
            word = found[0].rstrip(".")
            return word, Part(line, found.start(), found.start() + len(word))
    return None


def explanation(path: str | Path, text: str, word: str) -> str:
    """What a word of a rule means, in Markdown: an op, a function, a symbol; empty: nothing."""
    if "." in word:
        known, _ = compiler.op_oracle(word)
        if not known:
            return ""
        link = documentation_link(word)
        head = f"**{word}**" + (f" ([documentation]({link}))" if link else "")
        return f"{head}\n\n{compiler.op_documentation(word)}".strip()
    if word in FUNCTIONS:
        function = FUNCTIONS[word]
        return f"**{word}**: {function.doc}\n\n`{function.example}`"
    try:
        source = load_yaml(path, text)
        if spellings := _spellings(source.data, word):
            return f"**${word}**: " + ", ".join(f"`{n}`: `{said}`" for n, said in spellings)
        rules = rules_of(source)
    except MlirulesError:
        return ""
    for rule in rules:
        if word in rule.types:
            return f"**{word}**: `{rule.types[word][0]}`"
        for name, line, _, _ in rule.let:
            if name == word:
                return f"**{word}** = `{line}`"
        if word in rule.variables:
            one_of = rule.one_of.get(word)
            return f"**{word}**: " + (f"an op: `{one_of.line}`" if one_of else "any op")
    return ""


def _spellings(data: object, word: str) -> list[tuple[str, str]]:
    """How the alternatives of a family spell a word of its `with:`."""
    given = data.get("with") if isinstance(data, dict) else None
    found = given.get(word) if isinstance(given, dict) else None
    if isinstance(found, dict):
        return [(str(name), str(said)) for name, said in found.items()]
    return [(str(said), str(said)) for said in found] if isinstance(found, list) else []


def definition(path: str | Path, text: str, word: str) -> Part | None:
    """Where a symbol of a rule is declared: its line in `types:` or `let:`, else its first use."""
    try:
        source = load_yaml(path, text)
        if _spellings(source.data, word):
            span = source.span_at(("with", word), key=True)
            return Part(span.line - 1, span.column - 1, span.column - 1 + span.length)
        rules = rules_of(source)
    except MlirulesError:
        return None
    return next(filter(None, (_declared(rule, word) for rule in rules)), None)


def _declared(rule: Rule, word: str) -> Part | None:
    """Where one rule declares a symbol."""
    lines = [rule.types[word][0]] if word in rule.types else []
    lines += [line for name, line, _, _ in rule.let if name == word]
    if not lines:
        lines = [
            line
            for line, _ in rule.types.values()
            if re.search(rf"\b{re.escape(word)}\b", str(line))
        ]
        lines += [p.line for p in rule.match if word in p.equation.results]
    if not lines:
        return None
    span = lines[0].span
    return Part(span.line - 1, span.column - 1, span.column - 1 + span.length)


def documentation_link(op: str) -> str:
    """The web page that documents an op; empty when none is known."""
    dialect, _, rest = op.partition(".")
    if op.startswith(("torch.aten.", "torch.prims.")):
        name = rest.split(".")[1].strip("_")
        return f"https://docs.pytorch.org/docs/stable/generated/torch.{name}.html"
    if dialect in _PAGES:
        joined = op.replace(".", "")
        return f"{_MLIR}{_PAGES[dialect]}/#{joined}-{joined.replace('_', '')}op"
    if dialect.startswith("iree_"):
        name = "".join(part.capitalize() for part in dialect.split("_")).replace("Iree", "IREE")
        return f"https://iree.dev/reference/mlir-dialects/{name}/"
    return ""


def links(text: str) -> list[tuple[Part, str]]:
    """The ops that a rule names, each with the page that documents it."""
    out = []
    for n, row in enumerate(text.split("\n")):
        if row.lstrip().startswith("#"):
            continue
        for found in _OP.finditer(row):
            op = found[1].rstrip(".")
            link = documentation_link(op)
            if link:
                out.append((Part(n, found.start(1), found.start(1) + len(op)), link))
    return out


def preview(path: str | Path, text: str) -> str:
    """The PDLL generated from a rule file. Raises :class:`MlirulesError` where it is wrong."""
    rules = rules_of(load_yaml(path, text), ops=compiler.op_oracle)
    return pdll.pdll(rules, origin=Path(path).name)


def tidy(path: str | Path, text: str) -> str:
    """The text as `mlirules fmt` writes it; as it is where it is no YAML."""
    try:
        return formatted(path, text)
    except MlirulesError:
        return text


#: Of a test that is run from an editor: processor time, and seconds in all.
_LIMITS = Limits(cpu_s=120, wall_s=120.0)


def run_test(path: str | Path, text: str, name: str) -> dict[str, Any]:
    """Run one inline test of a rule as it stands in the editor, in a child process with limits.

    Returns ``passed``, ``problems`` and ``skipped``.
    """
    asked = json.dumps({"path": str(path), "text": text, "name": name})
    command = children.python("mlirules.drivers.quality.editor:_child")
    try:
        done = children.run(limited(command, _LIMITS), stdin=asked, timeout=_LIMITS.wall_s)
        if done.status == 0:
            found: dict[str, object] = json.loads(done.stdout)
            return found
        said = done.ending
    except children.TimedOut as out:
        said = str(out)
    return {"passed": False, "problems": [f"the test's process ended: {said}"], "skipped": []}


def _child() -> None:
    from mlirules.drivers.quality.ruletest import run_test as run

    asked = json.load(sys.stdin)
    try:
        source = load_yaml(asked["path"], asked["text"])
        rules = rules_of(source, ops=compiler.op_oracle)
        # Several members of a family may have it.
        found = [(r, t) for r in rules for t in r.tests if t.name == asked["name"]]
    except MlirulesError as error:
        said: dict[str, object] = {"passed": False, "problems": [str(error)], "skipped": []}
    else:
        results = [run(*each) for each in found]
        several = len(results) > 1
        said = {
            "passed": bool(results) and all(result.passed for result in results),
            "problems": [
                f"{rule.name}: {problem}" if several else problem
                for (rule, _), result in zip(found, results, strict=True)
                for problem in result.problems
            ],
            "skipped": [skipped for result in results for skipped in result.skipped],
        }
        if not results:
            said["problems"] = [f"there is no test {asked['name']!r}"]
    sys.stdout.write(json.dumps(said))
