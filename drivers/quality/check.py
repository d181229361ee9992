"""Checking rule files as far as it goes without applying them.

To what the loader finds this adds what only the compiler knows (op names, the MLIR of the tests)
and what FileCheck would misread in silence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree import target_facts as targetfacts
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.quality.remarks import unequal_sizes
from mlirules.drivers.tuning_specs.compile import unmatchable
from mlirules.language.config_loader import config_of
from mlirules.language.family import members
from mlirules.language.faults import Fault, MlirulesError, did_you_mean
from mlirules.language.loader import kind_of, rules_of
from mlirules.language.reading import load_yaml
from mlirules.language.reference import faults as reference_faults
from mlirules.language.reference import root_op
from mlirules.language.rule import Rule
from mlirules.language.source import SourceFile, Text

# The compiler's parser is recursive, and it runs in this process: what nests deeper may overflow
# its stack. Aliases of aliases may grow beyond all memory when a diagnostic prints them.
MAX_MLIR_NESTING = 100
MAX_MLIR_OPERATORS = 200
MAX_MLIR_ALIASES = 16

_DIRECTIVE = re.compile(r"(?P<prefix>CHECK[A-Z0-9-]*)(?P<colon>\s*:)?")
_SUFFIXES = ("", "-NEXT", "-SAME", "-NOT", "-DAG", "-LABEL", "-EMPTY")
_COUNT = re.compile(r"CHECK-COUNT-([1-9][0-9]*)")
_LITERAL = re.compile(r"\{LITERAL\}")


def check_rule(
    path: str | Path, text: str | None = None, session: Session | None = None
) -> list[Fault]:
    """All faults of one rule file, in the order of its lines; an empty list when it has none.

    Beside what :func:`~mlirules.language.loader.load_rule` finds: op names that the installed
    compiler lacks, MLIR in the tests that does not parse or verify, FileCheck lines that would
    check nothing, unknown targets. ``text`` is read instead of the file when given. Nothing is
    written and no rule is applied. Programs are parsed in ``session`` (default: that of this
    thread), here and below.
    """
    try:
        source = load_yaml(path, text)
    except MlirulesError as error:
        return error.faults
    return check_source(source, session)[0]


def check_source(
    source: SourceFile, session: Session | None = None
) -> tuple[list[Fault], list[Rule]]:
    """As :func:`check_rule` for a file that was read, and its rewrite rules where it has no fault.

    A config rule is none of those.
    """
    session = session or current()
    faults: list[Fault] = []
    rules: list[Rule] = []
    held = [source]
    try:
        if kind_of(source) == "config":
            faults += unmatchable(config_of(source, facts=targetfacts.facts))
        else:
            held = members(source)
            rules = rules_of(source, ops=compiler.op_oracle)
            for rule in rules:
                faults += [
                    *unequal_sizes(rule),
                    *_idle_tests(rule, session),
                    *reference_faults(rule),
                ]
                faults += _without_reference(rule)
            # What one member of a family leaves unread, another may read.
            idle = [set(_unused(rule)) for rule in rules]
            faults += set.intersection(*idle)
    except MlirulesError as error:
        faults.extend(error.faults)
    known = {fault.span.line for fault in faults}
    found = [fault for member in held for fault in _deeper(member, session)]
    faults += [f for f in found if f.span.line not in known]
    faults = sorted(dict.fromkeys(faults), key=lambda f: (f.span.line, f.span.column, f.code))
    return faults, [] if any(f.severity == "error" for f in faults) else rules


def _deeper(source: SourceFile, session: Session) -> Iterator[Fault]:
    data = source.data
    if not isinstance(data, dict):
        return
    targets = data.get("targets")
    for i, target in enumerate(targets if isinstance(targets, list) else []):
        if isinstance(target, str) and kind_of(source) != "config":  # those are checked above
            yield from _target(source.text_at(("targets", i)))
    tests = data.get("tests")
    for i, test in enumerate(tests if isinstance(tests, list) else []):
        if not isinstance(test, dict):
            continue
        for key in ("input", "unchanged"):
            if isinstance(test.get(key), str):
                yield from mlir_faults(source.text_at(("tests", i, key)), session)
        if isinstance(test.get("check"), str):
            yield from check_line_faults(source.text_at(("tests", i, "check")))


def _idle_tests(rule: Rule, session: Session) -> Iterator[Fault]:
    """Programs that hold no op that the rule looks at."""
    for i, test in enumerate(rule.tests):
        key = "input" if test.input is not None else "unchanged"
        text = rule.source.text_at(("tests", i, key))
        if mlir_faults(text, session):
            continue  # told by itself
        module = compiler.parse(text.value, rule.path, session.context)
        if any(rule.looks_at(op.name, test.because) for op in ops_below(module.operation)):
            continue
        at = rule.source.span_at(("tests", i, key), key=True)
        if key == "input":
            yield Fault(
                at,
                "test-cannot-apply",
                f"the program holds no {rule.root_ops[0]}: the rule has nothing to apply to",
                "let it hold the ops of `match:`",
            )
        else:
            yield Fault(
                at,
                "test-cannot-fail",
                f"the program holds no {rule.root_ops[0]}: "
                "whatever the rule does, it stays as it is",
                "let it hold one that the rule refuses, and say `because:` of which line; a rule "
                "that nothing refuses needs no such test",
            )


def _without_reference(rule: Rule) -> Iterator[Fault]:
    """Tests that compare the numbers of a custom op, of which nobody says what it computes."""
    if not rule.match or rule.root.op != "torch.operator" or rule.doc.reference is not None:
        return
    for i, test in enumerate(rule.tests):
        if test.run is None or test.run.expect is not None:
            continue
        yield Fault(
            rule.source.span_at(("tests", i, "run"), key=True),
            "no-reference",
            f"nothing says what {root_op(rule) or 'the op'} computes: the compiler does not know "
            "custom ops",
            "give the rule `reference: FILE.py:FUNCTION`, or `run:` the `inputs:` and what to "
            "`expect:`",
        )


def _unused(rule: Rule) -> Iterator[Fault]:
    """Names of `let:` that nothing reads."""
    data = rule.source.data
    if not rule.let or not isinstance(data, dict):
        return
    sections = ("types", "match", "where", "rewrite", "kernel")
    words: Counter[str] = Counter()
    for section in sections:
        words.update(_words(data.get(section)))
    for _, line, _, _ in rule.let:
        words.update(re.findall(r"\w+", str(line)))
    for name, line, _, _ in rule.let:
        own = re.findall(r"\w+", str(line)).count(name)
        if words[name] <= own:
            yield Fault(
                rule.source.span_at(("let", name), key=True),
                "unused",
                f"nothing reads {name!r}",
                "remove it, or use it in a condition or in the rewrite",
                "warning",
            )


def _words(value: object) -> Iterator[str]:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield from re.findall(r"\w+", item)
        elif isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            left += item


def _target(text: Text) -> Iterator[Fault]:
    try:
        Target.parse(text.value)
    except MlirulesError as error:
        for fault in error.faults:
            yield Fault(text.span(), "target", fault.message, fault.suggestion)


def mlir_faults(text: Text, session: Session | None = None) -> list[Fault]:
    """The faults of MLIR text that stands in a file, located in that file."""
    if not text.value.strip():
        return [Fault(text.span(), "mlir", "the program is empty", "write a func.func")]
    unsafe = _unsafe(text.value)
    if unsafe is not None:
        offset, message = unsafe
        return [Fault(text.span(offset, 1), "mlir", message)]
    try:
        compiler.parse(text.value, text.source.path, (session or current()).context)
    except MlirulesError as error:
        starts = [0, *(m.end() for m in re.finditer("\n", text.value))]
        return [_moved(fault, text, starts) for fault in error.faults]
    return []


def _moved(fault: Fault, text: Text, starts: list[int]) -> Fault:
    line, column = fault.span.line, fault.span.column
    if not 1 <= line <= len(starts):
        return Fault(text.span(), fault.code, fault.message, fault.suggestion)
    start = starts[line - 1]
    row = text.value[start:].split("\n", 1)[0]
    # The compiler counts bytes.
    before = len(row.encode()[: column - 1].decode(errors="ignore"))
    offset = start + before
    word = re.match(r'[\w.!%@#$-]+|"[^"\n]*"', text.value[offset:])
    span = text.span(offset, len(word[0]) if word else 1)
    return Fault(span, fault.code, fault.message, fault.suggestion)


_STRUCTURE = re.compile(
    r"(?P<open>[(\[{<])|(?P<arrow>->)|(?P<close>[)\]}>])|(?P<end>[,=:])"
    r"|(?P<operator>[-+*]|\b(?:mod|floordiv|ceildiv)\b)"
)
_ALIAS = re.compile(r"^[ \t]*([#!][A-Za-z_]\w*)[ \t]*=", re.MULTILINE)


def _unsafe(text: str) -> tuple[int, str] | None:
    """Where MLIR text is too much for a recursive parser, and why; strings are not left out."""
    depth = operators = 0
    for found in _STRUCTURE.finditer(text):
        match found.lastgroup:
            case "open":
                depth, operators = depth + 1, 0
            case "close":
                depth, operators = max(0, depth - 1), 0
            case "operator":
                operators += 1
            case _:
                operators = 0
        if depth > MAX_MLIR_NESTING:
            return found.start(), f"nested more than {MAX_MLIR_NESTING} levels deep"
        if operators > MAX_MLIR_OPERATORS:
            return found.start(), f"more than {MAX_MLIR_OPERATORS} operators in a row"
    levels: dict[str, int] = {}
    aliases = list(_ALIAS.finditer(text))
    ends = [*(found.start() for found in aliases[1:]), len(text)]
    for found, end in zip(aliases, ends, strict=False):
        used = re.findall(r"[#!][A-Za-z_]\w*", text[found.end() : end])
        level = levels[found[1]] = 1 + max((levels.get(name, 0) for name in used), default=0)
        if level > MAX_MLIR_ALIASES:
            return found.start(1), f"aliases of aliases more than {MAX_MLIR_ALIASES} levels deep"
    return None


# ---- FileCheck lines -------------------------------------------------------------------------


def check_line_faults(text: Text) -> list[Fault]:
    """What FileCheck would misread in the lines of a `check:`, located in their file."""
    faults: list[Fault] = []

    def fault(offset: int, length: int, message: str, hint: str = "") -> None:
        faults.append(Fault(text.span(offset, length), "filecheck", message, hint))

    known = [f"CHECK{s}" for s in _SUFFIXES]
    defined: set[str] = set()
    first = True
    starts = [0, *(m.end() for m in re.finditer("\n", text.value))]
    for start, row in zip(starts, text.value.split("\n"), strict=True):
        at = start + len(row) - len(row.lstrip())
        words = row.strip()
        if not words:
            continue
        found = _DIRECTIVE.search(row)
        if not found:
            if not words.startswith(("//", "#")):
                near = re.match(r"[A-Za-z-]*", words)
                hint = did_you_mean(near[0].upper() if near else "", known)
                hint = hint or f"write CHECK: {words[:40]}"
                fault(at, len(words), "this line checks nothing", hint)
            continue
        offset, prefix = start + found.start(), found["prefix"]
        if not _known(prefix):
            fault(
                offset,
                len(prefix),
                f"FileCheck has no directive {prefix!r}",
                did_you_mean(prefix, known) or "known: " + ", ".join(known),
            )
            continue
        rest = row[found.end() :]
        modifier = _LITERAL.match(rest)
        if found["colon"] is None and modifier:
            rest = rest[modifier.end() :].removeprefix(":")
        elif found["colon"] is None:
            fault(
                offset,
                len(prefix),
                f"{prefix} without its colon is only a comment",
                f"write {prefix}:",
            )
            continue
        elif found["colon"] != ":":
            fault(
                offset,
                len(prefix),
                f"FileCheck ignores {prefix!r} when a blank precedes the colon",
                f"write {prefix}:",
            )
            continue
        if first and prefix in ("CHECK-NEXT", "CHECK-SAME", "CHECK-EMPTY"):
            fault(
                offset,
                len(prefix),
                f"{prefix} cannot stand first",
                "it continues the match of a line before it",
            )
        first = False
        if prefix == "CHECK-EMPTY":
            continue
        if not rest.strip():
            fault(
                offset,
                len(prefix),
                f"{prefix}: matches anything: no pattern follows",
                "write what must be there",
            )
            continue
        if not modifier:
            _pattern(rest, start + len(row) - len(rest), defined, fault)
    return faults


def _known(prefix: str) -> bool:
    return prefix.removeprefix("CHECK") in _SUFFIXES or bool(_COUNT.fullmatch(prefix))


class _Say(Protocol):
    """Notes a fault: where it begins, how long it is, what it is, what helps."""

    def __call__(self, offset: int, length: int, message: str, hint: str = "", /) -> None: ...


def _pattern(rest: str, base: int, defined: set[str], fault: _Say) -> None:
    """Check the ``{{regex}}`` and ``[[VARIABLE]]`` parts of one pattern."""
    at = 0
    while True:
        opened = re.compile(r"\{\{|\[\[").search(rest, at)
        if not opened:
            return
        close = "}}" if opened.group() == "{{" else "]]"
        end = rest.find(close, opened.end())
        if end < 0:
            fault(base + opened.start(), 2, f"{opened.group()!r} is not closed", f"write {close}")
            return
        if close == "}}":
            while rest.startswith("}}}", end):  # `}` may be the regex's own last character
                end += 1
            _regex(rest[opened.end() : end], base + opened.end(), fault)
        else:
            while rest.startswith("]]]", end):
                end += 1
            inner = rest[opened.end() : end]
            variable = re.match(r"\$?[A-Za-z_]\w*", inner)
            if not inner.startswith("#"):
                name = variable[0] if variable else ""
                tail = inner[len(name) :]
                if not name or (tail and not tail.startswith(":")):
                    fault(
                        base + opened.start(),
                        end + 2 - opened.start(),
                        f"[[{inner}]] is no variable",
                        "write [[NAME:regex]] to define one, [[NAME]] to use it; "
                        "quote brackets as {{\\[\\[}}",
                    )
                elif tail:
                    _regex(tail[1:], base + opened.end() + len(name) + 1, fault)
                    defined.add(name)
                elif name not in defined:
                    hint = did_you_mean(name, defined) or f"define it: [[{name}:regex]]"
                    fault(base + opened.end(), len(name), f"{name} is not defined yet", hint)
        at = end + 2


def _regex(pattern: str, base: int, fault: _Say) -> None:
    # POSIX classes are not Python's; everything else that can be wrong is wrong in both.
    plain = re.sub(r"\[:\w+:\]", lambda m: "a" * len(m.group()), pattern)
    try:
        re.compile(plain)
    except (re.error, RecursionError, OverflowError) as error:
        offset = getattr(error, "pos", None) or 0
        fault(base + offset, 1, f"the regular expression is wrong: {getattr(error, 'msg', error)}")
