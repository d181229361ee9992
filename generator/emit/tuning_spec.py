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
from mlirules.generator.emit import generic
from mlirules.language.config.model import (
    Basis,
    DimRange,
    MmaKind,
    OperandLimit,
    Settings,
    SubConfig,
    basis_counts,
    levels_of,
    mma_name,
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


def tuning_spec(
    entries: Sequence[ConfigRule | Verbatim],
    *,
    name: str = "mlirules_configs",
    kind: str | None = None,
) -> str:
    """The spec of config rules, in their order: of two that match, the first wins.

    ``kind`` is the kind of target (cpu, cuda, hip, vulkan); default: that of the first rule.
    Without any entry it is a spec that changes nothing.
    """
    rules = [entry for entry in entries if isinstance(entry, ConfigRule)]
    kind = kind or (min(rules[0].kinds) if rules else "cpu")
    actions: dict[tuple[str, ...], str] = {}
    body: list[str] = []
    tried: list[tuple[str, str, ConfigRule | None]] = []
    for entry in entries:
        if isinstance(entry, Verbatim):
            body += ["", f"  // As it stands in {entry.origin}.", *entry.text.rstrip().split("\n")]
            tried.append((entry.matcher, entry.action, None))
            continue
        params = _params(entry, kind)
        action = _action(actions, params)
        for matcher, text in matchers(entry, kind):
            body += ["", *_indented(text, 2)]
            tried.append((matcher, action, entry))
    strict = "" if not tried else ", iree_codegen.tuning_spec_with_default_entrypoint"
    lines = [
        "// A tuning spec. Do not edit: change the rules and generate again.",
        *_usage(kind),
        *(f"// {rule.name}: generated from {names.location(rule)}" for rule in rules),
        f"module @{name} attributes {{ transform.with_named_sequence{strict} }} {{",
        *_actions(actions),
        *body,
        "",
        *_entry_point(tried),
        "}",
        "",
    ]
    return "\n".join(lines)


def hook(kind: str, spec: object) -> str:
    """The flag by which a spec takes effect on a kind of target.

    Where the tuning-spec flag is ignored without a word, a transform library is what works.
    """
    if kind in ("cpu", "hip"):
        return f"--iree-codegen-tuning-spec-path={spec}"
    return f"--iree-codegen-transform-dialect-library={spec}"


def _usage(kind: str) -> list[str]:
    lines = [f"// Given to the compiler by {hook(kind, 'THIS-FILE')}"]
    if kind in ("vulkan", "cuda"):
        lines.append(f"// On {kind} --iree-codegen-tuning-spec-path is ignored without a word.")
    return lines


def compilation_info(rule: ConfigRule, kind: str) -> str:
    """What a rule sets, as the compiler's attribute."""
    return (
        "#iree_codegen.compilation_info<\n"
        f"    lowering_config = {lowering_config(rule, kind)},\n"
        f"    translation_info = {translation_info(rule.settings, kind)}>"
    )


def lowering_config(rule: ConfigRule, kind: str) -> str:
    """The tile sizes and what goes with them, as the compiler's attribute."""
    settings = rule.settings
    if kind == "vulkan":
        lists = [
            tile_list(rule.loops, settings.tiles.get(level, {}))
            for level in levels_of(kind, settings.pipeline)
        ]
        return f"#iree_codegen.lowering_config<tile_sizes = [{', '.join(lists)}]>"
    return sub_config(rule.tile_loops, settings, kind, own=rule.loops)


def tile_list(loops: Sequence[str], sizes: dict[str, int]) -> str:
    """Tile sizes by name as the compiler's list: one number a loop, 0 for those not tiled."""
    return "[" + ", ".join(str(sizes.get(loop, 0)) for loop in loops) + "]"


def decomposition_config(rule: ConfigRule, kind: str) -> str:
    """How an attention's two products are compiled, as the compiler's attribute; or empty."""
    given = rule.settings.decomposition
    if given is None:
        return ""
    parts = []
    for name in ("qk", "pv"):
        part = getattr(given, name)
        if part is not None:
            config = sub_config(rule.loops, part, kind, over=part_loops(rule, name, part))
            parts.append(f"  {name}_attrs = {{lowering_config = {config}}}")
    return "{\n" + ",\n".join(parts) + "\n}"


def part_loops(rule: ConfigRule, name: str, part: SubConfig) -> list[str]:
    """The loops of one of an attention's two products: all but the other's own ones."""
    if part.over:
        return list(part.over)
    if not rule.operands:
        return list(rule.loops)
    other = attention_roles(rule)["n" if name == "qk" else "k1"]
    return [loop for loop in rule.loops if loop not in other]


def sub_config(
    loops: Sequence[str],
    part: Settings | SubConfig,
    kind: str,
    *,
    over: Sequence[str] | None = None,
    own: Sequence[str] = (),
) -> str:
    """A lowering config for cpu, cuda or hip; ``over``: the loops that the op has, if not all.

    ``own``: a convolution's loops, where ``loops`` are those of the product that it becomes.
    """
    over = loops if over is None else over
    levels = [
        f"{level} = {tile_list(over, part.tiles[level])}"
        for level in levels_of(kind, "")
        if level in part.tiles
    ]
    if kind == "cpu":
        return f"#iree_cpu.lowering_config<{', '.join(levels)}>"
    items = list(levels)
    if part.promote_operands:
        items.append(f"promote_operands = {list(part.promote_operands)}")
    if part.mma_kind is not None:
        items.append(f"mma_kind = {mma(part.mma_kind)}")
    for key in ("subgroup_basis", "lane_basis"):
        given = getattr(part, key)
        if given is not None:
            items.append(f"{key} = {basis(loops, given, over)}")
    if isinstance(part, Settings):
        if part.promotion_types:
            ways = ", ".join(f"#iree_gpu.{way}" for way in part.promotion_types)
            items.append(f"promotion_types = [{ways}]")
        if part.padding:
            items.append(f"padding = {tile_list(loops, part.padding)}")
        if part.padding_conv:
            items.append(f"padding_conv = {tile_list(own or loops, part.padding_conv)}")
        if part.workgroup_reordering:
            first, second = part.workgroup_reordering
            way = f"#iree_gpu.conditional_transpose<{first}, {second}>"
            items.append(f"workgroup_reordering_strategy = {way}")
    if isinstance(part, Settings) and part.convert_acc_gemm:
        items.append("convert_acc_gemm")
    return f"#iree_gpu.lowering_config<{{{', '.join(items)}}}>"


def mma(kind: str | MmaKind) -> str:
    """A matrix instruction as the compiler's attribute."""
    name = mma_name(kind)
    layout = "virtual_mma_layout" if name.startswith(("VMFMA_", "VDMFMA_")) else "mma_layout"
    major = ", col_major = true" if isinstance(kind, MmaKind) and kind.col_major else ""
    return f"#iree_gpu.{layout}<{name}{major}>"


def basis(
    loops: Sequence[str], given: Basis | dict[str, int], over: Sequence[str] | None = None
) -> str:
    """A basis: counts for every loop, then the loops that the op has."""
    counts = basis_counts(given)
    over = given.over if isinstance(given, Basis) and given.over else over or loops
    numbers = [counts.get(loop, 1) for loop in loops]
    return f"[{numbers}, {[loops.index(loop) for loop in over]}]"


def translation_info(settings: Settings, kind: str) -> str:
    """The pipeline, workgroup and options, as the compiler's attribute."""
    dialect = {"cpu": "iree_cpu.pipeline", "vulkan": "iree_gpu.spirv_pipeline"}.get(
        kind, "iree_gpu.pipeline"
    )
    out = f"pipeline = #{dialect}<{settings.pipeline}>"
    if settings.workgroup_size is not None:
        out += f" workgroup_size = {settings.workgroup_size}"
    if settings.subgroup_size is not None:
        out += f" subgroup_size = {settings.subgroup_size}"
    options = _options(settings)
    if options:
        out += f", {{{', '.join(options)}}}"
    return f"#iree_codegen.translation_info<{out}>"


def _options(settings: Settings) -> list[str]:
    pipeline: list[str] = []
    if settings.prefetch_stages is not None:
        pipeline.append(f"prefetch_num_stages = {settings.prefetch_stages}")
    given = settings.pipeline_options
    if given is not None:
        for key in ("no_reduce_shared_memory_bank_conflicts", "use_igemm_convolution"):
            value = getattr(given, key)
            if value is not None:
                pipeline.append(f"{key} = {'true' if value else 'false'}")
        if given.reorder_workgroups is not None:
            pipeline.append(f"reorder_workgroups_strategy = <{given.reorder_workgroups}>")
    out = []
    if pipeline:
        joined = ", ".join(pipeline)
        out.append(f"gpu_pipeline_options = #iree_gpu.pipeline_options<{joined}>")
    if settings.function_attributes:
        attributes = ", ".join(f'"{k}" = "{v}"' for k, v in settings.function_attributes.items())
        out.append(f"llvm_func_attrs = {{{attributes}}}")
    if settings.denormal_f32 is not None:
        mode = f'#iree_codegen.denormal_fp_math<"{settings.denormal_f32}">'
        out.append(f"iree_codegen.denormal_fp_math_f32 = {mode}")
    for key in ("pipeline_depth", "store_stage"):
        value = getattr(settings, key)
        if value is not None:
            out.append(f"{key} = {value} : i64")
    return out


# ---- sequences -----------------------------------------------------------------------------

_OP = "%op: !transform.any_op {transform.readonly}"


def _indented(lines: Sequence[str], by: int) -> list[str]:
    return [" " * by + line if line else line for line in lines]


def _params(rule: ConfigRule, kind: str) -> list[tuple[str, str]]:
    """The attributes that a rule's op gets, with their values; empty for those without."""
    settings = rule.settings
    out = [("compilation_info", compilation_info(rule, kind))]
    if settings.decomposition is not None:
        out.append(("decomposition_config", decomposition_config(rule, kind)))
    out += extra_attributes(rule).items()
    out.append((MARKER, f'"{rule.name}"'))
    return out


def extra_attributes(rule: ConfigRule) -> dict[str, str]:
    """What an op gets beside its configuration; empty: an attribute without a value."""
    kernel = rule.settings.ukernel
    if kernel is None:
        return dict(rule.settings.annotations)
    text = f'#iree_codegen.ukernel_descriptor<"{kernel.name}", {kernel.kind}>'
    return {"iree_codegen.ukernel": text, **rule.settings.annotations}


_NAMES = {"compilation_info": "config", "decomposition_config": "decomposition", MARKER: "rule"}


def _param_names(params: Sequence[tuple[str, str]]) -> list[str]:
    """Names of the parameters that have a value."""
    return [_NAMES.get(name, f"value{i}") for i, (name, text) in enumerate(params) if text]


def _action(actions: dict[tuple[str, ...], str], params: Sequence[tuple[str, str]]) -> str:
    """The action that sets these attributes; rules that set the same ones share it."""
    key = tuple(name if text else name + "!" for name, text in params)
    if key not in actions:
        plain = {
            ("compilation_info", MARKER): "apply_config",
            ("compilation_info", "decomposition_config", MARKER): "apply_decomposed_config",
        }
        actions[key] = plain.get(key, f"apply_config_and_more_{len(actions)}")
    return actions[key]


def _actions(actions: dict[tuple[str, ...], str]) -> list[str]:
    """The sequences that set attributes."""
    param = "!transform.any_param {transform.readonly}"
    to = "!transform.any_op, !transform.any_param"
    out = []
    for key, name in actions.items():
        params = [(n.removesuffix("!"), "" if n.endswith("!") else "value") for n in key]
        names = iter(_param_names(params))
        shown = ", ".join(f"%{n}: {param}" for n in _param_names(params))
        out += [f"  transform.named_sequence @{name}(", f"      {_OP}, {shown}) {{"]
        out += [
            f'    transform.annotate %op "{attribute}" = %{next(names)} : {to}'
            if text
            else f'    transform.annotate %op "{attribute}" : !transform.any_op'
            for attribute, text in params
        ]
        out += ["    transform.yield", "  }"]
    return out


def _entry_point(entries: Sequence[tuple[str, str, ConfigRule | None]]) -> list[str]:
    out = [
        f"  transform.named_sequence @{ENTRY}(%variant: !transform.any_op "
        f"{{transform.{'consumed' if entries else 'readonly'}}}) -> !transform.any_op",
        "      attributes { iree_codegen.tuning_spec_entrypoint } {",
    ]
    if not entries:
        return [*out, "    transform.yield %variant : !transform.any_op", "  }"]
    out.append("    %done = transform.foreach_match in %variant")
    for i, (name, action, rule) in enumerate(entries):
        if rule is not None and rule.doc.measured is not None:
            measured = rule.doc.measured
            out.append(
                f"      // {measured.speedup:.2f} times as fast as the default: "
                f"{measured.tuned_ms:g} ms for {measured.default_ms:g} ms, "
                f"spread {measured.spread:.1%}, on {measured.device.splitlines()[0]}, "
                f"compiler {measured.compiler}."
            )
        comma = "," if i + 1 < len(entries) else ""
        out.append(f"      @{name} -> @{action}{comma}")
    return [
        *out,
        "      : (!transform.any_op) -> !transform.any_op",
        "    transform.yield %done : !transform.any_op",
        "  }",
    ]


def matchers(rule: ConfigRule, kind: str) -> list[tuple[str, list[str]]]:
    """The named sequences that find a rule's ops, by name.

    A generic op is compared as it is spelt: one matcher for each order of commuted operands.
    """
    if rule.match.op != "generic":
        return [(rule.entry, _matcher(rule, kind, rule.entry, _root(rule)))]
    out = []
    for number, root in enumerate(generic.roots(rule)):
        name = f"{rule.entry}_{number}" if number else rule.entry
        out.append((name, _matcher(rule, kind, name, root)))
    return out


_UNCONFIGURED = "transform.iree.match.has_no_lowering_config %op : !transform.any_op"


def _name(rule: ConfigRule) -> list[str]:
    if rule.match.op == "operation" or rule.match.name is None:
        return []
    return [f'transform.match.operation_name %op ["{rule.match.name}"] : !transform.any_op']


def _matcher(rule: ConfigRule, kind: str, name: str, root: Sequence[str]) -> list[str]:
    """A named sequence that finds ops and yields what the rule sets."""
    params = _params(rule, kind)
    names = _param_names(params)
    body = [
        *([] if rule.match.configured else [_UNCONFIGURED]),
        *_name(rule),
        *root,
        *_limits(rule),
    ]
    for param, text in zip(names, (text for _, text in params if text), strict=True):
        first, *more = f"%{param} = transform.param.constant {text} -> !transform.any_param".split(
            "\n"
        )
        body += [first, *more]
    types = ", ".join(["!transform.any_op"] + ["!transform.any_param"] * len(names))
    body.append(f"transform.yield {', '.join(['%op', *('%' + n for n in names)])} : {types}")
    return [
        f"transform.named_sequence @{name}({_OP})",
        f"    -> ({types}) {{",
        *_indented(body, 2),
        "}",
    ]


def _root(rule: ConfigRule) -> list[str]:
    """What makes an op of the rule's class, with its maps and element types."""
    match rule.match.op:
        case "contraction":
            return _structured(rule, "contraction", ["batch", "m", "n", "k"])
        case "convolution":
            return _structured(rule, "convolution", CONVOLUTION_GROUPS)
        case "attention":
            return _attention(rule)
        case "operation":
            return _operation(rule)
    raise AssertionError(rule.match.op)


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


def _structured(rule: ConfigRule, name: str, groups: Sequence[str]) -> list[str]:
    lhs, rhs, out = rule.operands
    maps = (affine_map(rule, o) for o in rule.operands)
    lines = [
        f"{', '.join('%' + g for g in groups)} = transform.iree.match.{name} %op,",
        f"  lhs_type = {lhs.element}, rhs_type = {rhs.element}, output_type = {out.element},",
        "  indexing_maps = [",
        *_joined([f"    {m}" for m in maps]),
        "  ] : !transform.any_op -> !transform.param<i64>",
    ]
    if name == "contraction":
        for group, loops in contraction_groups(rule).items():
            sizes = [rule.exact(loop) for loop in loops]
            if any(sizes):  # -1 stands for any size
                shown = ", ".join(str(size or -1) for size in sizes)
                lines.append(
                    f"transform.iree.match.dims_equal %{group}, [{shown}] : !transform.param<i64>"
                )
    return lines


def _attention(rule: ConfigRule) -> list[str]:
    """Attention is the online form by the time configurations are chosen.

    Its maximum and sum are indexed as the result without the values' dims. The typed matcher knows
    no mask: with one, the operation's name, operand types and the dims' sizes have to do.
    """
    types, out = rule.match.types, rule.operands[-1]
    if len(rule.operands) == 5:
        return [
            'transform.match.operation_name %op ["iree_linalg_ext.online_attention"] '
            ": !transform.any_op",
            *_operand_types(
                {
                    **{i: _tensor(o) for i, o in zip(MASKED, rule.operands[:4], strict=True)},
                    # Without a mask there is no eighth operand.
                    7: _tensor(Operand("", tuple(_running(rule)), types.get("sum", out.element))),
                }
            ),
        ]
    query, key, value = rule.operands[:3]
    maps = [
        affine_map(rule, query),
        affine_map(rule, key),
        affine_map(rule, value),
        f"affine_map<({', '.join(rule.loops)}) -> ()>",
        affine_map(rule, out),
        *[affine_map(rule, Operand("", tuple(_running(rule))))] * 2,
    ]
    return [
        "%batch, %m, %n, %k1, %k2 = transform.iree.match.online_attention %op,",
        f"  query_type = {query.element}, key_type = {key.element}, "
        f"value_type = {value.element}, scale_type = {types.get('scale', query.element)},",
        f"  output_type = {out.element}, max_type = {types.get('max', out.element)}, "
        f"sum_type = {types.get('sum', out.element)},",
        "  indexing_maps = [",
        *_joined([f"    {m}" for m in maps]),
        "  ] : !transform.any_op -> !transform.param<i64>",
    ]


def _running(rule: ConfigRule) -> list[ast.Expr]:
    """What the running maximum and sum are indexed by: the result's dims but the values' own."""
    own = attention_roles(rule)["n"]
    return [i for i in rule.operands[-1].indices if isinstance(i, ast.Name) and i.id not in own]


#: Where a masked online attention has its queries, keys, values and mask (3 is the scale).
MASKED = (0, 1, 2, 4)


def attention_roles(rule: ConfigRule) -> dict[str, list[str]]:
    """The loops of an attention by what they do: batch, m, n, k1, k2."""
    query, key, value = rule.operands[:3]
    out = rule.operands[-1]
    reads = {
        name: {n for i in o.indices for n in index_names(i)}
        for name, o in (("q", query), ("k", key), ("v", value), ("o", out))
    }
    roles: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k1": [], "k2": []}
    for loop in rule.loops:
        held = "".join(name for name in "qkvo" if loop in reads[name])
        role = {"qkvo": "batch", "qo": "m", "vo": "n", "qk": "k1", "kv": "k2"}.get(held)
        if role is not None:
            roles[role].append(loop)
    return roles


def _tensor(operand: Operand) -> str:
    return f"tensor<{'?x' * len(operand.indices)}{operand.element}>"


def _operand_types(types: dict[int, str]) -> list[str]:
    lines = []
    for i, text in types.items():
        lines += [
            f"%operand{i} = transform.get_operand %op[{i}] : (!transform.any_op) -> "
            "!transform.any_value",
            f"transform.iree.match.cast_compatible_type %operand{i} = {text} "
            ": !transform.any_value",
        ]
    return lines


def _operation(rule: ConfigRule) -> list[str]:
    named = {i: text for i, text in enumerate(rule.match.operands) if text is not None}
    lines = [
        f'transform.match.operation_name %op ["{rule.match.name}"] : !transform.any_op',
        *_operand_types(named),
    ]
    given: set[int] = set(named)
    for limit in rule.match.limits:
        if limit.operand not in given:
            given.add(limit.operand)
            lines.append(
                f"%operand{limit.operand} = transform.get_operand %op[{limit.operand}] : "
                "(!transform.any_op) -> !transform.any_value"
            )
        lines += _bounds(f"%operand{limit.operand}[{limit.dim}]", limit)
    if rule.match.program is not None:
        handles = "(!transform.any_op) -> (!transform.any_value, !transform.any_value)"
        lines += [
            "%inputs, %outputs = transform.iree.match.cast_compatible_dag_from_root %op {",
            *rule.match.program.rstrip().split("\n"),
            f"}} : {handles}",
        ]
    return lines


def _joined(lines: list[str]) -> list[str]:
    return [line + "," for line in lines[:-1]] + lines[-1:]


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


def _bounds(dim: str, limits: DimRange | OperandLimit) -> list[str]:
    lines = []
    if limits.min is not None or limits.max is not None:
        low = "none" if limits.min is None else f"umin = {limits.min}"
        high = "none" if limits.max is None else f"umax = {limits.max}"
        lines.append(f"transform.iree.match.dim_bounds {dim}, {low}, {high} : !transform.any_value")
    if limits.multiple_of is not None:
        lines.append(
            f"transform.iree.match.dim_is_multiple_of {dim}, {limits.multiple_of} "
            ": !transform.any_value"
        )
    return lines


def _limits(rule: ConfigRule) -> list[str]:
    """Sizes of the dims, asked of the operands that have them."""
    exact = rule.match.op == "contraction"  # where dims_equal has asked for exact sizes
    values: dict[int, None] = {}
    lines = []
    for loop, limits in rule.dims.items():
        place = place_of(rule, loop)
        if place is None or (exact and rule.exact(loop)):
            continue
        values.setdefault(place[0])
        lines += _bounds(f"%value{place[0]}[{place[1]}]", limits)
    got = [
        f"%value{i} = transform.get_operand %op[{i}] : (!transform.any_op) -> !transform.any_value"
        for i in values
    ]
    return got + lines
