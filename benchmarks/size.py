"""How long is a rule? Lines of YAML against lines of the C++ pattern that does the same.

    python benchmarks/size.py

YAML lines are those of the rule files without their tests, documentation (summary, reason, notes,
tags), comments and empty lines: what a person writes to say the rewrite. The C++ figures were
counted in torch-mlir at commit 0029fc2e1 (2026-08-20): the lines of the named pattern class or
branch without comments and empty lines, and without the helpers, registration and headers around
it. Where several rule files stand for one pattern, all of them count.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import yaml

from mlirules.support import package

RULES = package.RULES / "torch"

FOLDERS = ("to-linalg", "decompose")

# op -> (rule files, lines of C++, where the C++ stands)
TABLE: dict[str, tuple[list[str], int, str]] = {
    "relu": (["relu"], 42, "branch of createLinalgPayloadCalculationForElementwiseOp"),
    "mm": (["mm"], 132, "ConvertAtenMmOp"),
    "softmax": (["softmax"], 64, "DecomposeAten_SoftmaxOp + getSoftmaxResult"),
    "max_pool2d": (["max-pool2d-with-indices"], 275, "ConvertAtenMaxPoolOp"),
    "batch_norm": (
        ["native-batch-norm", "native-batch-norm-training"],
        146,
        "DecomposeAtenNativeBatchNormOp",
    ),
    "convolution": (
        [
            "convolution",
            "convolution-depthwise",
            "convolution-grouped",
            "convolution-transposed",
            "convolution-transposed-grouped",
        ],
        632,
        "ConvertAtenConvolutionOp",
    ),
    "gather": (["gather"], 43, "ConvertAtenGatherOp"),
    "cumsum": (["cumsum"], 72, "ConvertAtenCumsumOp"),
    "layer_norm": (["native-layer-norm"], 82, "DecomposeAtenNativeLayerNormOp"),
    "nll_loss": (["nll-loss-forward"], 138, "ConvertAtenNllLossForwardOp"),
}

DOCUMENTATION = ("summary", "reason", "notes", "tags", "tests", "tolerance")


def rule_lines(path: Path) -> int:
    """Lines of a rule file that say the rewrite."""
    text = path.read_text(encoding="utf-8")
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode)
    left_out: set[int] = set()
    for key, value in node.value:
        if key.value in DOCUMENTATION:
            end = value.end_mark.line + (value.end_mark.column > 0)
            left_out |= set(range(key.start_mark.line, max(end, key.start_mark.line + 1)))
    return sum(
        1
        for n, line in enumerate(text.splitlines())
        if n not in left_out and line.strip() and not line.strip().startswith("#")
    )


def main() -> int:
    """Print the table; exit 1 when a rule file of the table is gone."""
    ratios = []
    print(f"{'op':<12} {'YAML':>5} {'C++':>5} {'ratio':>6}  C++ pattern")
    for op, (names, cpp, where) in TABLE.items():
        files = [f for n in names for d in FOLDERS for f in sorted((RULES / d).rglob(f"{n}.yaml"))]
        if not files:
            print(f"{op}: no rule file {names}", file=sys.stderr)
            return 1
        lines = sum(rule_lines(f) for f in files)
        if cpp:
            ratios.append(cpp / lines)
        shown = f"{cpp / lines:>6.1f}" if cpp else "     -"
        print(f"{op:<12} {lines:>5} {cpp or '-':>5} {shown}  {where}")
    print(f"median ratio {statistics.median(ratios):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
