"""Patterns for `saturating.py`, by name: small programs of sizes that people run.

The first ones compute what nobody reads, or in an order that costs; the last four are as they
should be, and are left alone. Weights are arguments, so that nothing is computed when compiling.
"""

from collections.abc import Callable, Mapping
from typing import Any

WIDTH = 512
TOKENS = 256


class _Function:
    """A function of torch ops, written op by op; a value is its name."""

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._arguments: list[str] = []
        self._lines: list[str] = []

    def argument(self, *shape: int) -> str:
        """A further argument, of f32."""
        name = f"%a{len(self._arguments)}"
        self._arguments.append(name)
        self._types[name] = _type(shape)
        return name

    def op(self, name: str, *operands: Any, to: tuple[int, ...] | list[tuple[int, ...]]) -> Any:
        """The results of an aten op: one, or a list where ``to`` has several shapes."""
        values = [self._value(o) for o in operands]
        types = [_type(shape) for shape in (to if isinstance(to, list) else [to])]
        names = [self._named(t) for t in types]
        given = ", ".join(self._types[v] for v in values)
        made, read = ", ".join(names), ", ".join(values)
        self._lines.append(f"{made} = torch.aten.{name} {read} : {given} -> {', '.join(types)}")
        return names if isinstance(to, list) else names[0]

    def layer(self, x: str, *shape: int, wide: int) -> str:
        """A linear layer on ``x`` of ``shape``."""
        weight, bias = self.argument(wide, shape[-1]), self.argument(wide)
        return str(self.op("linear", x, weight, bias, to=(*shape[:-1], wide)))

    def norm(self, x: str, *shape: int) -> str:
        """A layer norm over the last axis."""
        weight, bias = self.argument(shape[-1]), self.argument(shape[-1])
        wanted = (shape[-1],)
        return str(self.op("layer_norm", x, wanted, weight, bias, 1e-5, False, to=shape))

    def encoder(self, x: str, heads: int = 8, *, causal: bool = False) -> str:
        """A layer of a transformer."""
        whole, size = (1, TOKENS, WIDTH), WIDTH // heads
        divided, turned = (1, TOKENS, heads, size), (1, heads, TOKENS, size)
        read = self.norm(x, *whole)
        parts = []
        for _ in range(3):
            part = self.op("view", self.layer(read, *whole, wide=WIDTH), divided, to=divided)
            parts.append(self.op("transpose.int", part, 1, 2, to=turned))
        sdpa = "scaled_dot_product_attention"
        found = self.op(sdpa, *parts, None, 0.0, causal, None, False, to=turned)
        found = self.op("transpose.int", found, 1, 2, to=divided)
        found = self.layer(self.op("view", found, whole, to=whole), *whole, wide=WIDTH)
        x = self.op("add.Tensor", x, found, 1, to=whole)
        wide = self.layer(self.norm(x, *whole), *whole, wide=4 * WIDTH)
        wide = self.op("gelu", wide, '"none"', to=(1, TOKENS, 4 * WIDTH))
        back = self.layer(wide, 1, TOKENS, 4 * WIDTH, wide=WIDTH)
        return str(self.op("add.Tensor", x, back, 1, to=whole))

    def text(self, result: str) -> str:
        """The function's text."""
        arguments = ", ".join(f"{a}: {self._types[a]}" for a in self._arguments)
        lines = "\n  ".join(self._lines)
        kind = self._types[result]
        end = f"return {result} : {kind}"
        return f"func.func @main({arguments}) -> {kind} {{\n  {lines}\n  {end}\n}}\n"

    def _named(self, kind: str) -> str:
        name = f"%{len(self._types)}"
        self._types[name] = kind
        return name

    def _value(self, value: Any) -> str:
        if isinstance(value, str) and value.startswith("%"):
            return value
        if isinstance(value, tuple):
            items = [self._value(v) for v in value]
            name = self._named("!torch.list<int>")
            kinds = ", ".join("!torch.int" for _ in items)
            made = f"torch.prim.ListConstruct {', '.join(items)}"
            self._lines.append(f"{name} = {made} : ({kinds}) -> !torch.list<int>")
            return name
        kind, shown = {
            type(None): ("none", ""),
            bool: ("bool", f" {str(value).lower()}"),
            int: ("int", f" {value}"),
            float: ("float", f" {value:e}" if isinstance(value, float) else ""),
            str: ("str", f" {value}"),
        }[type(value)]
        name = self._named(f"!torch.{kind}")
        self._lines.append(f"{name} = torch.constant.{kind}{shown}")
        return name


def _type(shape: tuple[int, ...]) -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],f32>"


def _next_token(f: _Function) -> str:
    logits = f.layer(
        f.norm(f.argument(1, TOKENS, WIDTH), 1, TOKENS, WIDTH), 1, TOKENS, WIDTH, wide=8192
    )
    return str(f.op("select.int", logits, 1, -1, to=(1, 8192)))


def _class_token(f: _Function) -> str:
    x = f.norm(f.encoder(f.encoder(f.argument(1, TOKENS, WIDTH))), 1, TOKENS, WIDTH)
    return f.layer(f.op("select.int", x, 1, 0, to=(1, WIDTH)), 1, WIDTH, wide=1000)


