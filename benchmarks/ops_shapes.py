"""Single ops in the sizes that public networks have: what `ops.py` and `cost_model.py` measure.

Each is a recipe as models are (`peers_models.py`), by its name; convolutions and products write
themselves as programs, too, for the forms that the default pipeline chooses from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch


class Op(Protocol):
    """A single op: its name, its kind in the tables, and how it is made."""

    @property
    def name(self) -> str:
        """Its kind and its sizes."""

    @property
    def kind(self) -> str:
        """What it is summed up with."""

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """A module with weights, its arguments."""


@dataclass(frozen=True)
class Convolution:
    """``channels`` images of ``size`` x ``size`` by ``filters`` windows ``window`` x ``window``."""

    channels: int
    size: int
    filters: int
    window: int
    stride: int = 1
    depthwise: bool = False

    @property
    def name(self) -> str:
        """As ``conv-64x56x56-64-3x3-s1``."""
        kind = "depthwise" if self.depthwise else "conv"
        return (
            f"{kind}-{self.channels}x{self.size}x{self.size}-{self.filters}"
            f"-{self.window}x{self.window}-s{self.stride}"
        )

    @property
    def result(self) -> int:
        """The result's height and width."""
        return (self.size + 2 * (self.window // 2) - self.window) // self.stride + 1

    @property
    def _depth(self) -> int:
        return 1 if self.depthwise else self.channels

    @property
    def kind(self) -> str:
        """Depthwise ones read and write more than they compute."""
        return "depthwise convolution" if self.depthwise else "convolution"

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """A layer of PyTorch with ``relu`` behind."""
        import torch
        from torch import nn

        groups = self.channels if self.depthwise else 1
        layer = nn.Conv2d(
            *(self.channels, self.filters, self.window, self.stride, self.window // 2),
            groups=groups,
        )
        image = torch.randn(1, self.channels, self.size, self.size)
        return nn.Sequential(layer, nn.ReLU()), (image,), {}

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.window**2 * self._depth * self.filters * self.result**2

    @property
    def bytes(self) -> float:
        """What must be read and written."""
        weights = self._depth * self.filters * self.window**2
        return 4.0 * (self.channels * self.size**2 + weights + self.filters * self.result**2)

    def arrays(self) -> list[Any]:
        """The image, the filter, the bias."""
        rng = np.random.default_rng(0)
        shapes = (
            (1, self.channels, self.size, self.size),
            (self.filters, self._depth, self.window, self.window),
            (self.filters,),
        )
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def function(self, weights: list[Any], name: str = "main") -> str:
        """With the filter and the bias as constants: see :func:`program`."""
        x = f"!torch.vtensor<[1,{self.channels},{self.size},{self.size}],f32>"
        w = f"!torch.vtensor<[{self.filters},{self._depth},{self.window},{self.window}],f32>"
        b = f"!torch.vtensor<[{self.filters}],f32>"
        y = f"!torch.vtensor<[1,{self.filters},{self.result},{self.result}],f32>"
        ints = "!torch.list<int>"
        return f"""func.func @{name}(%x: {x}) -> {y} {{
  %w = torch.vtensor.literal({_resource(f"{name}_w", weights[0])}) : {w}
  %b = torch.vtensor.literal({_resource(f"{name}_b", weights[1])}) : {b}
  %one = torch.constant.int 1
  %step = torch.constant.int {self.stride}
  %pad = torch.constant.int {self.window // 2}
  %groups = torch.constant.int {self.channels if self.depthwise else 1}
  %false = torch.constant.bool false
  %steps = torch.prim.ListConstruct %step, %step : (!torch.int, !torch.int) -> {ints}
  %pads = torch.prim.ListConstruct %pad, %pad : (!torch.int, !torch.int) -> {ints}
  %ones = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> {ints}
  %none = torch.prim.ListConstruct : () -> {ints}
  %c = torch.aten.convolution %x, %w, %b, %steps, %pads, %ones, %false, %none, %groups
      : {x}, {w}, {b}, {ints}, {ints}, {ints}, !torch.bool, {ints}, !torch.int -> {y}
  %y = torch.aten.relu %c : {y} -> {y}
  return %y : {y}
}}
"""

    def torch(self, arrays: list[Any]) -> Callable[[], object]:
        """The same in PyTorch."""
        import torch

        x, w, b = (torch.from_numpy(a) for a in arrays)
        groups = self.channels if self.depthwise else 1

        def call() -> object:
            with torch.no_grad():
                return torch.nn.functional.conv2d(
                    x, w, b, self.stride, self.window // 2, groups=groups
                ).relu_()

        return call


@dataclass(frozen=True)
class Product:
    """``rows`` vectors of ``inner`` numbers by a constant of ``columns`` rows, plus a bias."""

    rows: int
    inner: int
    columns: int

    @property
    def name(self) -> str:
        """As ``product-128x512x2048``."""
        return f"product-{self.rows}x{self.inner}x{self.columns}"

    @property
    def kind(self) -> str:
        """Of one row the weights are read once, and nothing is reused."""
        return "product of one row" if self.rows == 1 else "product"

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """A linear layer of PyTorch."""
        import torch

        layer = torch.nn.Linear(self.inner, self.columns)
        return layer, (torch.randn(self.rows, self.inner),), {}

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.inner * self.columns

    @property
    def bytes(self) -> float:
        """What must be read and written."""
        return 4.0 * (self.rows * self.inner + self.inner * self.columns + self.rows * self.columns)

    def arrays(self) -> list[Any]:
        """The vectors, the matrix, the bias."""
        rng = np.random.default_rng(0)
        shapes = ((self.rows, self.inner), (self.columns, self.inner), (self.columns,))
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def function(self, weights: list[Any], name: str = "main") -> str:
        """With the matrix and the bias as constants: see :func:`program`."""
        x = f"!torch.vtensor<[{self.rows},{self.inner}],f32>"
        w = f"!torch.vtensor<[{self.columns},{self.inner}],f32>"
        b = f"!torch.vtensor<[{self.columns}],f32>"
        y = f"!torch.vtensor<[{self.rows},{self.columns}],f32>"
        return f"""func.func @{name}(%x: {x}) -> {y} {{
  %w = torch.vtensor.literal({_resource(f"{name}_w", weights[0])}) : {w}
  %b = torch.vtensor.literal({_resource(f"{name}_b", weights[1])}) : {b}
  %y = torch.aten.linear %x, %w, %b : {x}, {w}, {b} -> {y}
  return %y : {y}
}}
"""

    def torch(self, arrays: list[Any]) -> Callable[[], object]:
        """The same in PyTorch."""
        import torch

        x, w, b = (torch.from_numpy(a) for a in arrays)

        def call() -> object:
            with torch.no_grad():
                return torch.nn.functional.linear(x, w, b)

        return call


@dataclass(frozen=True)
class Batch:
    """Products of two factors that are both computed, ``pairs`` of them."""

    pairs: int
    rows: int
    inner: int
    columns: int
    #: Which factor is the transpose of what is given.
    turned: Literal["", "first", "second"] = ""
    kind: ClassVar[str] = "product of a batch"

    @property
    def name(self) -> str:
        """As ``batch-12x197x64x197-second``: pairs, rows, what is summed, columns."""
        sizes = f"{self.pairs}x{self.rows}x{self.inner}x{self.columns}"
        return f"batch-{sizes}" + (f"-{self.turned}" if self.turned else "")

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """``torch.matmul``, of a transpose where one factor is turned."""
        import torch
        from torch import nn

        turned = self.turned

        class Products(nn.Module):
            def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                a = a.transpose(-2, -1) if turned == "first" else a
                return torch.matmul(a, b.transpose(-2, -1) if turned == "second" else b)

        a = [self.inner, self.rows] if turned == "first" else [self.rows, self.inner]
        b = [self.columns, self.inner] if turned == "second" else [self.inner, self.columns]
        return Products(), (torch.randn(self.pairs, *a), torch.randn(self.pairs, *b)), {}


def _resource(name: str, array: Any) -> str:
    return f"dense_resource<{name}> : tensor<{'x'.join(map(str, array.shape))}xf32>"


@dataclass(frozen=True)
class Patches:
    """An image cut into squares of ``window`` x ``window``, each by ``filters`` filters."""

    channels: int
    size: int
    filters: int
    window: int
    kind: ClassVar[str] = "convolution"

    @property
    def name(self) -> str:
        """As ``conv-3x224x224-768-16x16-s16``."""
        image = f"{self.channels}x{self.size}x{self.size}"
        return f"conv-{image}-{self.filters}-{self.window}x{self.window}-s{self.window}"

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """A layer of PyTorch, without padding."""
        import torch

        layer = torch.nn.Conv2d(self.channels, self.filters, self.window, self.window)
        return layer, (torch.randn(1, self.channels, self.size, self.size),), {}


@dataclass(frozen=True)
class Attention:
    """Queries of ``heads`` by keys and values of ``shared`` heads (all, by default).

    ``windows`` are computed each for itself, as Swin has them; ``biased`` adds a constant of the
    heads to the scores.
    """

    heads: int
    queries: int
    keys: int
    width: int
    shared: int | None = None
    causal: bool = False
    windows: int = 1
    biased: bool = False
    kind: ClassVar[str] = "attention"

    @property
    def name(self) -> str:
        """As ``attention-12x128x128x64-causal``: heads, queries, keys, width."""
        sizes = f"{self.heads}x{self.queries}x{self.keys}x{self.width}"
        windows = f"{self.windows}x" if self.windows > 1 else ""
        said = [
            *([f"shared{self.shared}"] if self.shared else []),
            *(["causal"] if self.causal else []),
            *(["biased"] if self.biased else []),
        ]
        return "-".join(["attention", windows + sizes, *said])

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """PyTorch's op in a module."""
        import torch
        from torch import nn
        from torch.nn import functional

        op = self

        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bias = (
                    nn.Parameter(torch.randn(1, op.heads, op.queries, op.keys))
                    if op.biased
                    else None
                )

            def forward(self, q: Any, k: Any, v: Any) -> Any:
                return functional.scaled_dot_product_attention(
                    *(q, k, v),
                    attn_mask=self.bias,
                    is_causal=op.causal,
                    enable_gqa=op.shared is not None,
                )

        few = self.shared or self.heads
        q = torch.randn(self.windows, self.heads, self.queries, self.width)
        k, v = (torch.randn(self.windows, few, self.keys, self.width) for _ in range(2))
        return Scaled(), (q, k, v), {}


@dataclass(frozen=True)
class Rowwise:
    """An op on each row or each number of a tensor: ``what`` is the name of one."""

    what: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As ``layer-norm-128x768``."""
        return f"{self.what}-{'x'.join(map(str, self.shape))}"

    @property
    def kind(self) -> str:
        """Norms are one kind."""
        if self.what.endswith("norm"):
            return "normalisation"
        return "GELU" if self.what.startswith("gelu") else self.what

    def make(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
        """A module of PyTorch."""
        import torch
        from torch import nn

        made: dict[str, Callable[[], nn.Module]] = {
            "layer-norm": lambda: nn.LayerNorm(self.shape[-1]),
            "rms-norm": lambda: nn.RMSNorm(self.shape[-1], eps=1e-6),
            # 32 groups, as everywhere where groups are normalised.
            "group-norm": lambda: nn.GroupNorm(32, self.shape[1]),
            "softmax": lambda: nn.Softmax(-1),
            "gelu": nn.GELU,
            "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
        }
        return made[self.what](), (torch.randn(self.shape),), {}


#: The ops that are compared; of each network what most of its time goes into.
OPS: tuple[Op, ...] = (
    # ResNet-50.
    Convolution(3, 224, 64, 7, 2),
    Convolution(64, 56, 64, 1),
    Convolution(64, 56, 64, 3),
    Convolution(64, 56, 256, 1),
    Convolution(128, 56, 128, 3, 2),
    Convolution(512, 28, 128, 1),
    Convolution(128, 28, 128, 3),
    Convolution(512, 28, 1024, 1, 2),
    Convolution(256, 14, 256, 3),
    Convolution(256, 14, 1024, 1),
    Convolution(512, 7, 512, 3),
    Convolution(2048, 7, 512, 1),
    # MobileNetV2, EfficientNet-B0.
    Convolution(3, 224, 32, 3, 2),
    Convolution(16, 112, 96, 1),
    Convolution(144, 56, 24, 1),
    Convolution(40, 28, 240, 1),
    Convolution(384, 14, 64, 1),
    Convolution(672, 14, 112, 1),
    Convolution(960, 7, 320, 1),
    Convolution(320, 7, 1280, 1),
    # ViT-B/16, Swin-T.
    Patches(3, 224, 768, 16),
    Patches(3, 224, 96, 4),
    # MobileNetV2.
    Convolution(32, 112, 32, 3, 1, True),
    Convolution(96, 112, 96, 3, 2, True),
    Convolution(144, 56, 144, 3, 1, True),
    Convolution(192, 28, 192, 3, 1, True),
    Convolution(192, 28, 192, 3, 2, True),
    Convolution(576, 14, 576, 3, 1, True),
    Convolution(960, 7, 960, 3, 1, True),
    # EfficientNet-B0, ConvNeXt-T.
    Convolution(144, 56, 144, 5, 2, True),
    Convolution(240, 28, 240, 5, 1, True),
    Convolution(672, 14, 672, 5, 1, True),
    Convolution(1152, 7, 1152, 5, 1, True),
    Convolution(96, 56, 96, 7, 1, True),
    # BERT-base and GPT-2 of 128 tokens.
    Product(128, 768, 768),
    Product(128, 768, 2304),
    Product(128, 768, 3072),
    Product(128, 3072, 768),
    # Llama 3.2 of 1B, 128 tokens; ViT-B/16; Swin-T's first and third stage.
    Product(128, 2048, 512),
    Product(128, 2048, 2048),
    Product(128, 2048, 8192),
    Product(197, 768, 3072),
    Product(3136, 96, 384),
    Product(196, 384, 1536),
    # One token of GPT-2 and Llama, the classes of MobileNetV2 and ResNet-50.
    Product(1, 768, 768),
    Product(1, 768, 3072),
    Product(1, 3072, 768),
    Product(1, 2048, 2048),
    Product(1, 2048, 8192),
    Product(1, 8192, 2048),
    Product(1, 1280, 1000),
    Product(1, 2048, 1000),
    # Attention that is no scaled dot product: CaiT's talking heads, windows, XCiT's channels by
    # channels, EfficientViT's keys by values, DeBERTa's queries by positions.
    Batch(12, 197, 64, 197, "second"),
    Batch(12, 197, 197, 64),
    Batch(64, 49, 32, 49, "second"),
    Batch(64, 49, 49, 32),
    Batch(8, 48, 196, 48, "second"),
    Batch(8, 48, 48, 196),
    Batch(8, 32, 784, 32, "first"),
    Batch(12, 128, 64, 512, "second"),
    # BERT-base, GPT-2, Llama, ViT-B/16, Swin-T; one token of GPT-2 and of Llama after others.
    Attention(12, 128, 128, 64),
    Attention(12, 128, 128, 64, causal=True),
    Attention(32, 128, 128, 64, shared=8, causal=True),
    Attention(12, 197, 197, 64),
    Attention(3, 49, 49, 32, windows=64, biased=True),
    Attention(12, 1, 128, 64),
    Attention(32, 1, 1024, 64, shared=8),
    # BERT-base, ViT-B/16, Swin-T, one token of GPT-2; Llama; ResNets and diffusion with groups.
    Rowwise("layer-norm", (128, 768)),
    Rowwise("layer-norm", (197, 768)),
    Rowwise("layer-norm", (3136, 96)),
    Rowwise("layer-norm", (1, 768)),
    Rowwise("rms-norm", (128, 2048)),
    Rowwise("rms-norm", (1, 2048)),
    Rowwise("group-norm", (1, 256, 56, 56)),
    Rowwise("group-norm", (1, 320, 32, 32)),
    # Scores of BERT-base, ViT-B/16, Swin-T; classes.
    Rowwise("softmax", (12, 128, 128)),
    Rowwise("softmax", (12, 197, 197)),
    Rowwise("softmax", (64, 3, 49, 49)),
    Rowwise("softmax", (1, 1000)),
    # BERT-base, ViT-B/16, Swin-T; GPT-2.
    Rowwise("gelu", (128, 3072)),
    Rowwise("gelu", (197, 3072)),
    Rowwise("gelu", (3136, 384)),
    Rowwise("gelu-tanh", (128, 3072)),
    Rowwise("gelu-tanh", (1, 3072)),
)


def by_name() -> dict[str, Op]:
    """The ops that are compared, in the order of the tables."""
    return {op.name: op for op in OPS}
