"""A session: rules, a target and a pipeline, for programs that are rewritten, compiled and run."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlirules.api.binaries import Terms
from mlirules.api.results import Applied, Explanation
from mlirules.api.rules import RuleText
from mlirules.drivers.apply import programs
from mlirules.drivers.apply.session import Session as Kept
from mlirules.drivers.iree import program
from mlirules.drivers.iree.compiler import Program, ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines import cost, transform
from mlirules.language.faults import MlirulesError, did_you_mean
from mlirules.language.pipeline import Pipeline, default_for
from mlirules.language.rulefiles import DRAFTS
from mlirules.language.stage import Stage

if TYPE_CHECKING:
    from mlirules.api.compiled import CompiledProgram

__all__ = ["Session"]


class Session:
    """Rules, a target and a pipeline, and what is kept from one program to the next.

    ``target`` is written as on the command line: ``cpu``, ``vulkan``, ``cuda:sm_80`` ...
    ``rules`` are rule sets, by shipped name or path, or rules written in Python
    (:func:`mlirules.rule`); they are applied before the stages of ``pipeline``: a shipped name, a
    file, or a :class:`Pipeline`; default: the target's own. With ``cache``, compiled programs are
    kept in the user's cache folder (``MLIRULES_CACHE_DIR``) by the content of program, rules and
    flags and the versions of the tools, and found again by any process. ``flags`` are further ones
    for iree-compile, ``configs`` config rules tried before the pipeline's. ``tune`` is time
    (``60s``, ``10m``) for each program to search a faster way to compile it, before that is done.

    Several threads may use a session: they rewrite one after the other, and call what was compiled
    at the same time. Raises :class:`MlirulesError` for a target, rule or pipeline that is wrong.
    """

    def __init__(
        self,
        target: str | Target = "cpu",
        rules: Sequence[str | Path | RuleText] | str | Path | RuleText = (),
        pipeline: str | Path | Pipeline | None = None,
        cache: bool = True,
        *,
        flags: Sequence[str] = (),
        configs: Sequence[str | Path] = (),
        tune: str | None = None,
    ) -> None:
        self.target = Target.of(target)
        self.cache = cache
        #: Seconds of search for each program.
        self.tune = _seconds(tune)
        self._kept = Kept()
        self._lock = threading.RLock()
        # Rules written in Python lie in files like all others: what is told of them has a place.
        self._folder = tempfile.TemporaryDirectory(prefix=DRAFTS)
        if isinstance(pipeline, Pipeline):
            base = pipeline
        else:
            base = Pipeline.load(pipeline) if pipeline else default_for(self.target.kind)
        given = [rules] if isinstance(rules, str | Path | RuleText) else list(rules)
        if given:
            own = Stage(phase="torch", rules=[self._path(rule) for rule in given])
            base = replace(base, stages=[own, *base.stages])
        #: What a program goes through.
        self.pipeline: Pipeline = base
        self._flags = tuple(flags)
        self._configs = tuple(configs)
        with self.working():
            for stage in base.stages:
                if stage.phase != "configuration":
                    transform.library(tuple(stage.rules), self._kept)

    def __repr__(self) -> str:
        return f"Session(target={self.target.name!r}, pipeline={self.pipeline.pipeline!r})"

    def _path(self, rule: str | Path | RuleText) -> str:
        if not isinstance(rule, RuleText):
            return str(rule)
        path = Path(self._folder.name) / f"{rule.name}.yaml"
        path.write_text(rule.text, encoding="utf-8")
        return str(path)

    @contextmanager
    def working(self) -> Iterator[Kept]:
        """Inside, this thread alone works with what the session keeps."""
        with self._lock, self._kept as kept:
            yield kept

    def recipe(
        self, source: str | Callable[[], Program], path: str = "<program>"
    ) -> transform.Recipe:
        """How this session compiles a program: what all commands work with."""
        return transform.Recipe(
            source,
            self.target,
            self.pipeline,
            path=path,
            flags=self._flags,
            configs=self._configs,
            costs=cost.Settings(self.target, (*self.pipeline.flags, *self._flags)),
            session=self._kept,
        )

    # ------------------------------------------------------------ rewriting

    def apply(self, module: object, *, record: bool = True) -> Applied:
        """Rewrite a program by the rules and the pipeline's stages that come before the compiler.

        ``module`` is an ``ir.Module``, which is not changed, MLIR text or bytecode, or a path.
        Without ``record`` only counts are kept, which is faster for large programs.
        """
        with self.working():
            source, path = self._program(module)
            before = _bytecode(source.module)
            done = self.recipe(lambda: source, path).rewritten(record=record)
            applied = dict(done.applications)
            return Applied(
                done,
                path,
                lambda: str(self.reading(before, path)),
                lambda rule: self.explain(rule, before, path, applied),
            )

    def explain(
        self, rule: str, data: bytes, path: str, applications: Mapping[str, int] | None = None
    ) -> Explanation:
        """Why a rule of the pipeline does not apply to a program, given as bytecode or text.

        Raises :class:`MlirulesError` when the pipeline has no such rule.
        """
        from mlirules.drivers.quality.explain import diagnoses

        with self.working():
            stages = [s for s in self.pipeline.stages if s.phase != "configuration"]
            entries = {e.name: e for s in stages for e in transform.stage_entries(s, self._kept)}
            if rule not in entries:
                raise MlirulesError.at(
                    rule,
                    f"the pipeline {self.pipeline.pipeline} has no such rule",
                    code="no-rule",
                    suggestion=did_you_mean(rule, list(entries)),
                )
            matchers = transform.engine_for([entries[rule].rule], self._kept).matchers
            module = programs.parsed(data, path, self._kept)
            found = [d for matcher in matchers.values() for d in diagnoses(matcher, module)]
            return Explanation(rule, (applications or {}).get(rule, 0), found)

    def reading(self, data: bytes, path: str) -> ir.Module:
        """A program as it was written down, as a module of this session."""
        with self.working():
            return programs.parsed(data, path, self._kept)

    # ------------------------------------------------------------ compiling

    def compile(
        self,
        model: object,
        example_inputs: object = (),
        *,
        dynamic_shapes: object = None,
        fallback: bool = True,
        function: str | None = None,
        parameters: Sequence[str] = (),
    ) -> CompiledProgram:
        """Compile a model, and give what calls it.

        ``model`` is an ``nn.Module`` (with ``example_inputs``: a tensor, a tuple of positional
        arguments, or a dictionary of those with names; numpy arrays count as tensors), a
        ``torch.export.ExportedProgram``, an ``ir.Module``, MLIR text or bytecode, or a path of
        one of these. ``dynamic_shapes`` is for torch.export. Without ``fallback`` an op that no
        rule converts is an error. ``function`` is the one to call (default: the first);
        ``parameters`` are archives of weights outside the program.

        Raises :class:`MlirulesError`, located, when the program is wrong or does not compile.
        """
        path = _path_of(model)
        if path is not None and path.suffix == ".pt2":
            import torch

            model, path = torch.export.load(path), None
        if _of_torch(model):
            from mlirules.api.exported import compile_model

            with self.working():
                return compile_model(
                    lambda name: self.recipe("", name),
                    model,
                    example_inputs,
                    dynamic_shapes,
                    Terms(self.cache, fallback, self.tune),
                )
        from mlirules.api.compiled import compile_program

        with self.working():
            source, name = self._program(model)
            return compile_program(
                self.recipe(lambda: source, name),
                source,
                Terms(self.cache, fallback, self.tune),
                function=function,
                parameters=parameters,
            )

    def _program(self, source: object) -> tuple[Program, str]:
        """A program in whatever form, as stages take it: one of its own."""
        path = _path_of(source)
        if path is not None:
            return programs.load_program(path, self._kept), str(path)
        if isinstance(source, ir.Module):
            return Program(programs.parsed(_bytecode(source), session=self._kept)), "<module>"
        if isinstance(source, Program):
            return Program(
                programs.parsed(_bytecode(source.module), session=self._kept), source.origin
            ), "<module>"
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            if not program.is_bytecode(data):
                return self._program(_decoded(data))
            return Program(programs.parsed(data, "<bytecode>", self._kept)), "<bytecode>"
        if isinstance(source, str):
            return Program(programs.parsed(source, "<string>", self._kept), source), "<string>"
        raise MlirulesError.at(
            "<model>",
            f"cannot be compiled: {type(source).__name__}",
            code="model-kind",
            suggestion="give an nn.Module, an exported program, an ir.Module, MLIR or a path",
        )

    def knows(self, op: str) -> bool:
        """Whether a rule of the pipeline takes an op of this name."""
        return any(op in ops for ops in self._ops())

    def _ops(self) -> Iterator[frozenset[str]]:
        for stage in self.pipeline.stages:
            if stage.phase == "torch":
                for entry in transform.stage_entries(stage, self._kept):
                    yield entry.head.root_ops

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files of rules written in Python; what was compiled goes on working."""
        self._folder.cleanup()


