"""What programs cost: by the cost model, and before that by what they read and write."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mlirules.drivers.apply.session import Session
from mlirules.drivers.discover.opsets import OpSet
from mlirules.drivers.discover.programs import in_order
from mlirules.drivers.discover.state import State
from mlirules.drivers.discover.terms import refs
from mlirules.drivers.iree.compiler import Job
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.discover.space import Space

#: Sizes that programs are weighed in: large enough that starting a kernel is not all that counts,
#: and far enough apart that what gains in some of them alone shows.
SIZES = (512, 1024, 256, 768, 384, 448)
#: The same for programs of vectors, and of batches.
VECTOR = (4_000_000,)
BATCH = (16, 256, 384, 64, 128, 96)


class Scales:
    """Costs of programs on a target, each worked out once."""

    def __init__(self, target: str, state: State, session: Session) -> None:
        self._session = session
        self.target = Target.parse(target)
        self.state = state

    @staticmethod
    def sizes(ops: OpSet) -> list[dict[str, int]]:
        """The sizes that a set's programs are weighed in: each dim is large once, small once."""
        sizes = VECTOR if ops.rank <= 1 else SIZES if ops.rank == 2 else BATCH
        used = list(sizes[: len(ops.dims)])
        turns = [used[n:] + used[:n] for n in range(min(len(used), 3))]
        return [dict(zip(ops.dims, turn, strict=True)) for turn in turns]

    def milliseconds(self, text: str) -> float | None:
        """A program's cost by the model; None where it does not compile."""
        known = self.state.get("costs", f"{self.target.name}\n{text}")
        if known is None:
            known = self._milliseconds(text)
            self.state.put("costs", f"{self.target.name}\n{text}", known)
        return None if known < 0 else float(known)

    def _milliseconds(self, text: str) -> float:
        from mlirules.drivers.measure import roofline
        from mlirules.drivers.pipelines.transform import Run, transform

        try:
            # The conversions alone: what other rules do is asked apart.
            made = transform(text, "cpu", path="<program>", run=Run(self._session)).text
            return 1e3 * roofline.estimate(made, Job(self.target, path="<program>")).seconds
        except (MlirulesError, roofline.DynamicShape):
            return -1.0

    @staticmethod
    def rough(space: Space, root: int) -> int:
        """What a program computes, element by element: an order to ask the model in."""
        return sum(space.work(t) for t in in_order(space.terms, root) if space.terms[t].op)

    @staticmethod
    def alike(space: Space, one: int, other: int) -> bool:
        """Whether two programs hold the same ops on the same types: then they cost the same."""

        def held(root: int) -> Counter[Any]:
            terms = space.terms
            return Counter(
                (terms[t].op, tuple(terms[r].type for r in refs(terms[t].args)), terms[t].type)
                for t in in_order(terms, root)
                if terms[t].op
            )

        return held(one) == held(other)
