"""Config rules as a tuning spec: transform-dialect text in the strict default-entrypoint form.

One matcher an entry, named by op, shape and types; one action, which sets the configuration and
leaves the rule's name on the op (:data:`MARKER`), so that a dump of the configurations shows which
entries took effect. Every matcher begins with ``has_no_lowering_config``: without it the last of
several linked specs would win in some include chains, and the first in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirules.generator import names
from mlirules.generator.emit import configuration, generic
from mlirules.generator.render import Templates, shipped
from mlirules.language.config.model import (
    DimRange,
    OperandLimit,
    Settings,
)
from mlirules.language.config.op import ConfigRule, Operand, affine_map, index_names
from mlirules.language.notation import ast

#: The attribute that an entry leaves on the op it configured; its value is the rule's name.
MARKER = "__mlirules_config__"

ENTRY = "__kernel_config"


@dataclass(frozen=True)
class Verbatim:
    """An entry that is written as it stands: its sequences as text, and the two to be tried."""

    matcher: str
    action: str
    text: str
    origin: str  # the file and line it comes from


TEMPLATE = "tuning-spec.mlir.j2"


@dataclass(frozen=True)
class Bound:
    """What the size of an operand's dim must be; ``fetched``: the operand is read for it first."""

    operand: int
    dim: int
    low: int | None
    high: int | None
    multiple: int | None
    fetched: bool = False


@dataclass(frozen=True)
class Structured:
    """A contraction or a convolution: its groups of loops, element types and maps."""

    name: str
    groups: Sequence[str]
    lhs: str
    rhs: str
    out: str
    maps: list[str]
    #: Groups of loops whose sizes are given; -1 stands for any size.
    exact: list[tuple[str, list[int]]]
    form: str = "structured"


@dataclass(frozen=True)
class Attention:
    """An online attention without a mask: its element types and maps."""

    query: str
    key: str
    value: str
    scale: str
    out: str
    maximum: str
    sum: str
    maps: list[str]
    form: str = "attention"


@dataclass(frozen=True)
class Operation:
    """An op by its name, the types of operands, bounds of their dims, or a program to compare."""

    name: str
    operands: list[tuple[int, str]]
    limits: list[Bound]
    program: str = ""
    form: str = "operation"


@dataclass(frozen=True)
class Param:
    """A value that a matcher gives to its action."""

    name: str
    value: configuration.Value


@dataclass(frozen=True)
class Matcher:
    """An entry as the template shows it: a matcher, and the action that it is tried with."""

    matcher: str
    action: str
    #: Ops that have a configuration already are left alone.
    unconfigured: bool
    operation: str
    root: Structured | Attention | Operation | generic.Generic
    #: Operands that are read for the bounds of their dims.
    read: list[int]
    limits: list[Bound]
    params: list[Param]
    measured: dict[str, object] | None
    origin: str = ""


@dataclass(frozen=True)
class Action:
    """A sequence that sets attributes: its parameters, and which attribute takes which of them."""

    name: str
    names: list[str]
    attributes: list[tuple[str, str]]


def tuning_spec(
    entries: Sequence[ConfigRule | Verbatim],
    *,
    name: str = "mlirules_configs",
    kind: str | None = None,
    templates: Templates | None = None,
) -> str:
    """The spec of config rules, in their order: of two that match, the first wins.

    ``kind`` is the kind of target (cpu, cuda, hip, vulkan); default: that of the first rule.
    Without any entry it is a spec that changes nothing.
    """
    rules = [entry for entry in entries if isinstance(entry, ConfigRule)]
    kind = kind or (min(rules[0].kinds) if rules else "cpu")
    actions: dict[tuple[str, ...], str] = {}
    views: list[Matcher | dict[str, object]] = []
    for entry in entries:
        if isinstance(entry, Verbatim):
            shown = {"matcher": entry.matcher, "action": entry.action, "origin": entry.origin}
            views.append({**shown, "text": entry.text.rstrip(), "measured": None})
            continue
        params = _params(entry, kind)
        action = _action(actions, params)
        views += [_matcher(entry, params, found, root, action) for found, root in _roots(entry)]
    return (templates or shipped()).render(
        TEMPLATE,
        name=name,
        kind=kind,
        hook=hook(kind, "THIS-FILE"),
        ignored=kind in ("vulkan", "cuda"),
        rules=[{"name": rule.name, "location": names.location(rule)} for rule in rules],
        actions=_actions(actions),
        entries=views,
        entry_point=ENTRY,
    )


def hook(kind: str, spec: object) -> str:
    """The flag by which a spec takes effect on a kind of target.

    Where the tuning-spec flag is ignored without a word, a transform library is what works.
    """
    if kind in ("cpu", "hip"):
        return f"--iree-codegen-tuning-spec-path={spec}"
    return f"--iree-codegen-transform-dialect-library={spec}"


def compilation_info(rule: ConfigRule, kind: str) -> str:
    """What a rule sets, as the compiler's attribute."""
    return configuration.spelt(_compilation(rule, kind))


