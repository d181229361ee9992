"""How long reading, checking and linking a tuning spec takes, by its number of entries.

Each spec has product entries of different sizes, every tenth with a range that meets others, so
that overlaps are part of the time. The time of `iree-opt`, which only parses, stands beside it.

    python benchmarks/spec_scale.py
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from mlirules.drivers.iree import compiler
from mlirules.drivers.tuning_specs.check import check_spec
from mlirules.drivers.tuning_specs.link import link, linked_text

ENTRY = """\
  transform.named_sequence @match_{n}(%op: !transform.any_op {{transform.readonly}})
      -> (!transform.any_op, !transform.any_param) {{
    transform.iree.match.has_no_lowering_config %op : !transform.any_op
    %batch, %m, %n, %k = transform.iree.match.contraction %op,
      lhs_type = f16, rhs_type = f16, output_type = f32,
      indexing_maps = [
        affine_map<(d0, d1, d2) -> (d0, d2)>,
        affine_map<(d0, d1, d2) -> (d1, d2)>,
        affine_map<(d0, d1, d2) -> (d0, d1)>
      ] : !transform.any_op -> !transform.param<i64>
{sizes}
    %config = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_gpu.lowering_config<{{
        promote_operands = [0, 1], mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>,
        subgroup_basis = [[2, 2, 1], [0, 1, 2]], reduction = [0, 0, 64],
        workgroup = [64, 128, 0]}}>,
      translation_info = #iree_codegen.translation_info<
        pipeline = #iree_gpu.pipeline<VectorDistribute>
        workgroup_size = [256, 1, 1] subgroup_size = 64,
        {{gpu_pipeline_options = #iree_gpu.pipeline_options<prefetch_num_stages = 2>}}>>
      -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }}
"""


def spec(entries: int) -> str:
    """A spec of that many entries."""
    parts = [
        "module attributes { transform.with_named_sequence, "
        "iree_codegen.tuning_spec_with_default_entrypoint } {",
        "  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, "
        "%config: !transform.any_param {transform.readonly}) {",
        '    transform.annotate %op "compilation_info" = %config : !transform.any_op, '
        "!transform.any_param",
        "    transform.yield",
        "  }",
    ]
    for n in range(entries):
        m, k = 64 * (n + 1), 64 * (1 + n % 7)
        sizes = [
            f"    transform.iree.match.dims_equal %n, [{128 * (1 + n % 5)}] : !transform.param<i64>"
        ]
        if n % 10 == 9:  # takes the sizes of the nine before it, and of others around
            sizes += [
                "    %lhs = transform.get_operand %op[0] : (!transform.any_op) -> "
                "!transform.any_value",
                f"    transform.iree.match.dim_bounds %lhs[0], umin = {m - 1280}, umax = {m} : "
                "!transform.any_value"
                if m > 1280
                else f"    transform.iree.match.dim_bounds %lhs[0], none, umax = {m} : "
                "!transform.any_value",
            ]
        else:
            sizes += [
                f"    transform.iree.match.dims_equal %m, [{m}] : !transform.param<i64>",
                f"    transform.iree.match.dims_equal %k, [{k}] : !transform.param<i64>",
            ]
        parts.append(ENTRY.format(n=n, sizes="\n".join(sizes)))
    tried = ",\n".join(f"      @match_{n} -> @apply" for n in range(entries))
    parts += [
        "  transform.named_sequence @__kernel_config(%variant: !transform.any_op "
        "{transform.consumed}) -> !transform.any_op",
        "      attributes { iree_codegen.tuning_spec_entrypoint } {",
        f"    %done = transform.foreach_match in %variant\n{tried}",
        "      : (!transform.any_op) -> !transform.any_op",
        "    transform.yield %done : !transform.any_op",
        "  }",
        "}",
        "",
    ]
    return "\n".join(parts)


def main() -> None:
    """Print a line for each number of entries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, nargs="*", default=[100, 200, 400, 800, 1500])
    arguments = parser.parse_args()
    check_spec("warm.mlir", spec(2), target="hip:gfx942")  # what the first use alone pays
    print("entries  overlaps  check s  link s  ms an entry  iree-opt s")
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.entries:
            text = spec(count)
            file = Path(folder) / f"{count}.mlir"
            file.write_text(text)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            source = check_spec(str(file), target="hip:gfx942")
            checked = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            assert len(source.rules) == count, source.faults[0].render()
            linked = link([source], precedence="first")
            linked_text(linked, "hip:gfx942")
            done = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            started = time.monotonic()
            tool = compiler.tool_path("iree-opt")
            subprocess.run([tool, str(file), "-o", "/dev/null"], check=True)
            parsed = time.monotonic() - started
            found = sum(f.code == "overlap" for f in source.faults)
            print(
                f"{count:7}  {found:8}  {checked - before:7.2f}  {done - checked:6.2f}  "
                f"{1000 * (done - before) / count:11.2f}  {parsed:10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
