"""Search spaces that the compiler states itself: its constraints on the knobs of a configuration.

For products of f16 on cuda and for hip the compiler emits, beside each op, what every
configuration must satisfy, as SMT formulas. z3 finds configurations that do; a different random
corner of the space is asked for each time, so that they are spread over it, and the same seed
finds the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlirules.drivers.iree import compiler, knobs
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning.dispatches import Dispatch
from mlirules.drivers.tuning.space import Candidate
from mlirules.language.config.model import Settings
from mlirules.language.faults import MlirulesError

FLAGS = ("--iree-codegen-emit-pipeline-constraints", "--iree-codegen-add-tuner-attributes")

#: Kinds of target that the compiler states constraints for.
KINDS = frozenset({"cuda", "hip"})

#: What the solver may spend on one question before it counts as unanswered: its own count of steps,
#: so that a busy machine finds the same, a second's worth, and milliseconds as a last resort.
STEPS, SOLVER_MS = 2_000_000, 20_000

#: Random corners that are asked for until the space counts as exhausted.
_PATIENCE = 12


def candidates(
    dispatch: Dispatch, target: Target, count: int, *, seed: int = 0, flags: Sequence[str] = ()
) -> list[Candidate]:
    """Up to ``count`` configurations that satisfy the compiler's constraints, all different.

    Empty when it states none for this op. Raises MlirulesError where z3 is not installed.
    """
    if target.kind not in KINDS:
        return []
    job = compiler.Job(target, (*flags, *FLAGS), compile_from="flow")
    text = compiler.lower_to(dispatch.text, job, "executable-configurations")
    module = compiler.parse(text)
    stated = list(knobs.constraints_of(module))
    if not stated:
        return []
    try:
        import z3
    except ImportError:
        raise MlirulesError.not_installed(
            "--target", f"the constraints for {target} need z3", "tune"
        ) from None
    found: dict[str, Candidate] = {}
    sources = [
        _solutions(z3, op, dispatch.root.loops, count, seed + index)
        for index, op in enumerate(stated)
    ]
    while sources and len(found) < count:  # the pipelines take turns
        for source in list(sources):
            candidate = next(source, None)
            if candidate is None:
                sources.remove(source)
            elif len(found) < count:
                found.setdefault(candidate.key, candidate)
    return list(found.values())


def _solutions(
    z3: Any, op: ir.Operation, loops: Sequence[str], count: int, seed: int
) -> Iterator[Candidate]:
    pipeline = str(op.attributes["pipeline"]).rpartition("<")[2].rstrip(">")
    stated = ir.DictAttr(op.attributes["knobs"])
    names = sorted(knobs.names(stated))
    # A context of its own: what was solved before must not steer what is found now.
    context = z3.Context()
    solver = z3.Solver(ctx=context)
    solver.from_string(knobs.smtlib(op))
    solver.set("random_seed", seed % (1 << 30))
    solver.set("rlimit", STEPS)
    solver.set("timeout", SOLVER_MS)
    variables = {n: z3.Int(n, ctx=context) for n in names}
    chance = random.Random(seed)
    misses = 0
    for _ in range(count):
        model = None
        while model is None:
            solver.push()
            for name in chance.sample(names, min(len(names), 3)):
                # Values, not ranges: products and remainders of constants are easy to decide.
                solver.add(variables[name] == 1 << chance.randrange(0, 9))
            if solver.check() == z3.sat:
                model = solver.model()
            solver.pop()
            if model is None:
                misses += 1
                if misses > _PATIENCE:
                    if solver.check() != z3.sat:
                        return
                    model = solver.model()
        misses = 0
        values = {n: model.eval(v, model_completion=True).as_long() for n, v in variables.items()}
        # Not the same again.
        solver.add(z3.Or([v != values[n] for n, v in variables.items()]))
        plain = {key: knobs.plain(value, values) for key, value in knobs.items(stated)}
        settings = _settings(pipeline, plain, loops)
        yield Candidate(f"compiler-{pipeline}", tuple(values.items()), settings)


_LEVELS = ("workgroup", "reduction", "thread", "subgroup", "partial_reduction", "serial", "lane")


def _settings(pipeline: str, plain: Mapping[str, Any], loops: Sequence[str]) -> Settings:
    tiles = {
        level: {loop: size for loop, size in zip(loops, plain[level], strict=True) if size}
        for level in _LEVELS
        if level in plain
    }
    data: dict[str, object] = {"pipeline": pipeline, "tiles": tiles}
    if "mma_kind" in plain:
        data["mma_kind"] = str(plain["mma_kind"]).partition("<")[2].rstrip(">")
    for key in ("promote_operands", "workgroup_size", "subgroup_size"):
        if key in plain:
            data[key] = plain[key]
    for key in ("subgroup_basis", "lane_basis"):
        if key in plain:
            counts, over = plain[key]
            named = dict(zip(loops, counts, strict=False))
            data[key] = {"counts": named, "over": [loops[i] for i in over]}
    options = dict(plain.get("gpu_pipeline_options", {}))
    if "prefetch_num_stages" in options:
        data["prefetch_stages"] = options.pop("prefetch_num_stages")
    if options:
        data["pipeline_options"] = options
    return Settings.model_validate(data)
