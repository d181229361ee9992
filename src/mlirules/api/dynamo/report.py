"""What of a model was compiled, what runs eagerly instead, and why."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mlirules.api import pages

__all__ = ["Compiled", "Eager", "Report", "Reports"]

log = logging.getLogger("mlirules.dynamo")


@dataclass(frozen=True)
class Eager:
    """Ops that run eagerly: which, how many of them in the graph, why, and where the first stands.

    ``place`` is the user's ``file:line``, empty where PyTorch does not say; ``source`` that line.
    """

    op: str
    count: int
    reason: str
    place: str = ""
    source: str = ""

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        line = f"\n    {self.source}" if self.source else ""
        many = f" ({self.count} of them)" if self.count > 1 else ""
        return f"{where}{self.op}{many} runs eagerly: {self.reason}{line}"


@dataclass(frozen=True)
class Compiled:
    """A graph that was compiled: its part in the model, its ops, and what rules did."""

    graph: str
    ops: int
    compiled_ops: int
    programs: int
    seconds: float
    #: How many of its programs were found in the cache.
    warm: int
    applications: dict[str, int] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    eager: tuple[Eager, ...] = ()


@dataclass(frozen=True)
class Report:
    """Every graph that was compiled, and the places where PyTorch itself broke the model apart."""

    graphs: tuple[Compiled, ...]
    graph_breaks: dict[str, int]

    @property
    def eager(self) -> tuple[Eager, ...]:
        """All that runs eagerly."""
        return tuple(one for graph in self.graphs for one in graph.eager)

    def as_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {"graphs": [asdict(g) for g in self.graphs], "graph_breaks": self.graph_breaks}

    def __str__(self) -> str:
        lines = []
        for g in self.graphs:
            rules = sum(g.applications.values())
            kept = f", {g.warm} from the cache" if g.warm else ""
            lines.append(
                f"{g.graph}: {g.compiled_ops} of {g.ops} ops in {g.programs} programs{kept}, "
                f"{rules} applications of {len(g.applications)} rules, {g.seconds:.2f} s"
            )
            lines += [f"  {line}" for one in g.eager for line in str(one).split("\n")]
            lines += [f"  note: {note}" for note in g.notes]
        lines += [f"graph break ({n}): {why}" for why, n in self.graph_breaks.items()]
        return "\n".join(lines) or "nothing was compiled"

    def _repr_html_(self) -> str:
        return pages.render("lines.html.j2", lines=str(self).split("\n"))


class Reports:
    """The graphs compiled in this process, the last of them: what :func:`mlirules.report` tells."""

    LIMIT = 1000

    def __init__(self) -> None:
        self._graphs: deque[Compiled] = deque(maxlen=self.LIMIT)
        self._lock = threading.Lock()

    def add(self, graph: Compiled) -> None:
        """Note a graph, and say on the log what runs eagerly."""
        with self._lock:
            self._graphs.append(graph)
        for one in graph.eager:
            log.warning("%s", one)
        log.info("%s", Report((graph,), {}))

    def report(self) -> Report:
        """What is known now."""
        from torch._dynamo.utils import counters

        with self._lock:
            graphs = tuple(self._graphs)
        return Report(graphs, dict(counters["graph_break"]))

    def clear(self) -> None:
        """Forget."""
        with self._lock:
            self._graphs.clear()


def user_place(trace: str | None) -> tuple[str, str]:
    """The innermost line of the user's in a node's stack trace, ``file:line`` and its text."""
    place = source = ""
    lines = (trace or "").splitlines()
    for number, line in enumerate(lines):
        words = line.strip()
        if not words.startswith('File "'):
            continue
        file, _, rest = words[len('File "') :].partition('"')
        if "/site-packages/torch/" in file and place:
            continue
        at = rest.removeprefix(", line ").split(",")[0]
        place = f"{file}:{at}"
        source = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if source.startswith('File "'):
            source = ""
    if place and not source:
        source = _line(place)
    return place, source


def _line(place: str) -> str:
    file, _, line = place.rpartition(":")
    try:
        return Path(file).read_text(encoding="utf-8").split("\n")[int(line) - 1].strip()
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return ""
