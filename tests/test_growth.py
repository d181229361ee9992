"""Drivers are linear in the program: what an op costs does not grow with what stands around it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import growth

from mlirules.drivers.iree import compiler
from mlirules.drivers.match.liveness import Frozen, Marks, is_dead
from mlirules.language.faults import MlirulesError


@pytest.mark.parametrize("program", growth.PROGRAMS)
@pytest.mark.parametrize("driver", growth.DRIVERS)
def test_further_ops_take_no_more_steps(driver: str, program: str) -> None:
    """Counted are calls, of Python and of what is written in C++: the same on every machine."""
    small, large = growth.further(growth.growth(driver, program, (10, 40, 160), steps=True))
    assert large <= 1.1 * small


def test_runs_are_timed_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "REPEATS", 1)
    small, large = growth.growth("walk", "residual", (2, 20))
    assert (small.blocks, large.blocks) == (2, 20)
    assert 0 < small.amount < large.amount
    with pytest.raises(KeyError, match="trot"):
        growth.growth("trot", "residual", (2,))
    monkeypatch.setattr(growth, "LIMIT", 0.01)
    with pytest.raises(MlirulesError, match=r"walk: error.*residual of 2000 blocks timed out"):
        growth.growth("walk", "residual", (2000,))


@pytest.mark.parametrize("program", ["residual", "unread"])
def test_whether_an_op_is_dead_is_told_at_any_depth(program: str) -> None:
    """2 ** 2,000 paths lead through the program, and recursion would end at 1,000 calls."""
    module = compiler.parse(growth.PROGRAMS[program](2000))
    function = module.body.operations[0]
    ops = [op.operation for op in function.regions[0].blocks[0].operations]
    first = next(op for op in ops if op.name == "torch.aten.relu")
    expected = program == "unread"
    assert is_dead(first) == expected
    assert Frozen(module.operation).dead(first) == expected
    text = str(module)
    marks = Marks(module)
    assert marks.dead(first) == expected
    assert ("mlirules.dead" in str(module)) == expected
    marks.erase()
    assert str(module) == text


def test_what_an_application_leaves_behind_dies_with_it() -> None:
    module = compiler.parse(growth.residual(2))
    ops = {
        str(op.operation.get_asm()).split(" ")[0]: op.operation
        for op in module.body.operations[0].regions[0].blocks[0].operations
        if op.operation.results
    }
    marks = Marks(module)
    root = next(op for op in reversed(ops.values()) if op.name == "torch.aten.mul.Tensor")
    relu, sigmoid = (v.owner.operation for v in root.operands)
    marks.goes(root)
    assert marks.dead(root)
    assert marks.dead(sigmoid)
    assert marks.dead(relu)
    assert not marks.dead(relu.operands[0].owner.operation)
    marks.erase()
    # A rewrite that returns what the root read keeps it alive.
    marks.goes(sigmoid, sigmoid.operands)
    assert not marks.dead(relu)
