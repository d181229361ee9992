"""Config rules as a tuning spec: transform-dialect text in the strict default-entrypoint form.

One matcher an entry, named by op, shape and types; one action, which sets the configuration and
leaves the rule's name on the op (:data:`MARKER`), so that a dump of the configurations shows which
entries took effect. Every matcher begins with ``has_no_lowering_config``: without it the last of
several linked specs would win in some include chains, and the first in others.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.rules.config import (
    Basis,
    MmaKind,
    Settings,
    SubConfig,
    basis_counts,
    levels_of,
    mma_name,
)
from mlirules.rules.configrule import ConfigRule, Operand, index_names, render
from mlirules.rules.notation import ast

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
        *(f"// {rule.name}: generated from {rule.path}:{rule.span.line}" for rule in rules),
        f"module @{name} attributes {{ transform.with_named_sequence, "
        "iree_codegen.tuning_spec_with_default_entrypoint } {",
        *_actions(rules),
    ]
    for rule in rules:
        lines += ["", *_indented(matcher(rule, kind), 2)]
    lines += ["", *_entry_point(rules), "}", ""]
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
    return sub_config(rule.loops, settings, kind)


def tile_list(loops: Sequence[str], sizes: dict[str, int]) -> str:
    """Tile sizes by name as the compiler's list: one number a loop, 0 for those not tiled."""
    return "[" + ", ".join(str(sizes.get(loop, 0)) for loop in loops) + "]"


def sub_config(loops: Sequence[str], part: Settings | SubConfig, kind: str) -> str:
    """A lowering config for cpu, cuda or hip."""
    levels = [
        f"{level} = {tile_list(loops, part.tiles[level])}"
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
            items.append(f"{key} = {basis(loops, given)}")
    if isinstance(part, Settings) and part.convert_acc_gemm:
        items.append("convert_acc_gemm")
    return f"#iree_gpu.lowering_config<{{{', '.join(items)}}}>"


def mma(kind: str | MmaKind) -> str:
    """A matrix instruction as the compiler's attribute."""
    name = mma_name(kind)
    layout = "virtual_mma_layout" if name.startswith(("VMFMA_", "VDMFMA_")) else "mma_layout"
    major = ", col_major = true" if isinstance(kind, MmaKind) and kind.col_major else ""
    return f"#iree_gpu.{layout}<{name}{major}>"


def basis(loops: Sequence[str], given: Basis | dict[str, int]) -> str:
    """A basis: counts for every loop, then the loops that the op has."""
    counts = basis_counts(given)
    over = given.over if isinstance(given, Basis) and given.over else list(loops)
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


def _entry_point(rules: Sequence[ConfigRule]) -> list[str]:
    out = [
        f"  transform.named_sequence @{ENTRY}(%variant: !transform.any_op {{transform.consumed}})"
        " -> !transform.any_op",
        "      attributes { iree_codegen.tuning_spec_entrypoint } {",
        "    %done = transform.foreach_match in %variant",
    ]
    for i, rule in enumerate(rules):
        if rule.doc.measured is not None:
            measured = rule.doc.measured
            out.append(
                f"      // {measured.speedup:.2f} times as fast as the default: "
                f"{measured.tuned_ms:g} ms for {measured.default_ms:g} ms, "
                f"spread {measured.spread:.1%}, on {measured.device.splitlines()[0]}, "
                f"compiler {measured.compiler}."
            )
        comma = "," if i + 1 < len(rules) else ""
        out.append(f"      @{rule.entry} -> @{_action_of(rule)}{comma}")
    return [
        *out,
        "      : (!transform.any_op) -> !transform.any_op",
        "    transform.yield %done : !transform.any_op",
        "  }",
    ]


def matcher(rule: ConfigRule, kind: str) -> list[str]:
    """The named sequence that finds a rule's ops and yields what it sets."""
    decomposition = rule.settings.decomposition
    types = ["!transform.any_op", "!transform.any_param", "!transform.any_param"]
    yields = ["%op", "%config", "%rule"]
    if decomposition is not None:
        types.append("!transform.any_param")
        yields.append("%decomposition")
    info = compilation_info(rule, kind).split("\n")
    body = [
        "transform.iree.match.has_no_lowering_config %op : !transform.any_op",
        *_root(rule),
        *_limits(rule),
        f"%config = transform.param.constant {info[0]}",
        *info[1:-1],
        f"{info[-1]} -> !transform.any_param",
        f'%rule = transform.param.constant "{rule.name}" -> !transform.any_param',
    ]
    if decomposition is not None:
        parts = []
        for name in ("qk", "pv"):
            part = getattr(decomposition, name)
            if part is not None:
                config = sub_config(rule.loops, part, kind)
                parts.append(f"  {name}_attrs = {{lowering_config = {config}}}")
        joined = ",\n".join(parts).split("\n")
        body += [
            "%decomposition = transform.param.constant {",
            *joined,
            "} -> !transform.any_param",
        ]
    body.append(f"transform.yield {', '.join(yields)} : {', '.join(types)}")
    return [
        f"transform.named_sequence @{rule.entry}({_OP})",
        f"    -> ({', '.join(types)}) {{",
        *_indented(body, 2),
        "}",
    ]


def _root(rule: ConfigRule) -> list[str]:
    """What makes an op of the rule's class, with its maps and element types."""
    match rule.match.op:
        case "contraction":
            return _structured(rule, "contraction", ["batch", "m", "n", "k"])
        case _:
            raise NotImplementedError(rule.match.op)


def affine_map(rule: ConfigRule, operand: Operand) -> str:
    """An operand's indexing map over the rule's loops."""
    results = ", ".join(render(i) for i in operand.indices)
    return f"affine_map<({', '.join(rule.loops)}) -> ({results})>"


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
            if sizes and all(sizes):
                lines.append(
                    f"transform.iree.match.dims_equal %{group}, [{', '.join(map(str, sizes))}] "
                    ": !transform.param<i64>"
                )
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
                return i, j
    return None


def _limits(rule: ConfigRule) -> list[str]:
    """Sizes of the dims, asked of the operands that have them."""
    done: set[str] = set()
    if rule.match.op == "contraction":
        done = {
            loop
            for loops in contraction_groups(rule).values()
            if all(rule.exact(d) for d in loops)
            for loop in loops
        }
    values: dict[int, None] = {}
    lines = []
    for loop, limits in rule.dims.items():
        place = place_of(rule, loop)
        if loop in done or place is None:
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
        f"%value{i} = transform.get_operand %op[{i}] : (!transform.any_op) -> "
        "!transform.any_value"
        for i in values
    ]
    return got + lines
