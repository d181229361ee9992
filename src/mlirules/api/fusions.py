"""Fusions written as two functions of PyTorch: what to find, and what to put there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.api.rules import RuleText, rule
from mlirules.language.faults import MlirulesError

__all__ = ["fusion"]

_ELEMENTS = {"float": "f", "int": "si", "uint": "ui"}


def fusion(
    *example_inputs: Any, name: str = "", where: Sequence[str] = (), **further: Any
) -> Callable[[Any], RuleText]:
    """A class with functions ``pattern`` and ``replacement`` of the same tensors, as a rule.

    ::

        @mlirules.fusion(torch.randn(4, 8))
        class SiluByHand:
            "Why it pays."
            @staticmethod
            def pattern(x):
                return x * torch.sigmoid(x)
            @staticmethod
            def replacement(x):
                return torch.nn.functional.silu(x)

    Both are traced by torch.export on ``example_inputs``: the pattern as programs come (taken
    apart to core ATen), the replacement as written. The rule is for tensors of the example's ranks
    and element types; sizes that are equal in the example must be equal, sizes in arguments of ops
    (``view``) are those of the example. The rule has the class's name and its docstring for a
    reason; ``where`` and ``further`` are as for :func:`mlirules.rule`.

    Raises :class:`MlirulesError` for a function that torch.export refuses, and for an op whose
    arguments a rule cannot say.
    """

    def make(owner: Any) -> RuleText:
        called = name or _dashed(owner.__name__)
        for part in ("pattern", "replacement"):
            if not callable(getattr(owner, part, None)):
                raise MlirulesError.at(called, f"has no function {part!r}", code="fusion")
        names = list(inspect.signature(owner.pattern).parameters)
        if len(names) != len(example_inputs):
            raise MlirulesError.at(
                called,
                f"pattern takes {len(names)} tensors, {len(example_inputs)} examples are given",
                code="fusion",
            )
        sizes = _Sizes(names, example_inputs)
        example = _Example(called, names, example_inputs, sizes)
        found, root = _lines(example, owner.pattern, "m", take_apart=True)
        made, _ = _lines(example, owner.replacement, "r", root)
        fused: RuleText = rule(
            found,
            types=sizes.types,
            where=[*sizes.conditions, *where],
            rewrite=made,
            name=called,
            reason=inspect.getdoc(owner) or "Written as two functions of PyTorch.",
            kind="fusion",
            **further,
        )
        return fused

    return make


class _Sizes:
    """The types of a rule's values, by the sizes of the example."""

    def __init__(self, names: Sequence[str], tensors: Sequence[Any]) -> None:
        self._symbols: dict[int, str] = {}
        self._elements: dict[str, str] = {}
        for tensor in tensors:
            for size in tensor.shape:
                self._symbols.setdefault(int(size), f"D{len(self._symbols)}")
            self._elements.setdefault(_element(tensor.dtype), f"T{len(self._elements)}")
        self.types: dict[str, str] = {}
        for name, tensor in zip(names, tensors, strict=True):
            self.add(name, tensor)

    def add(self, name: str, tensor: Any) -> None:
        """Say the type of a value."""
        element = _element(tensor.dtype)
        dims = [self._symbols.get(int(size), str(int(size))) for size in tensor.shape]
        self.types[name] = f"vtensor<{' x '.join([*dims, self._elements.get(element, element)])}>"

    @property
    def conditions(self) -> list[str]:
        """The element types of the example."""
        return [f"{symbol} in [{element}]" for element, symbol in self._elements.items()]


def _element(dtype: object) -> str:
    name = str(dtype).removeprefix("torch.")
    plain = {"bool": "i1", "bfloat16": "bf16"}.get(name)
    word = name.rstrip("0123456789")
    return plain or _ELEMENTS.get(word, word) + name[len(word) :]


@dataclass(frozen=True)
class _Example:
    """The tensors that a rule's functions are traced with."""

    #: The rule's name.
    called: str
    #: The functions' parameters, with a tensor each.
    names: Sequence[str]
    tensors: Sequence[object]
    sizes: _Sizes


def _lines(
    example: _Example,
    function: Callable[..., Any],
    prefix: str,
    root: str = "",
    *,
    take_apart: bool = False,
) -> tuple[list[str], str]:
    """The ops of a function as lines of a rule, and the name of its result: ``root`` if given.

    Other names begin with ``prefix``. ``take_apart``: composite ops in their parts.
    """
    import torch

    from mlirules.drivers.frontend.decompositions import dialect_name
    from mlirules.drivers.frontend.torch import decomposed

    called, sizes = example.called, example.sizes

    class Traced(torch.nn.Module):
        def forward(self, *values: object) -> Any:
            return function(*values)

    try:
        with torch.no_grad():
            exported = torch.export.export(Traced(), tuple(example.tensors), strict=False)
        graph = (decomposed(exported) if take_apart else exported).graph
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise MlirulesError.at(
            called, f"torch.export of {function.__name__} raised: {first}", code="fusion"
        ) from error
    values: dict[object, str] = dict(
        zip(graph.find_nodes(op="placeholder"), example.names, strict=True)
    )
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    (result,) = graph.output_node().args[0]
    lines: list[str] = []
    for number, node in enumerate(nodes):
        value = node.meta.get("val")
        if not isinstance(node.target, torch._ops.OpOverload) or not torch.is_tensor(value):
            raise MlirulesError.at(
                called, f"a rule cannot say {node.target} of {function.__name__}", code="fusion"
            )
        values[node] = root if root and node is result else f"{prefix}{number}"
        if values[node] not in sizes.types:
            sizes.add(values[node], value)
        given = []
        for position, argument in enumerate(node.target._schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            if position < len(node.args):
                default = node.args[position]
            given.append(_said(called, node, node.kwargs.get(argument.name, default), values))
        lines.append(f"{values[node]} = {dialect_name(node.target)}({', '.join(given)})")
    if not nodes or result is not nodes[-1]:
        raise MlirulesError.at(
            called, f"the result of {function.__name__} is not that of its last op", code="fusion"
        )
    return lines, values[result]


def _said(called: str, node: Any, value: object, values: Mapping[Any, str]) -> str:
    """An argument of an op as a rule writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_said(called, node, part, values) for part in value) + "]"
    if value in values:
        return values[value]
    raise MlirulesError.at(
        called, f"a rule cannot say the argument {value!r} of {node.target}", code="fusion"
    )


def _dashed(name: str) -> str:
    """``SiluByHand`` and ``silu_by_hand`` as ``silu-by-hand``."""
    out = "".join(f"-{c.lower()}" if c.isupper() else c for c in name.strip("_"))
    return "-".join(filter(None, out.replace("_", "-").split("-")))
