"""Finding the model that an import names, in a file, a package or a saved program.

FILE.py and packages are code, which is run; a ``.pt2`` is what ``torch.export.save`` wrote.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.support import memory

if TYPE_CHECKING:
    import torch

__all__ = ["Name", "Subject", "resolved"]

_FORMS = "write FILE.py:MODEL, PACKAGE.MODULE:MODEL or FILE.pt2, for example model.py:Net"


@dataclass(frozen=True)
class Name:
    """``FILE.py:MODEL``, ``PACKAGE.MODULE:MODEL`` or ``FILE.pt2``, in its parts.

    ``file`` or ``package`` is set; ``model`` is a dotted path inside it, empty for a ``.pt2``.
    """

    text: str
    file: Path | None
    package: str
    model: str

    @classmethod
    def parse(cls, text: str) -> Name:
        """Read what a command line gives. Raises MlirulesError, also for a file that is absent."""
        if text.endswith(".pt2"):
            return cls(text, _present(text), "", "")
        place, _, model = text.rpartition(":")
        if place and _dotted(model):
            if place.endswith(".py") or "/" in place:
                return cls(text, _present(place), "", model)
            if _dotted(place):
                return cls(text, None, place, model)
        raise MlirulesError.at(text, "does not name a model", code="model-name", suggestion=_FORMS)

    @property
    def place(self) -> str:
        """What faults name: the file, or the whole text."""
        return str(self.file) if self.file else self.text

    @contextmanager
    def blaming(self, doing: str) -> Iterator[None]:
        """Turn what the model's own code raises into a fault, at its file's deepest line."""
        try:
            yield
        except MlirulesError:
            raise
        except SyntaxError as error:
            if self.file is None or error.filename != str(self.file.resolve()):
                raise self._fault(error, doing) from error
            span = Span(
                self.place, error.lineno or 0, error.offset or 1, 1, (error.text or "").rstrip("\n")
            )
            raise MlirulesError(Fault(span, "model-file", f"not Python: {error.msg}")) from None
        except (Exception, SystemExit) as error:
            raise self._fault(error, doing) from error

    def _fault(self, error: BaseException, doing: str) -> MlirulesError:
        span = Span(self.place)
        own = self.file.resolve() if self.file else None
        for frame in traceback.extract_tb(error.__traceback__):
            if own is not None and frame.filename == str(own) and frame.lineno:
                lines = own.read_text(encoding="utf-8", errors="replace").split("\n")
                line = lines[frame.lineno - 1]
                column = len(line) - len(line.lstrip()) + 1
                span = Span(self.place, frame.lineno, column, len(line.strip()), line)
        suggestion = ""
        if isinstance(error, ModuleNotFoundError) and error.name:
            suggestion = f"install {error.name!r} in this environment"
        what = f"{doing} raised {type(error).__name__}: {_first_lines(str(error))}"
        if error.__cause__ is not None:  # packages that load lazily say there what it was
            why = error.__cause__
            what += f" (after {type(why).__name__}: {_first_lines(str(why))})"
        return MlirulesError(Fault(span, "model-file", what, suggestion))


@dataclass
class Subject:
    """What is imported: a model with its example inputs, or a program that is exported already."""

    model: torch.nn.Module | None = None
    exported: torch.export.ExportedProgram | None = None
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)


@contextmanager
def resolved(
    name: Name, arguments: Mapping[str, object], inputs: Sequence[str], seed: int
) -> Iterator[Subject]:
    """The subject that ``name`` stands for; what a file brought along is gone afterwards.

    ``arguments`` are for a class or function, ``inputs`` take the place of the example inputs
    (see :func:`mlirules.drivers.frontend.values.from_command_line`). torch is seeded before the
    model is made and before its inputs are. Raises :class:`MlirulesError`.
    """
    import torch

    if not name.model:
        if arguments or inputs:
            option = "--arg" if arguments else "--input"
            raise MlirulesError.at(
                name.text,
                f"a program that is exported already takes no {option}",
                code="model-arguments",
            )
        from mlirules.drivers.frontend.quantized import register

        register()
        with name.blaming("torch.export.load()"):
            yield Subject(exported=torch.export.load(name.text))
        return
    with _module(name) as module:
        named = _lookup(module, name)
        torch.manual_seed(seed)
        made = _made(named, name, arguments)
        torch.manual_seed(seed)
        yield _subject(made, named, module, name, inputs)


@contextmanager
def _module(name: Name) -> Iterator[ModuleType]:
    if name.file is not None:
        with _executed(name.file, name) as module:
            yield module
        return
    with redirect_stdout(sys.stderr):
        try:
            with name.blaming(f"import {name.package}"):
                module = importlib.import_module(name.package)
        except MlirulesError as error:
            absent = error.__cause__
            if isinstance(absent, ModuleNotFoundError) and absent.name == name.package:
                raise MlirulesError.at(
                    name.text,
                    f"there is no module {name.package}",
                    code="model-file",
                    suggestion=f"install the package that brings {name.package.split('.')[0]!r}",
                ) from None
            raise
        yield module


@contextmanager
def _executed(file: Path, blame: Name) -> Iterator[ModuleType]:
    """FILE.py as a module under a name of its own, gone again afterwards.

    Its folder comes first on ``sys.path`` meanwhile, as when Python runs it; ``__name__`` is not
    ``__main__``; what it prints goes to stderr, because stdout may be carrying a report.
    """
    name = f"_mlirules_import_{uuid.uuid4().hex}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise MlirulesError.at(
            str(file), "is not a Python file", code="model-file", suggestion="its name ends in .py"
        )
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    before, no_bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.modules[name] = module  # dataclasses look their own module up
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    try:
        with redirect_stdout(sys.stderr):
            with blame.blaming("executing it"):
                spec.loader.exec_module(module)
            yield module
    finally:
        sys.dont_write_bytecode = no_bytecode
        sys.path.remove(folder)
        for other in set(sys.modules) - before:
            # Its neighbours too: the next file may have others of the same name.
            origin = getattr(sys.modules[other], "__file__", None)
            if origin and Path(origin).parent == Path(folder):
                del sys.modules[other]


def _lookup(module: ModuleType, name: Name) -> Any:
    found: Any = module
    for part in name.model.split("."):
        owner = found
        try:
            with name.blaming(f"loading {part}"):
                found = getattr(owner, part)
        except MlirulesError as error:
            if not isinstance(error.__cause__, AttributeError):
                raise  # of a package that loads its parts when they are asked for
            own = [k for k in dir(owner) if not k.startswith("_")]
            raise MlirulesError.at(
                name.place,
                f"defines no {part!r}",
                code="model-name",
                suggestion=_further_in(owner, part) or did_you_mean(part, own),
            ) from None
    return found


def _further_in(owner: object, part: str) -> str | None:
    """Where a module of this package has the name that the package lacks: timm.models for timm."""
    if not isinstance(owner, ModuleType):
        return None
    inner = f"{owner.__name__}."
    for module in vars(owner).values():
        # Not getattr: a package may load its parts when they are asked for.
        within = isinstance(module, ModuleType) and module.__name__.startswith(inner)
        if within and part in vars(module):
            return f"{module.__name__} does: {module.__name__}:{part}"
    return None


def _made(named: object, name: Name, arguments: Mapping[str, object]) -> Any:
    """What the class or function makes; a module as it is."""
    import torch

    if isinstance(named, torch.nn.Module):
        if arguments:
            raise MlirulesError.at(
                name.place,
                f"{name.model} is a module already and takes no arguments",
                code="model-arguments",
                suggestion="leave --arg out, or name the class or a factory function",
            )
        return named
    if not callable(named):
        return named
    shown = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
    with name.blaming(f"{name.model}({shown})"):
        make = _of_transformers(named)
        if make is None:
            return named(**arguments)
        _check_room(make, name, arguments)
        return make(**arguments)


def _check_room(make: Callable[..., Any], name: Name, arguments: Mapping[str, object]) -> None:
    """Refuse weights that free memory cannot hold: the system would end the process, silently."""
    import torch

    free = memory.available()
    if free is None:
        return
    try:
        with torch.device("meta"):
            model = make(**arguments)
    except (NotImplementedError, RuntimeError):
        return  # It computes with its weights as it is made, which have no numbers on this device.
    needed = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    if needed > free:
        raise MlirulesError.at(
            name.place,
            f"the weights of {name.model} take {needed / 1e9:.1f} GB, "
            f"and {free / 1e9:.1f} GB of memory are free",
            code="model-memory",
            suggestion="a smaller configuration, by its own names: --arg num_hidden_layers=2",
        )


def _of_transformers(named: object) -> Callable[..., Any] | None:
    """How a model or configuration class of transformers becomes a model with random weights.

    Its arguments are the configuration's. Without ``use_cache=true`` a decoder answers with logits
    alone: its caches are objects, not tensors.
    """
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(named, type):
        return None
    model: Any
    config: Any
    if issubclass(named, transformers.PreTrainedModel):
        model, config = named, getattr(named, "config_class", None)
    elif issubclass(named, transformers.PretrainedConfig):
        model, config = transformers.AutoModel, named
    else:
        return None
    if config is None:  # an abstract class says itself what it lacks
        return None

    def make(**arguments: object) -> Any:
        settings = config(**arguments)
        if "use_cache" not in arguments:
            settings.use_cache = False
        return model.from_config(settings) if model is not named else model(settings)

    return make


def _subject(
    made: object, named: object, module: ModuleType, name: Name, inputs: Sequence[str]
) -> Subject:
    import torch

    from mlirules.drivers.frontend.values import from_command_line

    model, *given = made if isinstance(made, tuple) and made else (made,)
    if isinstance(model, torch.export.ExportedProgram):
        return Subject(exported=model)
    if not isinstance(model, torch.nn.Module):
        raise MlirulesError.at(
            name.place,
            f"{name.model} is neither an nn.Module nor a function that returns one: "
            f"{type(model).__name__}",
            code="model-kind",
        )
    if inputs:
        return Subject(model, None, *from_command_line(inputs))
    if len(given) == 2:
        return Subject(model, None, tuple(given[0]), dict(given[1]))
    owned: Any = given[0] if given else None
    for owner in (model, named, module):
        if owned is None:
            owned = getattr(owner, "example_inputs", None)
    if owned is None:
        raise MlirulesError.at(
            name.place,
            f"there are no example inputs for {name.model}",
            code="example-inputs",
            suggestion="give --input 1x3x224x224xf32 (or --input NAME=...)"
            + (
                f", or define example_inputs() in the file or {name.model}.example_inputs"
                if name.file
                else ""
            ),
        )
    if callable(owned):
        with name.blaming("example_inputs()"):
            owned = owned()
    if isinstance(owned, Mapping):
        return Subject(model, None, (), dict(owned))
    return Subject(model, None, tuple(owned) if isinstance(owned, tuple | list) else (owned,))


def _present(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise MlirulesError.at(path, "there is no such file", code="file")
    return file


def _dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _first_lines(text: str, limit: int = 400) -> str:
    words = " ".join(text.split())
    return words if len(words) <= limit else words[:limit] + " ..."
