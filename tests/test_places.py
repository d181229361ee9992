"""The order of ops by marks is MLIR's own, whatever happens to the block."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import growth

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match import places


@pytest.mark.parametrize("near", [0, 8, 256])
def test_numbers_follow_ops_that_come_move_and_go(
    monkeypatch: pytest.MonkeyPatch, near: int
) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0)
    monkeypatch.setattr(places, "NEAR", near)
    rows = "".join(f"  %c{n} = arith.constant {n} : i32\n" for n in range(60))
    module = compiler.parse(f"func.func @f() {{\n{rows}  return\n}}")
    order = places.Numbered(module)
    block = module.body.operations[0].operation.regions[0].blocks[0]
    dice = random.Random(7)

    def any_op(*, last: bool = True) -> Any:
        ops = [op.operation for op in block.operations]
        return dice.choice(ops if last else ops[:-1])

    for _ in range(400):
        kind = dice.randrange(4)
        if kind == 0:
            for _ in range(dice.randrange(1, 5)):  # stock made elsewhere, then moved here
                places.forget(any_op(last=False).clone(ir.InsertionPoint(any_op())))
        elif kind == 1 and len(list(block.operations)) > 20:
            any_op(last=False).erase()
        elif kind == 2:
            op, place = any_op(last=False), any_op()
            if op != place:
                order.moves(op)
                op.move_before(place)
        for _ in range(4):
            a, b = any_op(), any_op()
            assert order.before(a, b) == (a != b and a.is_before_in_block(b))
    some = [any_op() for _ in range(20)]
    assert order.ordered(some) == places.Places().ordered(some)
    order.erase()
    assert "mlirules.place" not in str(module)


@pytest.mark.parametrize("what", ["greedy", "walk", "conversion"])
def test_merging_many_products_asks_mlir_a_few_times_and_leaves_no_marks(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    asked = 0
    ordered = places.Places.ordered

    def counting(self: Any, ops: Any) -> Any:
        nonlocal asked
        asked += 1
        return ordered(self, ops)

    monkeypatch.setattr(places.Places, "ordered", counting)
    numbered = 0
    renumber = places.Numbered._renumber

    def renumbering(self: Any, block: Any) -> None:
        nonlocal numbered
        numbered += 1
        renumber(self, block)

    monkeypatch.setattr(places.Numbered, "_renumber", renumbering)
    ready = growth.runner(what)
    modules = []
    parse = compiler.parse
    monkeypatch.setattr(
        compiler, "parse", lambda *args: modules.append(parse(*args)) or modules[-1]
    )
    run = ready(growth.products(60))
    program = modules[0]
    run()
    assert 0 < asked <= places.PATIENCE + 16
    assert numbered == 1
    text = str(program)
    assert "mlirules." not in text
    assert program.operation.verify()
