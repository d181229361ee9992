"""The models that runtimes are compared on, by name: sizes that people run, weights at random.

``peers_models.py:make`` with the argument ``name`` is something that ``mlirules import`` takes.
Needs torchvision, timm and transformers for what is theirs; the list itself needs none of them.
"""

import random
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ops_shapes import by_name
from zoo_models import Recipe, draw
from zoo_timm import Timm
from zoo_torchvision import Vision
from zoo_transformers import WORDS, Pretrained

if TYPE_CHECKING:
    import torch

SIDE = 224
TOKENS = 128

#: Four layers of 512 numbers, as every configuration spells it.
_SMALL: Mapping[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 2048,
    "max_position_embeddings": 256,
}


class Tiny:
    """A convolution and a product: enough to see that every engine runs."""

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The model, its arguments."""
        import torch
        from torch import nn

        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )
        return model, (torch.randn(1, 3, 8, 8),), {}


@dataclass(frozen=True)
class Batch:
    """A model, given so many of its inputs at once."""

    of: Recipe
    size: int

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The model as it is; as many arguments, no two the same, along their first axis."""
        import torch
        from torch.utils._pytree import tree_map

        model, args, kwargs = self.of.make()

        def many(x: torch.Tensor) -> torch.Tensor:
            shape = (self.size * x.shape[0], *x.shape[1:])
            if x.is_floating_point():
                return torch.randn(shape)
            return torch.randint(3, WORDS, shape)

        return model, tree_map(many, args), tree_map(many, kwargs)