def lowering_config(rule: ConfigRule, kind: str) -> str:
    """The tile sizes and what goes with them, as the compiler's attribute."""
    return configuration.spelt(configuration.lowering(rule, kind))


def decomposition_config(rule: ConfigRule, kind: str) -> str:
    """How an attention's two products are compiled, as the compiler's attribute; or empty."""
    found = configuration.decomposition(rule, kind)
    return "" if found is None else configuration.spelt(found)


def translation_info(settings: Settings, kind: str) -> str:
    """The pipeline, workgroup and options, as the compiler's attribute."""
    return configuration.spelt(configuration.translation(settings, kind))


def extra_attributes(rule: ConfigRule) -> dict[str, str]:
    """What an op gets beside its configuration; empty: an attribute without a value."""
    return {
        name: "" if value is None else configuration.spelt(value)
        for name, value in _extra(rule).items()
    }


def _compilation(rule: ConfigRule, kind: str) -> configuration.Compilation:
    return configuration.Compilation(
        configuration.lowering(rule, kind), configuration.translation(rule.settings, kind)
    )


# ---- sequences -----------------------------------------------------------------------------


def _params(rule: ConfigRule, kind: str) -> list[tuple[str, configuration.Value | None]]:
    """The attributes that a rule's op gets, with their values; None for those without."""
    out: list[tuple[str, configuration.Value | None]] = [
        ("compilation_info", _compilation(rule, kind))
    ]
    parts = configuration.decomposition(rule, kind)
    if parts is not None:
        out.append(("decomposition_config", parts))
    out += _extra(rule).items()
    out.append((MARKER, configuration.Name(rule.name)))
    return out


def _extra(rule: ConfigRule) -> dict[str, configuration.Value | None]:
    """What an op gets beside its configuration; None: an attribute without a value."""
    kernel = rule.settings.ukernel
    found: dict[str, configuration.Value | None] = {
        name: configuration.Annotation(text) if text else None
        for name, text in rule.settings.annotations.items()
    }
    if kernel is None:
        return found
    return {"iree_codegen.ukernel": configuration.Ukernel(kernel.name, kernel.kind), **found}


_NAMES = {"compilation_info": "config", "decomposition_config": "decomposition", MARKER: "rule"}


def _param_names(params: Sequence[tuple[str, object | None]]) -> list[str]:
    """Names of the parameters that have a value."""
    return [
        _NAMES.get(name, f"value{i}") for i, (name, value) in enumerate(params) if value is not None
    ]


def _action(
    actions: dict[tuple[str, ...], str], params: Sequence[tuple[str, object | None]]
) -> str:
    """The action that sets these attributes; rules that set the same ones share it."""
    key = tuple(name + "!" if value is None else name for name, value in params)
    if key not in actions:
        plain = {
            ("compilation_info", MARKER): "apply_config",
            ("compilation_info", "decomposition_config", MARKER): "apply_decomposed_config",
        }
        actions[key] = plain.get(key, f"apply_config_and_more_{len(actions)}")
    return actions[key]


def _actions(actions: dict[tuple[str, ...], str]) -> list[Action]:
    """The sequences that set attributes."""
    out = []
    for key, name in actions.items():
        params = [(n.removesuffix("!"), None if n.endswith("!") else n) for n in key]
        given = _param_names(params)
        names = iter(given)
        attributes = [(attribute, next(names) if has else "") for attribute, has in params]
        out.append(Action(name, given, attributes))
    return out


def matchers(rule: ConfigRule) -> list[str]:
    """The names of the sequences that find a rule's ops."""
    return [name for name, _ in _roots(rule)]


def _roots(
    rule: ConfigRule,
) -> list[tuple[str, Structured | Attention | Operation | generic.Generic]]:
    """What makes an op of the rule's class, by the names of the sequences that find them.

    A generic op is compared as it is spelt: one matcher for each order of commuted operands.
    """
    match rule.match.op:
        case "generic":
            return [
                (f"{rule.entry}_{number}" if number else rule.entry, root)
                for number, root in enumerate(generic.roots(rule))
            ]
        case "contraction":
            return [(rule.entry, _structured(rule, "contraction", ["batch", "m", "n", "k"]))]
        case "convolution":
            return [(rule.entry, _structured(rule, "convolution", CONVOLUTION_GROUPS))]
        case "attention":
            return [(rule.entry, _attention(rule))]
        case "operation":
            return [(rule.entry, _operation(rule))]
    raise AssertionError(rule.match.op)


def _matcher(
    rule: ConfigRule,
    params: Sequence[tuple[str, configuration.Value | None]],
    name: str,
    root: Structured | Attention | Operation | generic.Generic,
    action: str,
) -> Matcher:
    """A named sequence that finds ops and yields what the rule sets."""
    values = [value for _, value in params if value is not None]
    read, limits = _limits(rule)
    measured = rule.doc.measured
    return Matcher(
        name,
        action,
        not rule.match.configured,
        "" if rule.match.op == "operation" else rule.match.name or "",
        root,
        read,
        limits,
        [Param(name, value) for name, value in zip(_param_names(params), values, strict=True)],
        None
        if measured is None
        else {
            "speedup": measured.speedup,
            "tuned_ms": measured.tuned_ms,
            "default_ms": measured.default_ms,
            "spread": measured.spread,
            "device": measured.device.splitlines()[0],
            "compiler": measured.compiler,
        },
    )


