"""Small programs for the backend of torch.compile: each a model or function, and its calls.

What each is about is in its name. They are run by test_dynamo.py, twice: eagerly and compiled, on
equal inputs, and results, changed inputs and gradients are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

PROGRAMS: dict[str, Callable[[], Program]] = {}


@dataclass
class Program:
    """A model, the arguments of each of its calls, and whether gradients are compared."""

    model: Any
    calls: list[tuple[Any, ...]]
    kwargs: dict[str, Any] | None = None
    backward: bool = False
    #: What of it is known to run eagerly.
    eager: tuple[str, ...] = ()


def program(
    *shapes: tuple[int, ...], calls: int = 1, backward: bool = False, eager: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of tensors of these shapes."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def make() -> Program:
            given = [tuple(torch.randn(s) for s in shapes) for _ in range(calls)]
            return Program(function, given, backward=backward, eager=eager)

        PROGRAMS[function.__name__.strip("_")] = make
        return function

    return add


def made(make: Callable[[], Program]) -> Callable[[], Program]:
    """A program with inputs of its own."""
    PROGRAMS[make.__name__.strip("_")] = make
    return make


# ---------------------------------------------------------------- graph breaks


@program((4, 4))
def break_by_print(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(end="")
    return y.cos()


@program((4, 4), calls=3)
def break_by_data(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


@program((4, 4))
def break_by_item(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.abs().max().item()) + 1


@program((4,))
def break_by_list_of_items(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([v * 2 for v in x.tolist()]).exp()


@program((4, 4))
def break_by_numpy(x: torch.Tensor) -> torch.Tensor:
    import numpy as np

    return torch.from_numpy(np.asarray(x.detach().numpy()).copy()).tanh() + x


@program((3, 4), calls=2)
def break_after_a_loop(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        x = x + i
    torch._dynamo.graph_break()
    return x * 2


@program((4, 4))
def break_in_an_inner_function(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        y = y.relu()
        torch._dynamo.graph_break()
        return y + 1

    return inner(x) * inner(-x)


@program((4, 4))
def exceptions_are_caught(x: torch.Tensor) -> torch.Tensor:
    try:
        y = {"a": x.sin()}["b"]
    except KeyError:
        y = x + 1
    return y * 2


@program((6,), calls=2, eager=("aten.nonzero.default", "aten.index.Tensor", "aten.mul.Tensor"))
def sizes_of_data(x: torch.Tensor) -> torch.Tensor:
    return (x[x > 0] * 2).sum() + x


# ---------------------------------------------------------------- mutation


@program((4, 4), calls=2)
def mutate_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@program((4, 4))
def mutate_input_and_return_it(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(3)


@program((4, 4))
def mutate_a_view(x: torch.Tensor) -> torch.Tensor:
    x[0] = 7
    x[:, 1].mul_(2)
    return x.sum()


@program((4, 4))
def mutate_a_transposed_view(x: torch.Tensor) -> torch.Tensor:
    x.t()[1].add_(5)
    return x + 1


@program((4, 4), (4, 4))
def mutate_one_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.copy_(x)
    return x - y


@program((4, 4))
def mutate_by_out(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(4, 4)
    torch.add(x, 1, out=out)
    return out * x


@program((5,))
def mutate_by_index(x: torch.Tensor) -> torch.Tensor:
    x[torch.tensor([0, 2])] = torch.tensor([9.0, 8.0])
    return x


@program((4, 4))
def mutate_twice(x: torch.Tensor) -> torch.Tensor:
    y = x.add_(1)
    z = y.mul_(2)
    return z + x


@program((4, 4))
def mutate_in_place_activation(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x, inplace=True) + 1


@program((6,))
def mutate_the_data(x: torch.Tensor) -> torch.Tensor:
    x.detach().fill_(2)
    return x * x


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean + self.count


@made
def buffers_change() -> Program:
    return Program(Counter(), [(torch.randn(3, 4),) for _ in range(4)])


class Cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, at, x)
        return self.keys @ x.t()


@made
def buffers_are_written_at_an_index() -> Program:
    return Program(Cache(), [(torch.randn(1, 4), torch.tensor([i])) for i in range(3)])


@made
def batch_norm_in_training() -> Program:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return Program(model, [(torch.randn(2, 2, 6, 6),) for _ in range(2)], backward=True)


# ---------------------------------------------------------------- aliases and views


@program((4, 4))
def returns_its_input(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x + 1


@program((4, 4))
def returns_a_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.view(16), x[1:3]


@program((4, 4))
def returns_a_view_of_a_result(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + 1
    return y, y.t()


@program((4, 4))
def returns_one_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    return y, y


@program((4, 4))
def returns_equal_ones(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, x * 2


@program((4, 4))
def returns_a_clone(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@program((4, 4))
def returns_transposed(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).t()


@program((2, 3, 4, 5))
def returns_permuted(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).permute(0, 3, 1, 2)


@program((3, 1))
def returns_expanded(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).expand(3, 4)


@made
def aliased_inputs() -> Program:
    x = torch.randn(8)
    eager = ("aten.as_strided_scatter.default",)
    return Program(lambda a, b: (a.add_(1), a + b)[1], [(x[:6], x[2:])], eager=eager)


@made
def the_same_input_twice() -> Program:
    x = torch.randn(4)
    return Program(lambda a, b: a.mul_(2) + b, [(x, x)])


@made
def not_contiguous() -> Program:
    x = torch.randn(6, 8)
    calls = [(x.t(),), (x[::2],), (x[:, 1:5],), (torch.randn(1, 4).expand(6, 4),)]
    return Program(lambda a: a @ a.t() + a.sum(), calls)


@made
def not_aligned() -> Program:
    x = torch.randn(65)
    return Program(lambda a: a.sin() + 1, [(x[1:],), (x[:-1],)])


@made
def channels_last() -> Program:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    return Program(nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last), [(x,)])


@made
def zero_sized() -> Program:
    calls = [(torch.randn(0, 4),), (torch.randn(3, 0),)]
    return Program(lambda a: (a * 2, a.sum(), torch.cat([a, a])), calls)


@made
def numbers_of_no_dimension() -> Program:
    return Program(lambda a, b: (a + b, a * 2), [(torch.tensor(2.0), torch.tensor(3.0))])


@program((4, 6))
def strided_by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x, (3, 2), (6, 2), 1) + 1


@program((4, 4))
def constants_come_out(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(3), x + torch.arange(4)


# ---------------------------------------------------------------- sizes that vary


@made
def batches() -> Program:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return Program(model, [(torch.randn(n, 4),) for n in (2, 3, 5, 64, 17)])


@made
def batches_from_one() -> Program:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    return Program(model, [(torch.randn(n, 4),) for n in (1, 2, 9)])


@made
def two_sizes_vary() -> Program:
    calls = [(torch.randn(n, m), torch.randn(m, n)) for n, m in ((2, 3), (4, 5), (7, 6))]
    return Program(lambda a, b: (a @ b).softmax(-1) @ a, calls)


@made
def sizes_are_computed_with() -> Program:
    def function(x: torch.Tensor) -> torch.Tensor:
        n, m = x.shape
        return x.reshape(m, n) * (n + m) + torch.arange(n * m).reshape(m, n) / n

    return Program(function, [(torch.randn(n, 4),) for n in (2, 3, 6)])


@made
def sizes_come_out() -> Program:
    return Program(lambda x: (x.shape[0], x * 2), [(torch.randn(n, 3),) for n in (2, 3, 5)])


@made
def numbers_vary() -> Program:
    return Program(lambda x, n, f: x * n + f, [(torch.randn(3), n, n / 3) for n in (2, 3, 7)])


@made
def batches_backward() -> Program:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
    return Program(model, [(torch.randn(n, 4),) for n in (2, 3, 5)], backward=True)


@made
def concatenated_sizes() -> Program:
    calls = [(torch.randn(n, 3), torch.randn(m, 3)) for n, m in ((2, 3), (4, 5), (6, 2))]
    return Program(lambda a, b: torch.cat([a, b]).cumsum(0), calls)


# ---------------------------------------------------------------- element types


def _typed(dtype: torch.dtype, function: Callable[..., Any], eager: tuple[str, ...] = ()) -> None:
    def make() -> Program:
        if dtype.is_floating_point or dtype.is_complex:
            values = torch.randn(4, 4).to(dtype)
        else:
            values = torch.randint(0, 2 if dtype is torch.bool else 50, (4, 4)).to(dtype)
        return Program(function, [(values,)], eager=eager)

    PROGRAMS["type_" + str(dtype).removeprefix("torch.")] = make


for _dtype in (torch.float64, torch.float16, torch.bfloat16):
    _typed(_dtype, lambda x: (x * 2 + x.abs(), x.sum(), x > 0))
for _dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
    # The conversion of a number to a byte asks for what the op does not say.
    _eager = ("aten.div.Tensor_mode",) if _dtype is torch.uint8 else ()
    _typed(_dtype, lambda x: (x * 2 + 1, x.sum(), x > 3, x // 2), _eager)
_typed(torch.bool, lambda x: (x & ~x.t(), x.any(), x.sum()))
for _dtype in (torch.complex64, torch.complex128):
    # IREE 3.13 has complex tensors, but torch-mlir's conversions stop at them.
    _typed(
        _dtype,
        lambda x: (x * x.conj(), x + 1),
        tuple(
            f"aten.{op}" for op in ("_conj.default", "clone.default", "mul.Tensor", "add.Tensor")
        ),
    )
_typed(torch.float8_e4m3fn, lambda x: x.to(torch.float32) * 2)
_typed(torch.float8_e5m2, lambda x: (x.to(torch.float32) * 2).to(torch.float8_e5m2))


@made
def types_mixed() -> Program:
    calls = [(torch.randn(3), torch.arange(3), torch.tensor([True, False, True]))]
    return Program(lambda a, b, c: (a + b, b * c, a.double(), torch.where(c, a, b)), calls)


# ---------------------------------------------------------------- what models take and give


@made
def containers_and_names() -> Program:
    def function(x: torch.Tensor, *, scale: float = 1.0, more: Any = None) -> dict[str, Any]:
        return {"a": [x * scale, (x + more["y"],)], "n": None, "k": 3, "s": "text"}

    kwargs = {"scale": 2.0, "more": {"y": torch.randn(3)}}
    return Program(function, [(torch.randn(3),)], kwargs)


@made
def no_tensors_but_weights() -> Program:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self) -> torch.Tensor:
            return self.w.exp()

    return Program(Weights(), [()], backward=True)


@made
def shared_weights() -> Program:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.embedding(x))

    return Program(Shared(), [(torch.tensor([[1, 2, 3]]),)], backward=True)


@made
def a_list_of_layers() -> Program:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> Any:
            return [x := layer(x).relu() for layer in self.layers]

    return Program(Layers(), [(torch.randn(2, 4),)], backward=True)


@made
def some_weights_are_frozen() -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return Program(model, [(torch.randn(3, 4),)], backward=True)


@made
def attention() -> Program:
    return Program(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [tuple(torch.randn(1, 2, 8, 4) for _ in range(3))],
    )


@program(
    (1, 2, 8, 4),
    (1, 2, 8, 4),
    (1, 2, 8, 4),
    backward=True,
    eager=tuple(
        f"aten._scaled_dot_product_flash_attention_for_cpu{b}.default" for b in ("", "_backward")
    ),
)
def attention_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v) * 2


@made
def recurrent() -> Program:
    return Program(nn.GRUCell(4, 8), [(torch.randn(2, 4), torch.randn(2, 8))], backward=True)


@made
def a_dropout_of_nothing() -> Program:
    return Program(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)), [(torch.randn(2, 4),)])


@program((4, 4), (4, 4), backward=True)
def gradients_of_inputs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y).sigmoid() * x


@program((4, 4), backward=True)
def detached(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach() + 1


@program((4, 4), eager=("aten.rand_like.default", "aten.rand.default"))
def random_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return (torch.rand_like(y) * 0 + y).cos()


@program((3, 3), backward=True)
def without_gradients_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale


@program((4, 4))
def in_bfloat16_by_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


def names() -> Iterator[str]:
    """All programs, in order."""
    yield from PROGRAMS