@dataclass(frozen=True)
class Cached:
    """A decoder's step: one token, and the keys and values of those before it."""

    of: Pretrained
    tokens: int
    heads: int

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The model with its caches as arguments, which gives them with the token's as results."""
        import torch
        from transformers import DynamicCache

        inner = self.of.make()[0].model
        config = inner.config

        class Step(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = inner

            def forward(self, ids: torch.Tensor, caches: list[torch.Tensor]) -> Any:
                pairs = list(zip(caches[::2], caches[1::2], strict=True))
                given = self.model(
                    input_ids=ids, past_key_values=DynamicCache(pairs), use_cache=True
                )
                layers = given.past_key_values.layers
                return given.logits, *(x for layer in layers for x in (layer.keys, layer.values))

        size = config.hidden_size // config.num_attention_heads
        caches = [
            torch.randn(1, self.heads, self.tokens, size)
            for _ in range(2 * config.num_hidden_layers)
        ]
        return Step(), (torch.randint(3, WORDS, (1, 1)), caches), {}


def _image(model: str, side: int = SIDE) -> Vision:
    return Vision(model, (3, side, side))


def _words(model: str, tokens: int, **config: Any) -> Pretrained:
    return Pretrained(model, {**_SMALL, **config}, {"input_ids": ("ids", 1, tokens)})


_GPT: Mapping[str, Any] = {"n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 256}

MODELS: Mapping[str, Recipe] = {
    # Convolutional networks.
    "squeezenet": _image("squeezenet1_1"),
    "mobilenet-v2": _image("mobilenet_v2"),
    "mobilenet-v3-small": _image("mobilenet_v3_small"),
    "efficientnet-b0": _image("efficientnet_b0"),
    "mnasnet": _image("mnasnet1_0"),
    "shufflenet-v2": _image("shufflenet_v2_x1_0"),
    "regnet-y-400mf": _image("regnet_y_400mf"),
    "resnet-18": _image("resnet18"),
    "resnet-50": _image("resnet50"),
    "densenet-121": _image("densenet121"),
    "convnext-atto": Timm("convnext_atto", SIDE),
    # Vision transformers, and what lies between.
    "deit-tiny": Timm("deit_tiny_patch16_224", SIDE),
    "vit-small": Timm("vit_small_patch16_224", SIDE),
    "swin-tiny": Timm("swin_tiny_patch4_window7_224", SIDE),
    "mobilevit-s": Timm("mobilevit_s", 256),
    # Encoders.
    "bert": _words("BertModel", TOKENS),
    "distilbert": _words(
        "DistilBertModel", TOKENS, dim=512, hidden_dim=2048, n_layers=4, n_heads=8
    ),
    "roberta": _words("RobertaModel", TOKENS),
    "albert": _words("AlbertModel", TOKENS, embedding_size=128),
    "t5-encoder": _words(
        "T5EncoderModel", TOKENS, d_model=512, d_ff=2048, d_kv=64, num_layers=4, num_heads=8
    ),
    # Decoders: a prompt, and one token.
    "gpt2": _words("GPT2LMHeadModel", TOKENS, **_GPT),
    "gpt2-1": _words("GPT2LMHeadModel", 1, **_GPT),
    "llama": _words("LlamaForCausalLM", TOKENS),
    "llama-1": _words("LlamaForCausalLM", 1),
    "qwen2": _words("Qwen2ForCausalLM", TOKENS),
    "qwen2-1": _words("Qwen2ForCausalLM", 1),
    "opt": _words("OPTForCausalLM", TOKENS, ffn_dim=2048, word_embed_proj_dim=512),
}

#: The end of the names of models in bf16, with the same weights as in f32, rounded.
BF16 = "-bf16"

#: The end of the names of models whose products PT2E quantized to bytes.
INT8 = "-int8"

#: The end of the names of models that take eight inputs at once, of those of a long text, and of
#: decoders' steps behind as long a one.
EIGHT, LONG, STEP = "-x8", "-512", "-step"


def _of(name: str) -> Pretrained:
    recipe = MODELS[name]
    assert isinstance(recipe, Pretrained)
    return recipe


def _long(recipe: Pretrained) -> Pretrained:
    """The same model of 512 tokens, with places for them."""
    places = {"max_position_embeddings": 1024, "n_positions": 1024}
    config = {**recipe.config, **places}
    return replace(recipe, config=config, inputs={"input_ids": ("ids", 1, 512)})


#: What runs when it is named; single ops are what `ops.py` measures.
UNLISTED: Mapping[str, Recipe] = {
    "tiny": Tiny(),
    **by_name(),
    **{f"{name}{BF16}": recipe for name, recipe in MODELS.items()},
    **{f"{name}{INT8}": recipe for name, recipe in MODELS.items()},
    **{f"{name}{EIGHT}": Batch(recipe, 8) for name, recipe in MODELS.items()},
    **{
        f"{name}{LONG}": _long(recipe)
        for name, recipe in MODELS.items()
        if isinstance(recipe, Pretrained) and not name.endswith("-1")
    },
    **{
        f"{name}{STEP}": Cached(_long(_of(name)), 511, heads)
        for name, heads in (("gpt2", 8), ("opt", 8), ("llama", 2), ("qwen2", 2))
    },
}

#: How globs end that mean models which are not listed.
ENDS = (BF16, INT8, EIGHT, LONG, STEP)


#: What the names of timm's models begin with, as `mlirules import` spells them.
TIMM = "timm:"

#: Weights of drawn models, and the side of their images: a minute to prepare at most.
LEAST, MOST, SIDES = 1_000_000, 40_000_000, range(160, 289)


def recipe(name: str) -> Recipe:
    """How a model is made. Raises KeyError where there is no such name."""
    known = {**MODELS, **UNLISTED}
    if name in known or not name.startswith(TIMM):
        return known[name]
    import timm

    model = name.removeprefix(TIMM)
    if not timm.is_model(model):
        raise KeyError(name)
    side: int = timm.get_pretrained_cfg(model).input_size[-1]
    return Timm(model, side)


def drawn(count: int, seed: int) -> list[str]:
    """Models of timm that nobody chose: any of its names, as large as people run on CPUs.

    One whose weights cannot be counted without making them is told on stderr and passed over.
    """
    import timm
    import torch

    names = timm.list_models()
    random.Random(seed).shuffle(names)
    found: list[str] = []
    for name in names:
        if len(found) == count:
            break
        side = timm.get_pretrained_cfg(name).input_size[-1]
        if side not in SIDES:
            continue
        try:
            with torch.device("meta"):
                weights = sum(p.numel() for p in timm.create_model(name).parameters())
        except (NotImplementedError, RuntimeError) as error:
            # It computes with its weights, which have no numbers here.
            why = str(error).splitlines()[0]
            print(f"{TIMM}{name}: not drawn, its weights cannot be counted: {why}", file=sys.stderr)
            continue
        if LEAST <= weights <= MOST:
            found.append(f"{TIMM}{name}")
    return found


def made(
    name: str, *, exact: bool = False
) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
    """A model ready to run, and its arguments; the same ones whenever it is asked for.

    ``exact``: one in bf16 as it is computed in f32, from the same rounded weights and inputs; a
    quantized one as it was before.
    """
    import torch
    from torch.utils._pytree import tree_map

    torch.manual_seed(zlib.crc32(name.removesuffix(BF16).removesuffix(INT8).encode()))
    model, args, kwargs = recipe(name).make()
    model.eval()
    draw(model, args, kwargs)
    if name.endswith(BF16):

        def turned(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x
            return x.bfloat16().float() if exact else x.bfloat16()

        model = model.bfloat16().float() if exact else model.bfloat16()
        args, kwargs = tree_map(turned, args), tree_map(turned, kwargs)
    if name.endswith(INT8) and not exact:
        model = _quantized(model, args, kwargs)
    return model, args, kwargs


def _quantized(model: "torch.nn.Module", args: Any, kwargs: Any) -> "torch.nn.Module":
    """The model by PT2E for x86: bytes with scales, those of activations from these inputs."""
    import torch
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    _linear_layers(model)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    with torch.no_grad():
        # Strict: a module that is called twice is two parts, as the quantizer asks.
        exported = torch.export.export(model, args, kwargs, strict=True).module()
        prepared = prepare_pt2e(exported, quantizer)
        prepared(*args, **kwargs)
        made: torch.nn.Module = convert_pt2e(prepared)
    return made


def _linear_layers(model: "torch.nn.Module") -> None:
    """GPT-2's own kind of linear layer, which no quantizer knows, as PyTorch's."""
    import torch
    from transformers.pytorch_utils import Conv1D

    for name, module in list(model.named_modules()):
        if isinstance(module, Conv1D):
            layer = torch.nn.Linear(*module.weight.shape)
            layer.weight = torch.nn.Parameter(module.weight.detach().t().contiguous())
            layer.bias = module.bias
            model.set_submodule(name, layer)


def make(name: str) -> "torch.nn.Module":
    """:func:`made` as one module that carries its inputs."""
    model, args, kwargs = made(name)
    vars(model)["example_inputs"] = kwargs or args  # no parameter, buffer or module
    return model
