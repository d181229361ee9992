"""Every result, in SQLite: a search that is killed goes on where it was.

Each result is committed when it is there (write-ahead log), so that a kill loses at most the
candidates that were being measured.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlirules.drivers.tuning.dispatches import Root, Value
from mlirules.drivers.tuning.measure import Result, Task
from mlirules.drivers.tuning.space import Candidate, candidate_of
from mlirules.language.faults import MlirulesError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, target TEXT NOT NULL, flags TEXT NOT NULL,
    root TEXT NOT NULL, compiler TEXT NOT NULL, made TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS baselines (
    task TEXT NOT NULL, device TEXT NOT NULL, samples TEXT NOT NULL, made TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS results (
    task TEXT NOT NULL, candidate TEXT NOT NULL, device TEXT NOT NULL, state TEXT NOT NULL,
    default_ms REAL, tuned_ms REAL, ratio REAL, spread REAL, rounds INTEGER NOT NULL,
    binary TEXT NOT NULL, note TEXT NOT NULL, compile_s REAL NOT NULL, described TEXT NOT NULL,
    made TEXT NOT NULL, PRIMARY KEY (task, candidate)
);
CREATE TABLE IF NOT EXISTS ways (
    program TEXT NOT NULL, device TEXT NOT NULL, described TEXT NOT NULL, made TEXT NOT NULL
);
"""

_VERSION = "1"


@dataclass(frozen=True)
class Measured:
    """A stored candidate with its result."""

    candidate: Candidate
    result: Result


class Store:
    """A file of results. Safe to use from several threads; raises MlirulesError for a bad file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            if str(path) != ":memory:":
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, timeout=30)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            found = self._db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
            if found is None:
                with self._db:
                    self._db.execute("INSERT INTO meta VALUES ('version', ?)", (_VERSION,))
        except (sqlite3.Error, OSError) as error:
            raise MlirulesError.at(
                str(path),
                f"cannot keep results here: {error}",
                code="store",
                suggestion="name another file with --state",
            ) from error
        if found is not None and found[0] != _VERSION:
            raise MlirulesError.at(
                str(path),
                f"was written by another version ({found[0]})",
                code="store",
                suggestion="name another file with --state",
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._db:
            yield self._db

    def add_task(self, task: Task, compiler: str) -> None:
        """Remember a task; one that is known already stays as it is."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    task.key,
                    task.dispatch.name,
                    task.target,
                    json.dumps(task.flags),
                    json.dumps(asdict(task.root), default=sorted),
                    compiler,
                    _now(),
                ),
            )

    def add_baseline(self, task: str, device: str, samples: list[float]) -> None:
        """Remember repeated times of the default, in seconds."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO baselines VALUES (?, ?, ?, ?)",
                (task, device, json.dumps(samples), _now()),
            )

    def add(self, task: str, candidate: Candidate, result: Result) -> None:
        """Remember a result; it is on the disk when this returns. A later one takes its place."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET state = excluded.state, ratio = excluded.ratio, "
                "default_ms = excluded.default_ms, tuned_ms = excluded.tuned_ms, "
                "spread = excluded.spread, rounds = excluded.rounds, note = excluded.note",
                (
                    task,
                    candidate.key,
                    result.device,
                    result.state,
                    result.default_ms,
                    result.tuned_ms,
                    result.ratio,
                    result.spread,
                    result.rounds,
                    result.binary,
                    result.note,
                    result.compile_s,
                    json.dumps(candidate.as_json()),
                    _now(),
                ),
            )

    def results(self, task: str) -> list[Measured]:
        """All results of a task, in the order they were made."""
        return [m for _, m in self._select("WHERE task = ? ORDER BY rowid", (task,))]

    def history(self, target: str) -> dict[str, tuple[Root, list[Measured]]]:
        """All results for a kind of target: by task, with what the task computes."""
        with self._lock:
            rows = self._db.execute("SELECT key, target, root FROM tasks").fetchall()
        kind = target.partition(":")[0]
        roots = {k: root_of(json.loads(r)) for k, t, r in rows if t.partition(":")[0] == kind}
        out: dict[str, tuple[Root, list[Measured]]] = {k: (r, []) for k, r in roots.items()}
        for task, measured in self._select("ORDER BY rowid", ()):
            if task in out:
                out[task][1].append(measured)
        return out

    def _select(self, rest: str, values: tuple[str, ...]) -> list[tuple[str, Measured]]:
        with self._lock:
            rows = self._db.execute(
                "SELECT task, candidate, device, state, default_ms, tuned_ms, ratio, spread, "
                f"rounds, binary, note, compile_s, described FROM results {rest}",
                values,
            ).fetchall()
        return [
            (
                row[0],
                Measured(
                    candidate_of(json.loads(row[12])),
                    Result(
                        key=row[1],
                        device=row[2],
                        state=row[3],
                        default_ms=row[4],
                        tuned_ms=row[5],
                        ratio=row[6],
                        spread=row[7],
                        rounds=row[8],
                        binary=row[9],
                        note=row[10],
                        compile_s=row[11],
                    ),
                ),
            )
            for row in rows
        ]

    def add_way(self, program: str, device: str, described: dict[str, object]) -> None:
        """Remember what became of a way to compile a program (named by a digest)."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO ways VALUES (?, ?, ?, ?)",
                (program, device, json.dumps(described), _now()),
            )

    def ways(self, program: str, device: str) -> list[dict[str, object]]:
        """What is known of ways to compile a program on a device, in the order it was made."""
        with self._lock:
            rows = self._db.execute(
                "SELECT described FROM ways WHERE program = ? AND device = ? ORDER BY rowid",
                (program, device),
            ).fetchall()
        return [json.loads(row[0]) for row in rows]

    def baselines(self, task: str) -> list[list[float]]:
        """The repeated times of a task's default, in seconds, in the order they were made."""
        with self._lock:
            rows = self._db.execute(
                "SELECT samples FROM baselines WHERE task = ? ORDER BY rowid", (task,)
            ).fetchall()
        return [json.loads(row[0]) for row in rows]


def root_of(data: dict[str, Any]) -> Root:
    """A root op from plain data."""
    return Root(
        kind=data["kind"],
        op=data["op"],
        loops=tuple(data["loops"]),
        sizes=tuple(data["sizes"]),
        reductions=frozenset(data["reductions"]),
        indices=tuple(tuple(i) for i in data["indices"]),
        operands=tuple(Value(tuple(o["shape"]), o["element"]) for o in data["operands"]),
        results=data["results"],
        region=data["region"],
        captured=data["captured"],
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
