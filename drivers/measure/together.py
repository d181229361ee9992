"""Small programs compiled and run together: starting a compiler costs more than what they need.

The bodies of programs become one function, which takes the arguments of all and gives the results
of all, and those that are called more often than others a function of their own in the same module.
What the compiler and the runtime do once for a function, a module or a process (much more than the
work of a few ops) is then done once for all of them. Programs that cannot share a module, and
those of a group that does not compile or run, are compiled and run alone, so that what is wrong is
said of the program that has it.

A result of a group that is not what was expected is to be asked for again with :meth:`Calls.alone`:
IREE 3.13 sorts in place, and where two programs of a function sort the same constant indices, those
of one come out wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler, program, runtime
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import MlirulesError

__all__ = ["Binary", "Calls", "Uncompiled", "binary"]

Array = npt.NDArray[Any]

#: How many programs share a function at most: its cost grows faster than their number.
_MOST = 48

#: What is called once gains nothing from constants that a program of their own computes while the
#: compiler runs: compiling that takes up to a third of the time.
_FLAGS = ["--iree-opt-const-eval=false"]

_NAMES = frozenset(["sym_name", "function_type", "sym_visibility"])


@dataclass(frozen=True)
class Binary:
    """A compiled program: the vmfb, and the function that is the program in it."""

    vmfb: bytes
    function: str


@dataclass(frozen=True)
class Uncompiled:
    """Why a program has no results: it does not compile."""

    error: MlirulesError


@dataclass(frozen=True)
class _Member:
    """A program among those of a function: its results, and arguments that it was called with."""

    results: slice
    inputs: Sequence[Array]


@dataclass(frozen=True)
class _Group:
    """Programs compiled as one function, by their texts, in the order of its arguments."""

    vmfb: bytes
    function: str
    members: dict[str, _Member]


@dataclass
class _Call:
    """A call that is asked for."""

    program: str | Binary
    inputs: list[Array]
    result: list[Array] | MlirulesError | Uncompiled | None = None


class Calls:
    """Calls on one target, compiled and run when the first result is asked for."""

    def __init__(self, target: Target, session: Session | None = None) -> None:
        """Calls on ``target``; binaries are kept in ``session`` (default: that of this thread)."""
        self._target = target
        self._session = session or current()
        self._calls: list[_Call] = []
        self._waiting: list[_Call] = []

    def add(self, called: str | Binary, inputs: list[Array]) -> int:
        """Ask for a call of a program, given as text or compiled; returns the call's number."""
        self._calls.append(_Call(called, inputs))
        self._waiting.append(self._calls[-1])
        return len(self._calls) - 1

    def result(self, number: int) -> list[Array] | MlirulesError | Uncompiled:
        """What a call gave."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._run(waiting)
        result = self._calls[number].result
        assert result is not None
        return result

    def alone(self, number: int) -> list[Array] | MlirulesError | Uncompiled:
        """What a call gives where the program has a function, and a module, of its own."""
        call = self._calls[number]
        if isinstance(call.program, str) and self._grouped(call.program):
            self._alone(call.program, [call])
        return self.result(number)

    def _grouped(self, text: str) -> bool:
        return isinstance(self._session.binaries.get((text, self._target)), _Group)

    def _run(self, calls: Sequence[_Call]) -> None:
        compiled: dict[bytes, list[tuple[_Call, Binary]]] = {}
        programs: dict[str, list[_Call]] = {}
        for call in calls:
            if isinstance(call.program, Binary):
                compiled.setdefault(call.program.vmfb, []).append((call, call.program))
            else:
                programs.setdefault(call.program, []).append(call)
        for same in compiled.values():
            self._run_binary(same)
        known = self._session.binaries
        grouped: dict[int, tuple[_Group, dict[str, list[_Call]]]] = {}
        new: dict[tuple[object, ...], dict[object, dict[str, list[_Call]]]] = {}
        for text, own in programs.items():
            found = known.get((text, self._target))
            if isinstance(found, _Group):
                grouped.setdefault(id(found), (found, {}))[1][text] = own
            elif (
                found is not None
                or (shares := _shares(text, self._target, self._session.context)) is None
            ):
                self._alone(text, own)
            else:
                # A function is called as often as the program of it with the most calls.
                flags, attributes = shares
                new.setdefault(flags, {}).setdefault((len(own), attributes), {})[text] = own
        for group, members in grouped.values():
            self._run_group(group, members)
        for functions in new.values():
            self._together([part for found in functions.values() for part in _parts(found)])

    def _together(self, functions: Sequence[dict[str, list[_Call]]]) -> None:
        """Compile programs as functions of one module and call those.

        Where that fails each function has a module of its own, and then each half of its programs.
        """
        if len(functions) == 1 and len(functions[0]) == 1:
            ((text, calls),) = functions[0].items()
            self._alone(text, calls)
            return
        try:
            groups = _compiled(functions, self._target, self._session.context)
        except MlirulesError:
            for programs in functions:
                if len(functions) > 1:
                    self._together([programs])
                else:
                    self._halves(programs)
            return
        for group, programs in zip(groups, functions, strict=True):
            for text in programs:
                self._session.binaries.put((text, self._target), group)
            self._run_group(group, programs)

    def _halves(self, programs: dict[str, list[_Call]]) -> None:
        items = list(programs.items())
        middle = (len(items) + 1) // 2
        for half in (items[:middle], items[middle:]):
            if half:
                self._together([dict(half)])

    def _run_group(self, group: _Group, programs: dict[str, list[_Call]]) -> None:
        """Call a function of programs until every call of each has been made."""
        rounds = max(map(len, programs.values()))
        calls = []
        for turn in range(rounds):
            inputs: list[Array] = []
            for text, member in group.members.items():
                own = programs.get(text, ())
                inputs += own[min(turn, len(own) - 1)].inputs if own else member.inputs
            calls.append((group.function, inputs))
        given = runtime.run_each(group.vmfb, calls, self._target)
        if any(isinstance(one, MlirulesError) for one in given):
            if len(programs) == 1:
                ((text, own),) = programs.items()
                self._alone(text, own)
            else:
                self._halves(programs)
            return
        for turn, results in enumerate(given):
            assert not isinstance(results, MlirulesError)
            for text, own in programs.items():
                if turn < len(own):
                    own[turn].result = results[group.members[text].results]

    def _alone(self, text: str, calls: Sequence[_Call]) -> None:
        try:
            found = binary(text, self._target, self._session)
        except MlirulesError as error:
            for call in calls:
                call.result = Uncompiled(error)
            return
        self._run_binary([(call, found) for call in calls])

    def _run_binary(self, calls: Sequence[tuple[_Call, Binary]]) -> None:
        (vmfb,) = {binary.vmfb for _, binary in calls}
        asked = [(binary.function, call.inputs) for call, binary in calls]
        for (call, _), result in zip(
            calls, runtime.run_each(vmfb, asked, self._target), strict=True
        ):
            call.result = result


def binary(text: str, target: Target, session: Session | None = None) -> Binary:
    """A program compiled alone; once in a session (default: that of this thread).

    Raises :class:`MlirulesError`.
    """
    session = session or current()
    known = session.binaries
    found = known.get((text, target))
    if isinstance(found, Binary):
        return found
    entry = program.entry(compiler.parse(text, "<program>", session.context))
    if entry is None:
        raise MlirulesError.at("<program>", "no function to run", code="no-entry")
    made = Binary(compiler.compile_module(text, target), entry[0])
    known.put((text, target), made)
    return made


def _function(module: ir.Module) -> ir.Operation | None:
    """The one function that a program consists of, if its body can stand in another's."""
    operations = [op.operation for op in module.body.operations]
    if len(operations) != 1 or operations[0].name != "func.func":
        return None
    (function,) = operations
    if len(function.regions[0].blocks) != 1 or "arg_attrs" in function.attributes:
        return None
    return function