CONVOLUTION_GROUPS = (
    "batch",
    "image",
    "output_channel",
    "filter",
    "input_channel",
    "depth",
    "strides",
    "dilations",
)


def _structured(rule: ConfigRule, name: str, groups: Sequence[str]) -> Structured:
    lhs, rhs, out = rule.operands
    exact = []
    if name == "contraction":
        for group, loops in contraction_groups(rule).items():
            sizes = [rule.exact(loop) for loop in loops]
            if any(sizes):  # -1 stands for any size
                exact.append((group, [size or -1 for size in sizes]))
    maps = [affine_map(rule, o) for o in rule.operands]
    return Structured(name, groups, lhs.element, rhs.element, out.element, maps, exact)


def _attention(rule: ConfigRule) -> Attention | Operation:
    """Attention is the online form by the time configurations are chosen.

    Its maximum and sum are indexed as the result without the values' dims. The typed matcher knows
    no mask: with one, the operation's name, operand types and the dims' sizes have to do.
    """
    types, out = rule.match.types, rule.operands[-1]
    if len(rule.operands) == 5:
        operands = [(i, _tensor(o)) for i, o in zip(MASKED, rule.operands[:4], strict=True)]
        # Without a mask there is no eighth operand.
        total = Operand("", tuple(_running(rule)), types.get("sum", out.element))
        name = "iree_linalg_ext.online_attention"
        return Operation(name, [*operands, (7, _tensor(total))], [])
    query, key, value = rule.operands[:3]
    maps = [
        affine_map(rule, query),
        affine_map(rule, key),
        affine_map(rule, value),
        f"affine_map<({', '.join(rule.loops)}) -> ()>",
        affine_map(rule, out),
        *[affine_map(rule, Operand("", tuple(_running(rule))))] * 2,
    ]
    return Attention(
        query.element,
        key.element,
        value.element,
        types.get("scale", query.element),
        out.element,
        types.get("max", out.element),
        types.get("sum", out.element),
        maps,
    )


def _running(rule: ConfigRule) -> list[ast.Expr]:
    """What the running maximum and sum are indexed by: the result's dims but the values' own."""
    own = configuration.attention_roles(rule)["n"]
    return [i for i in rule.operands[-1].indices if isinstance(i, ast.Name) and i.id not in own]


#: Where a masked online attention has its queries, keys, values and mask (3 is the scale).
MASKED = (0, 1, 2, 4)


def _tensor(operand: Operand) -> str:
    return f"tensor<{'?x' * len(operand.indices)}{operand.element}>"


def _operation(rule: ConfigRule) -> Operation:
    assert rule.match.name is not None
    named = {i: text for i, text in enumerate(rule.match.operands) if text is not None}
    given: set[int] = set(named)
    limits = []
    for limit in rule.match.limits:
        fetched = limit.operand not in given
        given.add(limit.operand)
        limits.append(_bound((limit.operand, limit.dim), limit, fetched=fetched))
    program = (rule.match.program or "").rstrip()
    return Operation(rule.match.name, list(named.items()), limits, program)


def contraction_groups(rule: ConfigRule) -> dict[str, list[str]]:
    """The loops of a contraction by what they do: batch, m, n, k."""
    reads = [{n for i in o.indices for n in index_names(i)} for o in rule.operands]
    kinds = {"111": "batch", "101": "m", "011": "n", "110": "k"}
    out: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k": []}
    for loop in rule.loops:
        kind = kinds.get("".join(str(int(loop in r)) for r in reads))
        if kind is not None:
            out[kind].append(loop)
    return out


def place_of(rule: ConfigRule, loop: str) -> tuple[int, int] | None:
    """Where the size of a loop can be seen: (operand, dim); None when nowhere."""
    for i, operand in enumerate(rule.operands):
        for j, index in enumerate(operand.indices):
            if isinstance(index, ast.Name) and index.id == loop:
                return position_of(rule, i), j
    return None


def position_of(rule: ConfigRule, operand: int) -> int:
    """The op's operand that the rule's ``operand`` is: attention has a scale among its inputs."""
    if rule.match.op != "attention" or operand < 3:
        return operand
    return operand + 1


def _bound(
    place: tuple[int, int], limits: DimRange | OperandLimit, *, fetched: bool = False
) -> Bound:
    return Bound(*place, limits.min, limits.max, limits.multiple_of, fetched)


def _limits(rule: ConfigRule) -> tuple[list[int], list[Bound]]:
    """Sizes of the dims, asked of the operands that have them."""
    exact = rule.match.op == "contraction"  # where dims_equal has asked for exact sizes
    read: dict[int, None] = {}
    bounds = []
    for loop, limits in rule.dims.items():
        place = place_of(rule, loop)
        if place is None or (exact and rule.exact(loop)):
            continue
        read.setdefault(place[0])
        bounds.append(_bound(place, limits))
    return list(read), bounds
