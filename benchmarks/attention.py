"""Attention on cpu in one run: PyTorch's op and spelt out, stock IREE, a pipeline, PyTorch eager.

Spelt out is what decoders write: product with the transposed keys, division by sqrt(width), mask,
softmax, product; heads that share keys repeat them. "core" is that after PyTorch's decompositions.
Ratios are against stock IREE's form of PyTorch's op.

python benchmarks/attention.py                                         # 1x20x1024x64 f32
python benchmarks/attention.py --shape 1,8,512,64 --shared 2 --causal  # a decoder's
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from mlirules.drivers.frontend.torch import Options, import_model
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import timing
from mlirules.drivers.measure.child import relative_error
from mlirules.drivers.pipelines.transform import Pipeline, compile_program


class Attention(nn.Module):
    """Attention of ``batch x heads x length x width`` to ``shared`` heads of keys and values."""

    def __init__(self, shape: str, shared: str, causal: str) -> None:
        super().__init__()
        self.shape = [int(n) for n in shape.split(",")]
        self.shared, self.causal = int(shared), causal == "yes"

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """Queries, keys, values."""
        batch, _, length, width = self.shape
        few = (batch, self.shared, length, width)
        return torch.randn(self.shape), torch.randn(few), torch.randn(few)


class Op(Attention):
    """PyTorch's op."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The op, with heads shared by it."""
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=self.shared != self.shape[1]
        )


class Spelt(Attention):
    """The same as a decoder spells it."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Two products and a softmax."""
        _, heads, length, width = self.shape
        if heads != self.shared:
            k, v = (x.repeat_interleave(heads // self.shared, dim=1) for x in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(width)
        if self.causal:
            scores = scores + torch.full((length, length), float("-inf")).triu(1)
        return torch.matmul(torch.softmax(scores, dim=-1), v)


FORMS = (("", "Op", False), (" spelt", "Spelt", False), (" core", "Spelt", True))


def main() -> int:
    """Run the benchmark; exit status 1 when results are apart or the aim is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="1,20,1024,64", help="batch, heads, length, width")
    parser.add_argument("--shared", metavar="N", help="heads of keys and values; default: all")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--pipeline", default="cpu-fast")
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    parser.add_argument("--seconds", type=float, default=60, metavar="S")
    parser.add_argument("--at-least", type=float, default=8, metavar="X", help="times as fast")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    cpu = Target.parse("cpu")
    arguments = {
        "shape": options.shape,
        "shared": options.shared or options.shape.split(",")[1],
        "causal": "yes" if options.causal else "no",
    }
    line = Pipeline.load(options.pipeline)
    programs: dict[str, runtime.Program] = {}
    errors: dict[str, float] = {}
    for form, name, decompose in FORMS:
        model = import_model(
            f"{__file__}:{name}", Options(arguments=arguments, decompose=decompose)
        )
        inputs = list(model.inputs)
        made, done = compile_program(model.text, cpu, line)
        for decision in done.outcome.decisions:
            print(f"{form.strip() or 'op'}: {decision}")
        binaries = {f"{line.pipeline}{form}": made}
        if not decompose:
            binaries[f"stock{form}"] = compiler.compile_module(model.text, cpu)
        for key, binary in binaries.items():
            programs[key] = runtime.Program(binary, inputs, cpu.device)
            errors[key] = relative_error(programs[key].results()[0], model.results[0])
    model_of_torch = Op(**arguments)
    tensors = model_of_torch.example_inputs()

    def eager() -> None:
        with torch.no_grad():
            model_of_torch(*tensors)

    ordered: dict[str, Callable[[], object]] = {"stock": programs.pop("stock")}
    ordered |= {**programs, "PyTorch": eager}
    found = timing.paired(ordered, rounds=options.rounds, seconds=options.seconds)
    for name, one in found.timings.items():
        error = f"error {errors[name]:.1e}" if name in errors else ""
        print(
            f"{name:16} {1e3 * one.median:9.3f} ms  spread {100 * one.spread:4.1f} %  "
            f"{found.ratio(name)} times stock's speed  {error}"
        )
    print(f"drift {found.drift:.2f}, {len(found['stock'].samples)} rounds")
    if options.json:
        report = {"shape": model_of_torch.shape, "errors": errors, **found.as_json()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    ours = [found.ratio(f"{line.pipeline}{form}").median for form, _, _ in FORMS]
    return 0 if max(errors.values()) < 1e-4 and min(ours) >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
