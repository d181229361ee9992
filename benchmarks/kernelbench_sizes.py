"""Problems of KernelBench at sizes that fit a small machine.

A problem is a module with a class ``Model``, ``get_inputs`` and ``get_init_inputs``. Its sizes are
the integers of its module-level assignments and of ``get_inputs``. They are halved, those of the
batch first, until the problem needs at most :data:`FLOPS` operations and :data:`ELEMENTS` elements
in all its tensors together, seen without computing anything. What does not build, or does not run,
with smaller sizes keeps them, and may need :data:`MOST` times as much.
"""

import ast
import copy
import logging
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

FLOPS = 4e9
ELEMENTS = 1 << 27

#: What a problem that does not get so small may need at the most, as a multiple of these.
MOST = 16

#: Names of sizes that only say how much there is of the same.
BATCH = ("batch", "seq_len", "sequence_length", "num_samples")

#: How far they are halved, one limit after the other: of those sizes, and of all others.
LIMITS = (
    (16, 0),
    (4, 0),
    (2, 0),
    (2, 512),
    (2, 256),
    (2, 128),
    (2, 64),
    (2, 32),
    (2, 16),
    (1, 0),
    (1, 8),
)


@dataclass(frozen=True)
class Problem:
    """A problem at some sizes: its module, and what was changed in words."""

    module: types.ModuleType
    changed: str

    def model(self, seed: int = 0) -> torch.nn.Module:
        """The model with weights drawn by `seed`."""
        torch.manual_seed(seed)
        made: torch.nn.Module = self.module.Model(*self.module.get_init_inputs())
        return made

    def inputs(self, seed: int = 1) -> list[Any]:
        """Inputs drawn by `seed`."""
        torch.manual_seed(seed)
        found: list[Any] = self.module.get_inputs()
        return found


def load(path: Path) -> Problem:
    """The problem in a file, at sizes that fit. Raises ValueError when none do."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    seen = set()
    least: tuple[float, Problem] | None = None
    # A sequence may have to be divisible by a block: where nothing fits, its length is left alone.
    for batch, other, names in (
        (0, 0, BATCH),
        *((*limits, names) for names in (BATCH, BATCH[:1]) for limits in LIMITS),
    ):
        if names != BATCH and least is not None and least[0] <= MOST:
            break
        smaller = _Smaller(batch, other, names)
        changed = smaller.visit_module(copy.deepcopy(tree))
        if smaller.words in seen:
            continue
        seen.add(smaller.words)
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        # The problems are programs of the reader's own folder, which is what he asks to be run.
        exec(compile(changed, str(path), "exec"), module.__dict__)
        problem = Problem(module, smaller.words)
        needed = _needed(problem)
        if needed <= 1:
            return problem
        if least is None or needed < least[0]:
            least = needed, problem
    if least is None or least[0] > MOST:
        raise ValueError("no sizes that fit were found")
    return least[1]


class _Smaller(ast.NodeTransformer):
    """Halves integers that are sizes: those named for a batch to one limit, others to another."""

    def __init__(self, batch: int, other: int, names: Sequence[str] = BATCH) -> None:
        self._batch, self._other, self._names = batch, other, names
        self._limit = 0
        self._whole = False
        self._changes: list[str] = []

    @property
    def words(self) -> str:
        return ", ".join(self._changes)

    def visit_module(self, tree: ast.Module) -> ast.Module:
        for number, node in enumerate(tree.body):
            if isinstance(node, ast.Assign):
                name = ast.unparse(node.targets[0])
                tree.body[number] = self._in(node, name)
            elif isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
                tree.body[number] = self._in(node, "inputs")
        return ast.fix_missing_locations(tree)

    def _in(self, node: Any, name: str) -> Any:
        self._whole = any(word in name for word in self._names)
        self._limit = self._batch if self._whole else self._other
        if not self._limit:
            return node
        before = ast.unparse(node)
        value = _number(node.value) if isinstance(node, ast.Assign) else None
        if value is not None:
            node.value = ast.Constant(self._halved(value))
        else:
            node = self.visit(node)
        after = ast.unparse(node)
        if after != before:
            self._changes.append(after if isinstance(node, ast.Assign) else f"{name} halved")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if type(node.value) is int:
            return ast.copy_location(ast.Constant(self._halved(node.value)), node)
        return node

    def _halved(self, value: int) -> int:
        if self._whole:
            return min(value, self._limit)
        while value > self._limit and value % 2 == 0:
            value //= 2
        return min(value, self._limit) if value > 16 * self._limit else value


def _number(node: ast.expr) -> int | None:
    """A constant, or a product of constants such as ``2048 * 2``."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else left * right
    return None


class _Elements(TorchDispatchMode):
    """Counts the elements of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.count += sum(_tensors(made))
        return made


def _tensors(values: Any) -> Iterator[int]:
    return (v.numel() for v in tree_leaves(values) if isinstance(v, torch.Tensor))


def _needed(problem: Problem) -> float:
    """What it needs as a multiple of the limits; infinite where it does not build or run.

    Nothing is computed.
    """
    told = logging.getLogger("torch._subclasses.fake_tensor")
    told.setLevel(logging.CRITICAL)  # what does not fit is no error here
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            elements = _Elements()
            with elements, FlopCounterMode(display=False) as flops:
                try:
                    model = problem.model()
                except DataDependentOutputException:  # its constructor reads numbers it computed
                    with unset_fake_temporarily():
                        model = problem.model()
                model(*problem.inputs())
    except Exception:  # noqa: BLE001 - a model of anybody's, at sizes it was not written for
        return float("inf")
    return max(elements.count / ELEMENTS, flops.get_total_flops() / FLOPS)