def _of_torch(model: object) -> bool:
    """Whether a model is PyTorch's; without importing it: nobody has one who did not."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds = (torch.nn.Module, torch.export.ExportedProgram)
    return isinstance(model, kinds)


def _path_of(source: object) -> Path | None:
    """The path that is meant; None for a program itself. Raises MlirulesError."""
    if isinstance(source, os.PathLike):
        return Path(source)
    if not isinstance(source, str) or "\n" in source or "{" in source:
        return None
    if not Path(source).is_file():
        raise MlirulesError.at(
            source[:200],
            "is neither a file nor an MLIR program",
            code="file",
            suggestion="a program in text has a function: func.func @main(...) { ... }",
        )
    return Path(source)


def _bytecode(module: ir.Module) -> bytes:
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    return data.getvalue()


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise MlirulesError.at(
            "<bytes>", "is neither MLIR bytecode nor UTF-8 text", code="file"
        ) from None


def _seconds(budget: str | None) -> float:
    if budget is None:
        return 0.0
    from mlirules.drivers.tuning.outcome import parse_budget

    _, seconds = parse_budget(budget, "tune")
    if not seconds:
        raise MlirulesError.at(
            "tune", f"{budget!r} is no time", code="budget", suggestion="write 60s or 10m"
        )
    return seconds
