"""What src/typings says of the compiler's and the runtime's bindings is true of those installed."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

STUBS = Path(__file__).parents[1] / "src" / "typings"
MODULES = sorted(
    ".".join(path.relative_to(STUBS).with_suffix("").parts).removesuffix(".__init__")
    for path in STUBS.rglob("*.pyi")
)
#: Imports PyTorch.
IMPORTER = "iree.compiler.extras.fx_importer"
#: Results that differ from what the bindings say, which is not what they give.
DIFFER = {
    "Diagnostic.notes": "a tuple of as many as there are, not of one",
    "FusedLoc.locations": "locations, not any objects",
    "Value.type": "their variable stands for a type",
    "_OperationBase.clone": "a view of the op, not the op",
}

Signature = tuple[ast.arguments, ast.expr | None]


def _source(module: str) -> Path:
    path = STUBS.joinpath(*module.split("."))
    return path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")


def _installed(module: str) -> ModuleType:
    if module == IMPORTER:
        pytest.importorskip("torch")
    return importlib.import_module(module)


def _written(text: str) -> Signature:
    """A signature of nanobind's, whose defaults are numbers of a table."""
    text = re.sub(r"\\\d+", "None", text)
    text = text.replace("def (", "def _(", 1)
    (function,) = ast.parse(f"{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args, function.returns


def _known(function: object, *, setter: bool = False) -> list[Signature] | None:
    """What the bindings say that a function takes and gives; None: they say nothing."""
    if isinstance(function, property):
        function = function.fset if setter else function.fget
    function = getattr(function, "__func__", function)
    said = getattr(function, "__nb_signature__", None)
    if said is not None:
        return [_written(overload[0]) for overload in said]
    if inspect.isfunction(function):
        parts = inspect.signature(function).parameters.values()
        plain = [p.replace(annotation=p.empty) for p in parts]
        given = [p if p.default is p.empty else p.replace(default=None) for p in plain]
        return [_written(f"def _{inspect.Signature(given)}")]
    return None


def _fits(stub: ast.arguments, real: ast.arguments) -> bool:
    """Whether each parameter of a stub is there, and what it leaves out need not be given."""
    if [a.arg for a in stub.posonlyargs] and len(stub.posonlyargs) != len(real.posonlyargs):
        return False
    defaults = len(real.args) + len(real.posonlyargs) - len(real.defaults)
    ours = [a.arg for a in stub.args]
    theirs = [a.arg for a in [*real.posonlyargs, *real.args]]
    needed = [name for name in theirs[:defaults] if name not in [a.arg for a in real.posonlyargs]]
    keyword = {a.arg for a in real.kwonlyargs}
    required = {a.arg for a, d in zip(real.kwonlyargs, real.kw_defaults, strict=True) if d is None}
    given = [name for name in theirs if name in ours]
    return (
        given == ours
        and set(needed) <= {*ours, *(a.arg for a in stub.posonlyargs)}
        and {a.arg for a in stub.kwonlyargs} <= keyword | set(theirs)
        and required <= {a.arg for a in stub.kwonlyargs}
        and (stub.vararg is None or real.vararg is not None)
    )


def _sets(stub: ast.FunctionDef) -> bool:
    return any(ast.unparse(d).endswith(".setter") for d in stub.decorator_list)


def _type(annotation: ast.expr | None) -> str:
    """A type as text, without the modules of its names."""
    text = "" if annotation is None else ast.unparse(annotation)
    return re.sub(r"\b(?:[\w]+\.)+(\w+)", r"\1", text)


def _is(ours: str, told: str, module: ModuleType) -> bool:
    """Whether a stub's result is what the bindings tell, or says more where they tell no more."""
    if ours.startswith("Iterator[") and ours != told:  # theirs are classes of their own
        known = _known(getattr(getattr(module, told, None), "__next__", None)) or ()
        return any(ours == f"Iterator[{_type(result)}]" for _, result in known)
    return told == "object" or ours == told or ours.partition("[")[0] == told


def _functions(
    tree: ast.Module, module: ModuleType
) -> Iterator[tuple[str, ast.FunctionDef, object]]:
    """The functions and methods of a stub with what is installed under their names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node, getattr(module, node.name)
        elif isinstance(node, ast.ClassDef):
            owner = getattr(module, node.name)
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    found = inspect.getattr_static(owner, inner.name)
                    yield f"{node.name}.{inner.name}", inner, found


def _has(owner: type, name: str) -> bool:
    """Whether a class has an attribute: `current` of some raises until there is one."""
    return any(name in vars(c) or name in dir(type(c)) for c in owner.__mro__)


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """The names that a stub's module or class states, but for helpers of its own."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if ast.unparse(node.annotation) != "TypeAlias":
                yield node.target.id
        elif isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node.value):
            yield ast.unparse(node.targets[0])


@pytest.mark.parametrize("name", MODULES)
def test_every_name_of_a_stub_exists(name: str) -> None:
    module = _installed(name)
    tree = ast.parse(_source(name).read_text())
    missing = [f"{name}.{said}" for said in _names(tree.body) if not hasattr(module, said)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and hasattr(module, node.name):
            owner = getattr(module, node.name)
            missing += [f"{node.name}.{m}" for m in _names(node.body) if not _has(owner, m)]
    assert not missing


@pytest.mark.parametrize("name", MODULES)
def test_classes_have_the_bases_of_the_stub(name: str) -> None:
    module = _installed(name)
    for node in ast.parse(_source(name).read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            written = ast.unparse(base).partition("[")[0]
            known = {"Sequence": "collections.abc", "Exception": "builtins", "Enum": "enum"}
            known |= {"IntFlag": "enum", "Attribute": "iree.compiler.ir"}
            last = written.rpartition(".")[2]
            home = importlib.import_module(known[last]) if last in known else module
            owner = getattr(module, node.name)
            # What has items by number is gone over like a sequence that is registered as one.
            items = (
                last == "Sequence" and hasattr(owner, "__getitem__") and hasattr(owner, "__len__")
            )
            assert items or issubclass(owner, getattr(home, last)), node.name


@pytest.mark.parametrize("name", MODULES)
def test_functions_take_what_a_stub_says(name: str) -> None:
    module = _installed(name)
    wrong = []
    for where, stub, found in _functions(ast.parse(_source(name).read_text()), module):
        known = _known(found, setter=_sets(stub))
        if known is not None and not any(_fits(stub.args, real) for real, _ in known):
            wrong.append(f"{where}({ast.unparse(stub.args)})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", MODULES)
def test_functions_give_what_a_stub_says(name: str) -> None:
    module = _installed(name)
    wrong = []
    for where, stub, found in _functions(ast.parse(_source(name).read_text()), module):
        known = _known(found, setter=_sets(stub)) or ()
        given = {_type(result) for _, result in known} - {""}
        ours = _type(stub.returns)
        if given and where not in DIFFER and not any(_is(ours, told, module) for told in given):
            wrong.append(f"{where} gives {' or '.join(sorted(given))}, the stub says {ours}")
    assert not wrong, "\n".join(wrong)


def test_a_stub_that_says_too_much_is_found() -> None:
    module = _installed("iree.compiler.ir")
    tree = ast.parse("class Block:\n    def erase_argument(self, number: int) -> str: ...")
    ((_, stub, found),) = _functions(tree, module)
    ((real, given),) = _known(found) or ()
    assert not _fits(stub.args, real)
    assert not _is("str", _type(given), module)
    assert not _has(module.Block, "no_such_method")
