"""What a search found, as config rules: files that compile the program with what won."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning import dispatches
from mlirules.drivers.tuning.dispatches import Root
from mlirules.language import outputs
from mlirules.language.config.model import ConfigDoc, ConfigTest, Match, Measured, Settings
from mlirules.language.config.op import ConfigRule
from mlirules.language.config.write import write_config
from mlirules.language.config_loader import load_config
from mlirules.language.faults import MlirulesError

_OPERATORS = {
    "addf": "+",
    "addi": "+",
    "subf": "-",
    "subi": "-",
    "mulf": "*",
    "muli": "*",
    "divf": "/",
}
_CALLS = {
    "maximumf": "max",
    "maxsi": "max",
    "minimumf": "min",
    "minsi": "min",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "absf": "abs",
    "erf": "erf",
    "sin": "sin",
    "cos": "cos",
}


@dataclass(frozen=True)
class Winner:
    """A configuration that was measured to be faster than the default.

    ``default_ms`` and ``tuned_ms`` are medians of paired runs, ``spread`` is relative.
    """

    root: Root
    settings: Settings
    default_ms: float
    tuned_ms: float
    spread: float
    runs: int
    device: str
    noise: float
    tried: int
    flags: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """How many times as fast as the default."""
        return self.default_ms / self.tuned_ms


def rule_name(root: Root, target: Target) -> str:
    """A name that says op, shape, types and target."""
    kind = {"contraction": "matmul", "convolution": "conv"}.get(root.kind, root.kind)
    if root.kind == "contraction" and [i[-1] for i in root.indices[:2]] == ["k", "k"]:
        kind = "mmt"
    types = "-".join(dict.fromkeys(root.elements))
    where = target.name.replace(":", "-").replace("_", "-")
    return re.sub(r"[^a-z0-9-]", "", f"{kind}-{root.shape}-{types}-{where}".lower())


def match_of(root: Root) -> Match:
    """The op as a rule matches it. Raises MlirulesError for one that a rule cannot say."""
    data: dict[str, object] = {"dims": dict(root.extent)}
    if root.kind == "attention":
        if len(root.operands) != 5:
            raise MlirulesError.at(root.op, "no rule says this kind of attention", code="tuning")
        names = ["q", "k", "v", "scale", "o"]
        reads = ", ".join(_access(n, root.indices[i]) for i, n in enumerate(names[:3]))
        data |= {
            "op": "attention",
            "compute": f"{_access('o', root.indices[4])} = attention({reads})",
            "types": {n: e for n, e in zip(names, root.elements, strict=True) if n != "scale"},
        }
    else:
        names = [*"abcdeg"[: len(root.operands) - 1], "y"]
        op = root.kind if root.kind in ("contraction", "convolution") else "generic"
        data |= {
            "op": op,
            "compute": _equation(root, names),
            "types": dict(zip(names, root.elements, strict=True)),
        }
    data["loops"] = list(root.loops)
    return Match.model_validate(data)


def _access(name: str, indices: Sequence[str]) -> str:
    return f"{name}[{', '.join(i.replace('+', ' + ') for i in indices)}]"


def _equation(root: Root, names: Sequence[str]) -> str:
    out = _access(names[-1], root.indices[-1])
    reads = [_access(n, i) for n, i in zip(names, root.indices, strict=True)]
    if root.kind in ("contraction", "convolution"):
        return f"{out} += {reads[0]} * {reads[1]}"
    if root.results != 1 or root.captured:
        raise MlirulesError.at(root.op, "no rule says this computation", code="tuning")
    values: dict[str, str] = {}
    found = re.search(r"\^bb0\(([^)]*)\)", root.region)
    arguments = re.findall(r"(%\w+)\s*:", found[1]) if found else []
    values.update(zip(arguments, reads, strict=True))
    result = ""
    for name, op, operands in re.findall(
        r'(%\w+) = "?(?:arith|math)\.(\w+)"?[ (]([^:<]*?)\)?(?: fastmath<\w+>)?(?: <\{.*?\}>)? :',
        root.region,
    ):
        given = [values.get(o) for o in re.findall(r"%\w+", operands)]
        if None in given:
            raise MlirulesError.at(root.op, "no rule says this computation", code="tuning")
        texts = [g for g in given if g is not None]
        if op in _OPERATORS and len(texts) == 2:
            values[name] = f"({texts[0]} {_OPERATORS[op]} {texts[1]})"
        elif op in _CALLS:
            values[name] = f"{_CALLS[op]}({', '.join(texts)})"
        else:
            raise MlirulesError.at(root.op, f"no rule says {op}", code="tuning")
    yielded = re.search(r'linalg\.yield"?[ (](%\w+)', root.region)
    result = values.get(yielded[1], "") if yielded else ""
    if not result:
        raise MlirulesError.at(root.op, "no rule says this computation", code="tuning")
    if not root.reductions:
        return f"{out} = {_bare(result)}"
    for operator in ("+", "*"):
        for text in (f"({out} {operator} ", f" {operator} {out})"):
            if result.startswith(text) and text.startswith("("):
                return f"{out} {operator}= {_bare(result[len(text) : -1])}"
            if result.endswith(text) and not text.startswith("("):
                return f"{out} {operator}= {_bare(result[1 : -len(text)])}"
    for call in ("max", "min"):
        for head, tail in ((f"{call}({out}, ", ")"), (f"{call}(", f", {out})")):
            if result.startswith(head) and result.endswith(tail):
                return f"{out} {call}= {_bare(result[len(head) : -len(tail)])}"
    raise MlirulesError.at(root.op, "no rule says this reduction", code="tuning")


def _bare(text: str) -> str:
    """``text`` without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for index, char in enumerate(text):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0 and index < len(text) - 1:
            return text
    return text[1:-1]


