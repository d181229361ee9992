"""Small models in many spellings, for rules as Inductor's patterns against the same rules here.

``python tests/inductor_models.py`` prints for each model how often which rule applies on both
sides: to the FX graph of its exported program, and to the same program in the torch dialect.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as nnf

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import shared_context
from mlirules.drivers.apply.run import Options
from mlirules.drivers.frontend.torch import decomposed
from mlirules.drivers.iree.fx import fx_import
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.generator.emit.inductor import inductor
from mlirules.language.rule import Rule

SETS = ("torch/fusions", "torch/unfuse", "torch/decompose")


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def gelus(x: torch.Tensor) -> Any:
    cube = x + 0.044715 * torch.pow(x, 3.0)
    tanh = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cube))
    a = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    b = 0.5 * (x * (1.0 + torch.erf(x * (1 / math.sqrt(2.0)))))
    wanted_elsewhere = torch.erf(x / math.sqrt(2.0))
    c = x * 0.5 * (1.0 + wanted_elsewhere)
    return tanh, a, b, c, wanted_elsewhere, x * torch.sigmoid(x), torch.sigmoid(a) * a


def layer_norms(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    first = (x - mean) / torch.sqrt(var + 1e-5) * w + b
    var2 = x.var(-1, keepdim=True, unbiased=False)
    second = (x - mean) * torch.rsqrt(var2 + 1e-6) * w + b
    var3, mean3 = torch.var_mean(x, -1, correction=0, keepdim=True)
    third = (x - mean3) * torch.rsqrt(var3 + 1e-6)
    square = (x - mean) * (x - mean)
    fourth = w * ((x - mean) / (square.mean(-1, keepdim=True) + 1e-12).sqrt()) + b
    return first, second, third, fourth


def rms_norms(x: torch.Tensor, w: torch.Tensor) -> Any:
    first = w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    second = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w
    third = x / torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-6)
    wide = x.to(torch.float64)
    fourth = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    return first, second, third, fourth


def attentions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> Any:
    scale = 1 / math.sqrt(q.shape[-1])
    first = torch.softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v
    second = torch.matmul(nnf.softmax(torch.matmul(q, k.transpose(2, 3)) / 2.0, dim=-1), v)
    third = torch.softmax((q * scale) @ k.transpose(-2, -1) + m, dim=-1) @ v
    fourth = torch.softmax(q @ (k * 0.5).transpose(-2, -1), dim=-1) @ v
    hidden = (q @ k.transpose(-2, -1)).masked_fill(m > 0, float("-inf"))
    fifth = torch.softmax(hidden, dim=-1, dtype=torch.float32) @ v
    sixth = nnf.dropout(nnf.softmax(torch.bmm(q[0], k[0].transpose(1, 2)), -1), 0.1, False) @ v[0]
    return first, second, third, fourth, fifth, sixth


def fused_attentions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> Any:
    fused = nnf.scaled_dot_product_attention
    return (
        fused(q, k, v),
        fused(q, k, v, scale=0.25),
        fused(q, k, v, attn_mask=m),
        fused(q, k, v, attn_mask=m > 0),
        fused(q, k, v, is_causal=True),
    )


def views(x: torch.Tensor) -> Any:
    a = x.permute(1, 0, 2).permute(2, 0, 1)
    b = x.transpose(0, 1).transpose(0, 1)
    c = x.reshape(6, 4).reshape(4, 6).reshape(24)
    d = x.permute(0, 1, 2) + x.view(2, 3, 4)
    e = x.to(torch.float64).to(torch.float32) + x.to(torch.float32).type_as(x)
    f = nnf.dropout(x, 0.5, False).contiguous().clone()
    return (
        a,
        b,
        c,
        d,
        e,
        f,
        torch.zeros_like(x) + torch.ones(3, 4) * x,
        x.flip(0),
        x.repeat(2, 1, 1),
    )


def products(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    a = x @ w.t() + b
    c = torch.mm(x, y.t()) * 2
    d = torch.mm(x.t(), y.t()[:, :3].t())
    e = torch.addmm(b, x, w.t())
    f = nnf.relu(nnf.linear(x, w, b))
    g = nnf.linear(x, w) + b
    h = nnf.silu(nnf.linear(x, w)) * nnf.linear(x, w.flip(0))
    i = torch.einsum("ik,jk->ij", x, y)
    return a, c, d, e, f, g, h, i, nnf.gelu(nnf.linear(x, w, b)), (x @ w.t()).t()


def reductions(x: torch.Tensor) -> Any:
    return (
        x.std(-1),
        x.var((1, 2), unbiased=False),
        torch.var_mean(x, 1)[0],
        x.norm(),
        torch.linalg.vector_norm(x, dim=1),
        x.median(),
        x.median(1)[0],
        x.topk(2)[0],
        x.argsort(-1),
        x.mean(),
        x.sum(),
        x.max(),
        x.min(),
        torch.ones(3, 4).sum() + x.std(),
        x.mean((0, 2)),
        x.kthvalue(2)[0],
        torch.fliplr(x),
        x.tile(2, 1, 1),
    )


def paddings(x: torch.Tensor) -> Any:
    return (
        nnf.pad(x, (1, 1, 2, 2)),
        nnf.pad(x, (1, 1, 2, 2), mode="reflect"),
        nnf.pad(x, (1, 1, 2, 2), mode="replicate"),
        nnf.adaptive_avg_pool2d(x, (2, 2)),
        nnf.adaptive_avg_pool2d(x, 1),
        nnf.avg_pool1d(x[0], 2),
        nnf.max_pool1d(x[0], 2),
        nnf.adaptive_avg_pool1d(x[0], 4),
    )


def losses(x: torch.Tensor, t: torch.Tensor) -> Any:
    picked = -torch.log_softmax(x, -1).gather(1, t[:, None])
    return nnf.cross_entropy(x, t), nnf.nll_loss(nnf.log_softmax(x, 1), t), picked.mean()


class Norms(nn.Module):
    """Batch norm after convolutions, group and instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.BatchNorm2d(4),
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4),
            nn.ConvTranspose2d(4, 2, 2),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Gated(nn.Module):
    """A feed-forward block with a gate, and three projections of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.gate, self.up = nn.Linear(8, 12, bias=False), nn.Linear(8, 12, bias=False)
        self.down = nn.Linear(12, 8, bias=False)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.down(nnf.silu(self.gate(y)) * self.up(y))
        q, k, v = (f(x).view(2, 5, 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(4)
        out = torch.matmul(nnf.softmax(scores, dim=-1), v)
        return x + out.transpose(1, 2).reshape(2, 5, 8)


def _transformers() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    import transformers as t

    small: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
    plain = {**small, "hidden_size": 16, "intermediate_size": 32}
    ids = torch.randint(0, 50, (2, 7))

    class First(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids, use_cache=False)[0]

    def made(config: Any, how: str) -> nn.Module:
        config._attn_implementation = how
        return First(t.AutoModel.from_config(config, attn_implementation=how))

    gpt = t.GPT2Config(n_layer=2, n_head=4, n_embd=16, vocab_size=50, n_positions=16)
    llama = t.LlamaConfig(**plain, num_key_value_heads=2, max_position_embeddings=32)
    bert = t.BertConfig(**plain, max_position_embeddings=32)
    return {
        "BERT, eager attention": (made(bert, "eager"), (ids,)),
        "BERT, fused attention": (made(bert, "sdpa"), (ids,)),
        "GPT-2, eager attention": (made(gpt, "eager"), (ids,)),
        "Llama, eager attention": (made(llama, "eager"), (ids,)),
        "Llama, fused attention": (made(llama, "sdpa"), (ids,)),
    }


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The models by name, with their inputs; those of transformers where it is installed."""
    torch.manual_seed(0)
    r = torch.randn
    heads = (r(2, 2, 5, 4), r(2, 2, 5, 4), r(2, 2, 5, 4), r(5, 5))
    made: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
        "GELU and SiLU by hand": (Function(gelus), (r(2, 3, 8),)),
        "layer norm by hand": (Function(layer_norms), (r(2, 3, 8), r(8), r(8))),
        "RMS norm by hand": (Function(rms_norms), (r(2, 3, 8), r(8))),
        "attention by hand": (Function(attentions), heads),
        "fused attention": (Function(fused_attentions), heads),
        "views and casts": (Function(views), (r(2, 3, 4),)),
        "products": (Function(products), (r(3, 4), r(3, 4), r(3, 4), r(3))),
        "reductions": (Function(reductions), (r(2, 3, 4),)),
        "padding and pooling": (Function(paddings), (r(2, 3, 8, 8),)),
        "losses": (Function(losses), (r(4, 5), torch.randint(0, 5, (4,)))),
        "convolution and norms": (Norms(), (r(2, 3, 8, 8),)),
        "gated layers": (Gated(), (r(2, 5, 8),)),
    }
    if importlib.util.find_spec("transformers") is not None:
        made |= _transformers()
    return made


