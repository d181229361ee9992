"""``mlirules generate``: rule sets as PDLL and PDL files, config rules as tuning specs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mlirules.commands.common import (
    Json,
    Only,
    Skip,
    TrustNative,
    note,
    progress,
    say,
    say_json,
    split,
    warn,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

EXAMPLE = "mlirules generate torch/to-linalg --to pdll,pdl -o generated"


def command(
    rules: Annotated[list[str], Argument(help="Rule sets: shipped names, files or folders.")],
    to: Annotated[
        list[str] | None,
        Option("--to", help="Forms: pdll, pdl, transform, tuning-spec, inductor. [pdll,pdl]"),
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="The folder.")] = Path("generated"),
    per_rule: Annotated[
        bool, Option("--per-rule", help="One file a rule instead of one a rule set.")
    ] = False,
    program: Annotated[
        Path | None,
        Option(
            "--for",
            help="Write the transform spec for this program: every condition can then be checked.",
        ),
    ] = None,
    target: Annotated[
        str, Option(help="The target that --for is compiled for up to preprocessing.")
    ] = "cpu",
    may_idle: Annotated[
        bool,
        Option(
            "--may-idle", help="Let a compilation pass in which the transform spec applied nothing."
        ),
    ] = False,
    templates: Annotated[
        Path | None,
        Option(
            help="A folder of Jinja templates that take the place of shipped ones: rules.pdll.j2, "
            "pdl.mlir.j2, transform-spec.mlir.j2, tuning-spec.mlir.j2, configuration.mlir.j2, "
            "inductor.py.j2."
        ),
    ] = None,
    only: Only = None,
    skip: Skip = None,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Write what a rule set becomes for MLIR, one set of files for each rule set given.

    ``iree-compile MODEL.mlir @DIR/NAME.transform.flags ...`` applies a transform spec without
    Python, and fails when it applied nothing.

    Files are written only when their text changes. Rules that a form cannot say are listed with
    the line that asks for more; exits with 1 when nothing at all could be said in a form.
    """
    from mlirules.drivers.apply.engine import select
    from mlirules.drivers.pipelines import preprocessing as transformspec
    from mlirules.drivers.pipelines.transform import rule_set
    from mlirules.drivers.tuning_specs.compile import config_set
    from mlirules.generator.emit import artefacts as forms
    from mlirules.generator.emit import pdll
    from mlirules.generator.render import Templates

    chosen = forms.check_forms(split(to) or ["pdll", "pdl"])
    styles = Templates(templates)
    styles.check(forms.templates_of(forms.FORMS), forms.templates_of(chosen))
    written: dict[str, bool] = {}
    made = forms.Artefacts()
    if program is not None and "transform" not in chosen:
        raise MlirulesError.at(
            "--for",
            "only a transform spec is written for a program",
            code="option",
            suggestion="add --to transform",
        )
    module = transformspec.read_for(program, target) if program is not None else None
    with progress("generating", len(rules)) as step:
        for path in rules:
            step(path)
            parts = []
            if "tuning-spec" in chosen:
                parts.append(
                    forms.tuning_specs(
                        config_set([path]), forms.stem_of(path), folder=output, templates=styles
                    )
                )
            rewrites = [form for form in chosen if form != "tuning-spec"]
            if rewrites:
                loaded = select(list(rule_set((path,))), split(only), split(skip))
                parts.append(
                    forms.artefacts(
                        loaded,
                        forms.stem_of(path),
                        rewrites,
                        per_rule=per_rule,
                        folder=output,
                        templates=styles,
                    )
                )
                if "transform" in chosen:
                    spec = transformspec.transform_spec(
                        loaded,
                        forms.stem_of(path),
                        program=module,
                        require=not may_idle,
                        kind=target.partition(":")[0],
                        templates=styles,
                    )
                    parts.append(transformspec.artefacts(spec, forms.stem_of(path), output))
            for one in parts:
                written |= forms.write(one, output)
                made.files |= one.files
                made.refused += one.refused
    if as_json:
        say_json(
            {
                "written": [n for n, new in written.items() if new],
                "unchanged": [n for n, new in written.items() if not new],
                "refused": [{"form": form, **fault.as_json()} for form, fault in made.refused],
                "mlir_pdll_runs": pdll.runs(),
            }
        )
    else:
        for name, new in written.items():
            say(f"{'wrote' if new else 'unchanged'} {output / name}")
        for form, fault in made.refused:
            note(f"{form}: {fault.render()}")
        say(
            f"{sum(written.values())} files written, {len(written)} in all; "
            f"mlir-pdll ran {pdll.runs()} times"
        )
    if not made.files:
        if not as_json:
            warn(f"nothing could be said in {', '.join(chosen)}")
        raise Exit(EXIT_CHECK_FAILED)
