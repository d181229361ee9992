"""How long does it take to say why a rule does not apply, beside applying it?

The program is a chain of `torch.aten.mm` and `torch.aten.add.Tensor`; every seventh product is of
bool, which the rule refuses. On one parsed program of `--ops` ops this measures, in one process:

    match      what every driver asks: does the rule apply at each op
    explain    `mlirules explain` with the rule for products: all reasons at each op, ranked
    why-not    `apply --why-not` with all rules of `torch/to-linalg`: the same for every rule

The fastest of `--repeat` counts. Ratios are to parsing the program's text.

    python benchmarks/explaining.py --ops 10000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from mlirules.drivers.apply.programs import shared_context
from mlirules.drivers.apply.run import Outcome
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Match
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.explain import diagnoses, why_not

F32, BOOL = "!torch.vtensor<[64,64],f32>", "!torch.vtensor<[64,64],i1>"


def program(ops: int) -> str:
    """A function of so many ops."""
    rows = [
        f"func.func @f(%x0: {F32}, %w: {F32}, %b: {BOOL}) -> {F32} {{",
        "  %one = torch.constant.int 1",
    ]
    last = "%x0"
    for i in range(ops // 2):
        if i % 7 == 3:
            rows.append(f"  %q{i} = torch.aten.mm %b, %b : {BOOL}, {BOOL} -> {BOOL}")
        else:
            rows.append(f"  %m{i} = torch.aten.mm {last}, %w : {F32}, {F32} -> {F32}")
            last = f"%m{i}"
        rows.append(
            f"  %r{i} = torch.aten.add.Tensor {last}, %w, %one : {F32}, {F32}, !torch.int -> {F32}"
        )
        last = f"%r{i}"
    return "\n".join([*rows, f"  return {last} : {F32}", "}", ""])


def fastest(run: Callable[[], object], repeat: int) -> float:
    """The least time of some runs, in seconds."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ops", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    text = program(given.ops)
    rules = rule_set(("torch/to-linalg",))
    (product,) = (r for r in rules if r.name == "torch-mm-to-linalg")
    context = shared_context()
    module = compiler.parse(text, "program.mlir", context)
    roots = [op for op in ops_below(module.operation) if op.name in product.root_ops]

    def match() -> None:
        matcher = Matcher(product, context)
        assert sum(isinstance(matcher.match(op), Match) for op in roots) < len(roots)

    def explain() -> None:
        found = diagnoses(Matcher(product, context), module)
        assert str(found[-1].refusals[0].line) == "T != i1"

    def all_rules() -> None:
        assert why_not([Matcher(r, context) for r in rules], module, module, Outcome())

    seconds = {
        "parse": fastest(lambda: compiler.parse(text, "program.mlir", context), given.repeat),
        "match": fastest(match, given.repeat),
        "explain": fastest(explain, given.repeat),
        "why-not": fastest(all_rules, given.repeat),
    }
    if given.json:
        print(json.dumps({"ops": given.ops, "rules": len(rules), "seconds": seconds}, indent=2))
        return
    print(f"{given.ops} ops, {len(rules)} rules")
    for name, value in seconds.items():
        print(f"{name:<8} {value:8.3f} s {value / seconds['parse']:8.2f} x parse")


if __name__ == "__main__":
    main()
