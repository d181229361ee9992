"""The conversion driver: MLIR's dialect conversion with a torch-to-builtin type converter.

Partial conversion converts what rules can and leaves the rest; full conversion fails when an op of
the torch dialect is left. Operands reach a rule already converted (a builtin tensor instead of a
``!torch.vtensor``); where converted and unconverted ops meet, the driver's casts become
``torch_c.to_builtin_tensor`` and ``torch_c.from_builtin_tensor``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from mlirules.drivers.apply.run import CONSTANTS, Run
from mlirules.drivers.iree.compiler import ir, known_dialects, rewrite
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.match.values import type_info
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.rule import Rule
from mlirules.language.values import Tensor

_SCALARS = {"!torch.int": "i64", "!torch.float": "f64", "!torch.bool": "i1"}
_CASTS = {
    "!torch.int": ("torch_c.to_i64", "torch_c.from_i64"),
    "!torch.float": ("torch_c.to_f64", "torch_c.from_f64"),
    "!torch.bool": ("torch_c.to_i1", "torch_c.from_i1"),
}


def type_conversion(context: Any) -> Callable[[Any], Any]:
    """What torch's value types become: builtin types; other types stay as they are."""

    def convert(type_: Any) -> Any:
        text, tensor = type_info(type_)
        if tensor is not None and tensor.torch:
            plain = Tensor("", tensor.dims, tensor.dtype, False).builtin_type()
            return ir.Type.parse(plain, context)
        if text in _SCALARS:
            return ir.Type.parse(_SCALARS[text], context)
        return type_

    return convert


def apply(run: Run, module: Any, rules: Sequence[Rule]) -> None:
    """Convert ``module`` in place. Raises :class:`MlirulesError` when full conversion fails."""
    context = run.context
    # The bindings do not keep the functions that they are given alive: these names do.
    conversion = type_conversion(context)
    functions = [_pattern(run, rule) for rule in rules]
    with context:
        converter = rewrite.TypeConverter()
        converter.add_conversion(conversion)
        patterns = rewrite.RewritePatternSet(context)
        for rule, function in zip(rules, functions, strict=True):
            for name in rule.root_ops:
                patterns.add_conversion(name, function, converter, rule.benefit)
        target = rewrite.ConversionTarget(context)
        # Constants feed ops that rules left, and go when unused. What is legal no rule is asked of.
        roots = {name for rule in rules for name in rule.root_ops}
        target.add_legal_op(*(CONSTANTS - roots))
        target.add_legal_op("builtin.module", "builtin.unrealized_conversion_cast")
        # An op that is neither legal nor illegal is converted where a rule fits, and else stays.
        open_dialects = {name.partition(".")[0] for name in roots}
        target.add_legal_dialect(
            *(d for d in known_dialects() if d not in {"torch", "builtin", *open_dialects})
        )
        config = rewrite.ConversionConfig()
        # The bindings have no hook for materialisations: ours replace the driver's casts below.
        config.build_materializations = False
        # What changes is what the rules say.
        config.folding_mode = rewrite.DialectConversionFoldingMode.NEVER
        frozen = patterns.freeze()
        # Full conversion is partial conversion with nothing left: MLIR's own full conversion rolls
        # back on failure, which frees values that cloned rewrites still use.
        try:
            rewrite.apply_partial_conversion(module.operation, target, frozen, config)
        except ir.MLIRError as error:
            if run.error is not None or run.stop:
                return
            raise MlirulesError(Fault(Span("conversion"), "driver", str(error))) from None
        materialise(module)


def check_full(left: Counter[str]) -> None:
    """Raise :class:`MlirulesError`, one fault an op, when torch ops are left."""
    if left:
        raise MlirulesError(
            [
                Fault(
                    Span("conversion"),
                    "not-converted",
                    f"full conversion: no rule converts {name} ({count} left)",
                    "`mlirules explain` says which rule came nearest and why it refused",
                )
                for name, count in left.most_common()
            ]
        )


def _pattern(run: Run, rule: Rule) -> Callable[..., bool | None]:
    matcher = run.matchers[rule.name]

    def convert(op: Any, adaptor: Any, _converter: Any, rewriter: Any) -> bool | None:
        # A truthy answer means failure.
        if run.stop:
            return True
        root = op.operation
        try:
            match = matcher.match(root, run.around)
            if isinstance(match, Refusal):
                if match.error is not None:
                    run.fail(match.error)
                return True
            originals = list(root.operands)
            for value, converted in zip(originals, list(adaptor.operands), strict=True):
                run.instantiator.converted[value] = converted
            made = run.apply(match, root, rewriter.replace_op)
            made = [_unwrapped(v) for v in made]
        except BaseException as error:  # noqa: BLE001 - must not unwind through the C++ driver
            run.fail(error)
            return True
        rewriter.replace_op(root, made)
        return None

    return convert


def _unwrapped(value: Any) -> Any:
    """A result without its last cast back to torch: the driver casts where that is needed."""
    owner = value.owner
    if isinstance(owner, ir.Block) or not owner.name.startswith("torch_c.from_"):
        return value
    source = owner.operands[0]
    if next(iter(value.uses), None) is None:
        owner.erase()
        return source
    return value


def materialise(module: Any) -> None:
    """Replace the driver's casts between torch and builtin types by torch_c's."""
    wanted = "builtin.unrealized_conversion_cast"
    casts = [op for op in ops_below(module.operation) if op.name == wanted]
    for cast in casts:
        if len(cast.operands) != 1 or len(cast.results) != 1:
            continue
        source, result = cast.operands[0], cast.results[0]
        name = _cast_name(str(source.type), str(result.type))
        if name is None:
            continue
        made = ir.Operation.create(
            name,
            results=[result.type],
            operands=[source],
            ip=ir.InsertionPoint(cast),
            loc=cast.location,
        )
        result.replace_all_uses_with(made.results[0])
        cast.erase()


def _cast_name(source: str, result: str) -> str | None:
    if source.startswith("!torch.vtensor"):
        return "torch_c.to_builtin_tensor"
    if result.startswith("!torch.vtensor"):
        return "torch_c.from_builtin_tensor"
    if source in _CASTS:
        return _CASTS[source][0]
    if result in _CASTS:
        return _CASTS[result][1]
    return None