def _prompt(f: _Function) -> str:
    x = f.norm(
        f.encoder(f.encoder(f.argument(1, TOKENS, WIDTH), causal=True), causal=True),
        1,
        TOKENS,
        WIDTH,
    )
    logits = f.layer(x, 1, TOKENS, WIDTH, wide=8192)
    return str(f.op("select.int", logits, 1, -1, to=(1, 8192)))


def _mlp_first(f: _Function) -> str:
    x = f.layer(f.argument(TOKENS, WIDTH), TOKENS, WIDTH, wide=4 * WIDTH)
    x = f.layer(f.op("relu", x, to=(TOKENS, 4 * WIDTH)), TOKENS, 4 * WIDTH, wide=WIDTH)
    return str(f.op("slice.Tensor", x, 0, 0, 16, 1, to=(16, WIDTH)))


def _linear_attention(f: _Function) -> str:
    q, k, v = f.argument(8, 1024, 64), f.argument(8, 64, 1024), f.argument(8, 1024, 64)
    scores = f.op("bmm", q, k, to=(8, 1024, 1024))
    return str(f.op("bmm", scores, v, to=(8, 1024, 64)))


def _adapter(f: _Function) -> str:
    x, weight = f.argument(TOKENS, WIDTH), f.argument(WIDTH, WIDTH)
    down, up = f.argument(16, WIDTH), f.argument(WIDTH, 16)
    low = f.op("linear", x, down, None, to=(TOKENS, 16))
    low = f.op(
        "mul.Scalar", f.op("linear", low, up, None, to=(TOKENS, WIDTH)), 0.5, to=(TOKENS, WIDTH)
    )
    whole = f.op("linear", x, weight, f.argument(WIDTH), to=(TOKENS, WIDTH))
    return str(f.op("add.Tensor", whole, low, 1, to=(TOKENS, WIDTH)))


def _graph_convolution(f: _Function) -> str:
    near = f.op("mm", f.argument(1024, 1024), f.argument(1024, WIDTH), to=(1024, WIDTH))
    return str(f.op("relu", f.op("mm", near, f.argument(WIDTH, 16), to=(1024, 16)), to=(1024, 16)))


def _chain(f: _Function) -> str:
    square = f.op("mm", f.argument(WIDTH, WIDTH), f.argument(WIDTH, WIDTH), to=(WIDTH, WIDTH))
    square = f.op("mm", square, f.argument(WIDTH, WIDTH), to=(WIDTH, WIDTH))
    return str(f.op("mm", square, f.argument(WIDTH, 1), to=(WIDTH, 1)))


def _pooled(f: _Function) -> str:
    x = f.layer(f.argument(8, TOKENS, WIDTH), 8, TOKENS, WIDTH, wide=WIDTH)
    return str(f.op("mean.dim", x, (1,), False, None, to=(8, WIDTH)))


def _two_layers(f: _Function) -> str:
    x = f.argument(1024, WIDTH)
    one, two = (
        f.op("linear", x, f.argument(WIDTH, WIDTH), None, to=(1024, WIDTH)) for _ in range(2)
    )
    return str(f.op("add.Tensor", one, two, 1, to=(1024, WIDTH)))


def _encoder(f: _Function) -> str:
    return f.encoder(f.argument(1, TOKENS, WIDTH))


def _mlp(f: _Function) -> str:
    x = f.layer(f.argument(TOKENS, WIDTH), TOKENS, WIDTH, wide=4 * WIDTH)
    return f.layer(f.op("relu", x, to=(TOKENS, 4 * WIDTH)), TOKENS, 4 * WIDTH, wide=WIDTH)


def _product(f: _Function) -> str:
    return str(f.op("mm", f.argument(WIDTH, WIDTH), f.argument(WIDTH, WIDTH), to=(WIDTH, WIDTH)))


def _chain_in_order(f: _Function) -> str:
    column = f.op("mm", f.argument(WIDTH, WIDTH), f.argument(WIDTH, 1), to=(WIDTH, 1))
    return str(f.op("mm", f.argument(WIDTH, WIDTH), column, to=(WIDTH, 1)))


_MADE: Mapping[str, Callable[[_Function], str]] = {
    "next token": _next_token,
    "class token of an encoder": _class_token,
    "next token of a decoder": _prompt,
    "16 rows of an MLP": _mlp_first,
    "attention without softmax": _linear_attention,
    "low-rank adapter": _adapter,
    "graph convolution": _graph_convolution,
    "three matrices and a vector": _chain,
    "mean of a layer": _pooled,
    "two layers added": _two_layers,
    "encoder layer": _encoder,
    "MLP": _mlp,
    "product": _product,
    "chain in order": _chain_in_order,
}


def _text(make: Callable[[_Function], str]) -> str:
    function = _Function()
    return function.text(make(function))


#: Each a program with one function, `main`.
PATTERNS: Mapping[str, str] = {name: _text(make) for name, make in _MADE.items()}
