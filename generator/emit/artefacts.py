"""What a rule set becomes on disk: PDLL and PDL, readable and the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlirules.generator import names
from mlirules.generator.emit import configuration, inductor, pdll, transform_spec
from mlirules.generator.emit import tuning_spec as tuning
from mlirules.generator.emit.standalone import standalone_pdll
from mlirules.generator.render import Templates, shipped
from mlirules.language import outputs
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.rule import Rule

#: The template of a file of PDL.
PDL = "pdl.mlir.j2"
#: The templates that each form comes from: PDL is PDLL that mlir-pdll has compiled.
FORMS = {
    "pdll": (pdll.TEMPLATE,),
    "pdl": (pdll.TEMPLATE, PDL),
    "transform": (transform_spec.TEMPLATE,),
    "tuning-spec": (tuning.TEMPLATE, configuration.TEMPLATE),
    "inductor": (inductor.TEMPLATE,),
}


@dataclass
class Artefacts:
    """Files by their path below the output folder, and what could not be said in which form."""

    files: dict[str, str] = field(default_factory=dict)
    refused: list[tuple[str, Fault]] = field(default_factory=list)


def stem_of(path: str) -> str:
    """A rule set's name as a file name: ``torch/to-linalg`` becomes ``torch-to-linalg``."""
    given = Path(path)
    if given.name in ("", ".."):  # a folder that is named by where it is
        given = given.resolve()
    parts = [p for p in given.with_suffix("").parts if p not in ("/", "..", ".")]
    return "-".join(parts[-2:]) or "rules"


def check_forms(forms: Iterable[str]) -> list[str]:
    """The forms asked for. Raises :class:`MlirulesError` for one that there is not."""
    chosen = list(dict.fromkeys(forms))
    for form in chosen:
        if form not in FORMS:
            raise MlirulesError(
                Fault(
                    Span("--to"),
                    "form",
                    f"there is no form {form!r}",
                    did_you_mean(form, FORMS) or "known: " + ", ".join(FORMS),
                )
            )
    return chosen


def artefacts(
    rules: Sequence[Rule],
    name: str,
    forms: Sequence[str],
    *,
    per_rule: bool = False,
    folder: Path = Path(),
    templates: Templates | None = None,
) -> Artefacts:
    """The artefacts of one rule set called ``name``.

    ``pdll`` and ``pdl`` are what the drivers run: conditions and results are natives. With ``pdl``
    every rule that needs no native comes as ``NAME/standalone/RULE.pdl.mlir`` too, and those of
    them that need no torch op as ``NAME.pdl-spec.mlir`` with the flags that give it to
    ``iree-compile``; ``folder`` is where the files will lie.
    """
    made = Artefacts()
    groups = [(f"{name}/{rule.name}", [rule]) for rule in rules] if per_rule else [(name, rules)]
    for stem, group in groups:
        if "inductor" in forms:
            _inductor(group, stem, made, f"the rule set {name}", templates)
        if not {"pdll", "pdl"} & set(forms):
            continue
        text = pdll.pdll(group, origin=f"the rule set {name}", templates=templates)
        if "pdll" in forms:
            made.files[f"{stem}.pdll"] = text
        if "pdl" in forms:
            compiled = pdll.compile_pdll(text)
            made.files[f"{stem}.pdl.mlir"] = _pdl_file(group, compiled, "driver", templates)
    if "pdl" in forms:
        _standalone(rules, name, made, folder, templates)
    return made


def _inductor(
    rules: Sequence[Rule], stem: str, made: Artefacts, origin: str, templates: Templates | None
) -> None:
    text, said, faults = inductor.inductor(rules, origin=origin, templates=templates)
    made.refused += [("inductor", fault) for fault in faults]
    if said:
        folder, _, file = stem.rpartition("/")
        module = re.sub(r"\W", "_", file)
        made.files[f"{folder}/{module}_inductor.py" if folder else f"{module}_inductor.py"] = text


def tuning_specs(
    rules: Sequence[ConfigRule],
    name: str,
    *,
    folder: Path = Path(),
    templates: Templates | None = None,
) -> Artefacts:
    """A tuning spec for each kind of target that the config rules are for.

    Beside it the flag by which the compiler takes it; ``folder`` is where the files will lie.
    """
    made = Artefacts()
    kinds = sorted({kind for rule in rules for kind in rule.kinds})
    for kind in kinds:
        chosen = [rule for rule in rules if kind in rule.kinds]
        module = re.sub(r"\W", "_", name)
        file = f"{name}.{kind}.mlir"
        made.files[file] = tuning.tuning_spec(chosen, name=module, kind=kind, templates=templates)
        made.files[f"{name}.{kind}.flags"] = tuning.hook(kind, (folder / file).as_posix()) + "\n"
    return made


def templates_of(forms: Iterable[str]) -> set[str]:
    """The templates that forms come from."""
    return {template for form in forms for template in FORMS[form]}


def _pdl_file(rules: Sequence[Rule], text: str, reader: str, templates: Templates | None) -> str:
    """PDL with what it was made from, for a reader: ``driver``, ``opt`` or ``compile``."""
    shown = [{"name": rule.name, "location": names.location(rule)} for rule in rules]
    return (templates or shipped()).render(PDL, rules=shown, pdl=text, reader=reader)


def _standalone(
    rules: Sequence[Rule], name: str, made: Artefacts, folder: Path, templates: Templates | None
) -> None:
    late = []
    for rule in rules:
        try:
            text = pdll.compile_pdll(standalone_pdll(rule, templates=templates))
        except MlirulesError as error:
            made.refused += [("standalone pdl", fault) for fault in error.faults]
            continue
        file = f"{name}/standalone/{rule.name}.pdl.mlir"
        made.files[file] = _pdl_file([rule], text, "opt", templates)
        made.files[f"{name}/standalone/{rule.name}.iree-opt.flags"] = (
            "--pass-pipeline=builtin.module(iree-preprocessing-apply-pdl-patterns"
            f"{{patterns-file={(folder / file).as_posix()}}})\n"
        )
        if not any(op.startswith("torch") for op in rule.op_names | rule.produced_ops):
            late.append(rule)
    if late:
        file = f"{name}.pdl-spec.mlir"
        text = pdll.compile_pdll(standalone_pdll(late, templates=templates))
        made.files[file] = _pdl_file(late, text, "compile", templates)
        made.files[f"{name}.pdl.flags"] = flags_file("pdl", folder / file)


def flags_file(form: str, path: Path) -> str:
    """What ``iree-compile @FILE`` reads to apply a spec (``pdl`` or ``transform``) at ``path``."""
    return f"--iree-preprocessing-{form}-spec-filename={path.as_posix()}\n"


def write(made: Artefacts, folder: Path) -> dict[str, bool]:
    """Write the files that are not there already with the same text; tells which."""
    files = sorted(made.files.items())
    return {name: outputs.write_changed(folder / name, text) for name, text in files}