def module_of(rules: Iterable[Rule], folder: Path, name: str = "rules_inductor") -> ModuleType:
    """The rules' module for Inductor, loaded from a file in ``folder``."""
    text, _, _ = inductor(list(rules), origin="a test")
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...], decompose: bool) -> Any:
    """The model's exported program, with this project's decompositions or with none."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), inputs, strict=False)
        return decomposed(program) if decompose else program.run_decompositions({})


def hits(program: Any, rules: Iterable[Rule], module: ModuleType) -> dict[str, tuple[int, int]]:
    """How often each rule applies alone: to the FX graph, and to the program in the dialect."""
    said = {rule.name for rule in module.RULES}
    imported = fx_import(copy.deepcopy(program)).module
    data = str(imported.operation.get_asm())
    context = shared_context()
    found: dict[str, tuple[int, int]] = {}
    from iree.compiler import ir

    here = ir.Module.parse(data, context)
    gm = copy.deepcopy(program.graph_module)
    for rule in rules:
        if rule.name not in said:
            continue
        outcome = Engine([rule], context).run(here, Options())
        mine = outcome.counts[rule.name]
        if mine:
            here = ir.Module.parse(data, context)
        theirs = module.apply(gm, [rule.name]).get(rule.name, 0)
        if theirs:
            gm = copy.deepcopy(program.graph_module)
        if mine or theirs:
            found[rule.name] = (theirs, mine)
    return found


def difference(program: Any, module: ModuleType, inputs: tuple[torch.Tensor, ...]) -> float:
    """The largest difference of the results after all rules went over the program."""
    run = program.module()
    with torch.no_grad():
        before = run(*inputs)
        after_program = copy.deepcopy(program)
        counts: Mapping[str, int] = module.apply(after_program.graph_module)
        after = after_program.module()(*inputs)
    worst = 0.0
    for a, b in zip(_tensors(before), _tensors(after), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), counts
        if a.numel() and a.is_floating_point():
            assert torch.equal(a.isnan(), b.isnan())
            scale = max(1.0, float(a.nan_to_num().abs().max()))
            worst = max(worst, float((a - b).nan_to_num().abs().max()) / scale)
        elif a.numel():
            assert torch.equal(a, b)
    return worst


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        loaded = {name: list(rule_set((name,))) for name in SETS}
        made = {n: module_of(r, Path(folder), n.replace("/", "_")) for n, r in loaded.items()}
        for name, (model, inputs) in models().items():
            for decompose in (False, True):
                program = exported(model, inputs, decompose)
                total, differ = 0, {}
                worst = 0.0
                for rules in SETS:
                    found = hits(program, loaded[rules], made[rules])
                    total += sum(theirs for theirs, _ in found.values())
                    differ |= {r: f for r, f in found.items() if f[0] != f[1]}
                    worst = max(worst, difference(program, made[rules], inputs))
                how = "core ATen" if decompose else "as exported"
                print(
                    f"{name}, {how}: {total} applications, {len(differ)} rules differ; {worst:.1e}"
                )
                for rule, (theirs, mine) in differ.items():
                    print(f"    {rule}: {theirs} in FX, {mine} in the dialect")
                wrong += len(differ)
                sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