def _parts(programs: dict[str, list[_Call]]) -> list[dict[str, list[_Call]]]:
    """At most :data:`_MOST` programs each."""
    texts = list(programs)
    return [
        {text: programs[text] for text in texts[at : at + _MOST]}
        for at in range(0, len(texts), _MOST)
    ]


def _shares(
    text: str, target: Target, context: ir.Context
) -> tuple[tuple[object, ...], object] | None:
    """What programs of one module have in common, and what those of one function have besides.

    None: the program can stand with no other.
    """
    if "dense_resource" in text:  # its bytes belong to the module
        return None
    try:
        module = compiler.parse(text, "<program>", context)
    except MlirulesError:
        return None
    function = _function(module)
    if function is None:
        return None
    return tuple(compiler.flags_for(target, text)), tuple(_others(function).items())


def _others(function: ir.Operation) -> dict[str, ir.Attribute]:
    """The attributes of a function beside its name and type."""
    return {name: function.attributes[name] for name in function.attributes if name not in _NAMES}


def _compiled(
    functions: Sequence[dict[str, list[_Call]]], target: Target, context: ir.Context
) -> list[_Group]:
    """Programs as functions of one module. Raises :class:`CompileError`."""
    with context, ir.Location.unknown(context):
        module = ir.Module.create()
        members = [
            _merged(module, f"together{at}", programs) for at, programs in enumerate(functions)
        ]
        module.operation.verify()
    vmfb = compiler.compile_module(module, target, flags=_FLAGS)
    return [_Group(vmfb, f"together{at}", found) for at, found in enumerate(members)]


def _merged(module: ir.Module, name: str, programs: dict[str, list[_Call]]) -> dict[str, _Member]:
    """Write the bodies of programs into the module as one function."""
    context = module.context
    # The modules are kept by name: their ops do not keep them.
    parsed = {text: compiler.parse(text, "<program>", context) for text in programs}
    functions: dict[str, Any] = {text: _function(one) for text, one in parsed.items()}
    types = [
        ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        for function in functions.values()
    ]
    inputs = [one for type_ in types for one in type_.inputs]
    outputs = [one for type_ in types for one in type_.results]
    attributes = _others(next(iter(functions.values())))
    attributes["sym_name"] = ir.StringAttr.get(name)
    attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))
    merged = ir.Operation.create("func.func", attributes=attributes, regions=1)
    module.body.append(merged)
    block = merged.regions[0].blocks.append(*inputs)
    returned: list[Any] = []
    members: dict[str, _Member] = {}
    at = 0
    for text, function in functions.items():
        (body,) = function.regions[0].blocks
        for argument in body.arguments:
            argument.replace_all_uses_with(block.arguments[at])
            at += 1
        *ops, last = [op.operation for op in body.operations]
        start = len(returned)
        returned += last.operands
        last.erase()  # before what it uses belongs to another module
        for op in ops:
            block.append(op)
        members[text] = _Member(slice(start, len(returned)), programs[text][0].inputs)
    block.append(ir.Operation.create("func.return", operands=returned))
    return members