def document(winner: Winner, target: Target) -> ConfigDoc:
    """The rule of a winner, with its measurement and with tests of its own."""
    root = winner.root
    changed = root.loops[-1] if root.kind != "convolution" else "c"
    # Whatever the size is, another one must be left alone.
    other = dispatches.program(root, {changed: 2 * root.extent[changed]})
    notes = [
        f"Found by `mlirules tune`; {winner.tried} configurations were tried. "
        f"The default's own repeats differed by {winner.noise:.1%}."
    ]
    if winner.flags:
        notes.append(f"Measured with these flags for the compiler: {' '.join(winner.flags)}")
    return ConfigDoc(
        rule=rule_name(root, target),
        kind="config",
        summary=f"A measured configuration of {root.title} on {target}.",
        reason=f"{winner.speedup:.2f} times as fast as the default, measured in turns with it.",
        tags=["tuned"],
        targets=[target.name],
        match=match_of(root),
        set=winner.settings,
        measured=Measured(
            device=winner.device,
            compiler=compiler.version(),
            default_ms=_digits(winner.default_ms),
            tuned_ms=_digits(winner.tuned_ms),
            spread=round(winner.spread, 4),
            runs=max(1, winner.runs),
        ),
        tests=[
            ConfigTest(name="the op itself", input=dispatches.program(root)),
            ConfigTest(
                name=f"another {changed} is left alone", unchanged=other, because=f"dims.{changed}"
            ),
        ],
        notes="\n\n".join(notes),
    )


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def rules_of(winners: Sequence[Winner], target: Target) -> list[tuple[ConfigRule, str]]:
    """Checked rules with their YAML, one for each winner.

    Raises MlirulesError for a winner that a rule cannot say.
    """
    from mlirules.drivers.iree import target_facts as targetfacts

    out = []
    for winner in winners:
        text = write_config(document(winner, target))
        name = f"{rule_name(winner.root, target)}.yaml"
        out.append((load_config(name, text, facts=targetfacts.facts), text))
    return out


def write_rules(rules: Sequence[tuple[ConfigRule, str]], folder: Path) -> list[Path]:
    """Write rules into a folder, one file each; a file is written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rule, text in rules:
        path = folder / f"{rule.name}.yaml"
        outputs.write(path, text.encode())
        paths.append(path)
    return paths
