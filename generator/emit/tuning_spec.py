"""Config rules as a tuning spec: transform-dialect text in the strict default-entrypoint form.

One matcher an entry, named by op, shape and types; one action, which sets the configuration and
leaves the rule's name on the op (:data:`MARKER`), so that a dump of the configurations shows which
entries took effect. Every matcher begins with ``has_no_lowering_config``: without it the last of
several linked specs would win in some include chains, and the first in others.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.generator.emit import generic, pdll
from mlirules.language.config.model import (
    Basis,
    MmaKind,
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


def tuning_spec(
    rules: Sequence[ConfigRule], *, name: str = "mlirules_configs", kind: str | None = None
) -> str:
    """The spec of config rules, in their order: of two that match, the first wins.

    ``kind`` is the kind of target (cpu, cuda, hip, vulkan); default: that of the first rule.
    """
    kind = kind or min(rules[0].kinds)
    lines = [
        "// A tuning spec. Do not edit: change the rules and generate again.",
        *(f"// {rule.name}: generated from {pdll.location(rule)}" for rule in rules),
        f"module @{name} attributes {{ transform.with_named_sequence, "
        "iree_codegen.tuning_spec_with_default_entrypoint } {",
        *_actions(rules),
    ]
    entries: list[tuple[str, ConfigRule]] = []
    for rule in rules:
        for name, text in matchers(rule, kind):
            lines += ["", *_indented(text, 2)]
            entries.append((name, rule))
    lines += ["", *_entry_point(entries), "}", ""]
    return "\n".join(lines)


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


def _actions(rules: Sequence[ConfigRule]) -> list[str]:
    """The sequences that set a configuration; the one for decompositions only where needed."""
    param = "!transform.any_param {transform.readonly}"
    to = "!transform.any_op, !transform.any_param"
    out = []
    for name, decomposed in (("apply_config", False), ("apply_decomposed_config", True)):
        if not any((r.settings.decomposition is not None) == decomposed for r in rules):
            continue
        extra = f", %decomposition: {param}" if decomposed else ""
        out += [
            f"  transform.named_sequence @{name}(",
            f"      {_OP}, %config: {param}, %rule: {param}{extra}) {{",
            f'    transform.annotate %op "compilation_info" = %config : {to}',
        ]
        if decomposed:
            out.append(f'    transform.annotate %op "decomposition_config" = %decomposition : {to}')
        out += [
            f'    transform.annotate %op "{MARKER}" = %rule : {to}',
            "    transform.yield",
            "  }",
        ]
    return out


def _action_of(rule: ConfigRule) -> str:
    return "apply_config" if rule.settings.decomposition is None else "apply_decomposed_config"


def _entry_point(entries: Sequence[tuple[str, ConfigRule]]) -> list[str]:
    out = [
        f"  transform.named_sequence @{ENTRY}(%variant: !transform.any_op {{transform.consumed}})"
        " -> !transform.any_op",
        "      attributes { iree_codegen.tuning_spec_entrypoint } {",
        "    %done = transform.foreach_match in %variant",
    ]
    for i, (name, rule) in enumerate(entries):
        if rule.doc.measured is not None:
            measured = rule.doc.measured
            out.append(
                f"      // {measured.speedup:.2f} times as fast as the default: "
                f"{measured.tuned_ms:g} ms for {measured.default_ms:g} ms, "
                f"spread {measured.spread:.1%}, on {measured.device.splitlines()[0]}, "
                f"compiler {measured.compiler}."
            )
        comma = "," if i + 1 < len(entries) else ""
        out.append(f"      @{name} -> @{_action_of(rule)}{comma}")
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


def _matcher(rule: ConfigRule, kind: str, name: str, root: Sequence[str]) -> list[str]:
    """A named sequence that finds ops and yields what the rule sets."""
    decomposition = rule.settings.decomposition
    types = ["!transform.any_op", "!transform.any_param", "!transform.any_param"]
    yields = ["%op", "%config", "%rule"]
    if decomposition is not None:
        types.append("!transform.any_param")
        yields.append("%decomposition")
    info = compilation_info(rule, kind).split("\n")
    body = [
        "transform.iree.match.has_no_lowering_config %op : !transform.any_op",
        *root,
        *_limits(rule),
        f"%config = transform.param.constant {info[0]}",
        *info[1:-1],
        f"{info[-1]} -> !transform.any_param",
        f'%rule = transform.param.constant "{rule.name}" -> !transform.any_param',
    ]
    if decomposition is not None:
        parts = decomposition_config(rule, kind).split("\n")
        body += [
            f"%decomposition = transform.param.constant {parts[0]}",
            *parts[1:-1],
            f"{parts[-1]} -> !transform.any_param",
        ]
    body.append(f"transform.yield {', '.join(yields)} : {', '.join(types)}")
    return [
        f"transform.named_sequence @{name}({_OP})",
        f"    -> ({', '.join(types)}) {{",
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
    return [
        f'transform.match.operation_name %op ["{rule.match.name}"] : !transform.any_op',
        *_operand_types(named),
    ]


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
        dim = f"%value{place[0]}[{place[1]}]"
        if limits.min is not None or limits.max is not None:
            low = "none" if limits.min is None else f"umin = {limits.min}"
            high = "none" if limits.max is None else f"umax = {limits.max}"
            lines.append(
                f"transform.iree.match.dim_bounds {dim}, {low}, {high} : !transform.any_value"
            )
        if limits.multiple_of is not None:
            lines.append(
                f"transform.iree.match.dim_is_multiple_of {dim}, {limits.multiple_of} "
                ": !transform.any_value"
            )
    got = [
        f"%value{i} = transform.get_operand %op[{i}] : (!transform.any_op) -> !transform.any_value"
        for i in values
    ]
    return got + lines
