"""The quick ways through the command line say and do what typer's do."""

import contextlib
import importlib
import inspect
import io
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import pytest

from mlirules import cli
from mlirules.commands import options, quick
from mlirules.commands.common import Printer
from mlirules.support import helps

COMMANDS = {
    (name,): importlib.import_module(f"mlirules.commands.{module}")
    for name, module in cli.COMMANDS.items()
}
FUNCTIONS: dict[tuple[str, ...], Any] = {
    words: module.command for words, module in COMMANDS.items() if hasattr(module, "command")
}
for (group,), module in COMMANDS.items():
    for inner, (function, _) in getattr(getattr(module, "app", None), "commands", {}).items():
        FUNCTIONS[group, inner] = function


@pytest.mark.parametrize("words", [(), ("spec",), *FUNCTIONS], ids=" ".join)
def test_help_that_is_kept_is_that_of_typer(words: tuple[str, ...], tmp_path: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
        patch.setenv("COLUMNS", "90")
        said = [_said([*words, "--help"]) for _ in range(2)]
        patch.setattr(cli, "_help", lambda _given: pytest.fail("it was not kept"))
        said.append(_said(["-h", *words]) if not words else _said([*words, "-h"]))
        patch.undo()
        patch.setenv("COLUMNS", "90")
        real = cli._help([*words, "--help"])
        assert real is not None
    assert said == [real] * 3
    assert "Usage: mlirules" in real


def _said(given: list[str]) -> str:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as done:
        cli.main(given)
    assert done.value.code == 0
    return out.getvalue()


def test_help_is_made_anew_when_what_it_is_of_changes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
    first = helps.Help(["--help"])
    first.keep(lambda _given: "old")
    assert helps.Help(["--help"]).read() == "old"
    monkeypatch.setattr(helps, "_made_from", lambda: ["another version"])
    assert helps.Help(["--help"]).read() is None
    monkeypatch.undo()
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path))
    (tmp_path / "help" / first.key).write_bytes(b"half of")
    assert first.read() is None


def _given(words: tuple[str, ...]) -> Iterator[list[str]]:
    """Arguments for a command: each option alone and with those before it, and mistakes."""
    yield []
    yield ["one"]
    yield ["conversion", "two"]
    yield ["conversion", "two", "three"]
    yield ["one", "two", "three"]
    yield ["one", "--", "--flag=1", "-x"]
    yield ["one", "--nonsense"]
    yield ["--help"]
    try:
        parameters = quick._parameters(FUNCTIONS[words])
    except quick._Unusual:
        return
    before: list[str] = []
    for parameter in parameters:
        if isinstance(parameter.said, options.Argument):
            continue
        for (name, _), value in itertools.product(
            quick._spellings(parameter, parameter.said), ("7", "0.25", "word", None)
        ):
            here = [name] if value is None else [name, value]
            yield ["one", *here]
            yield [*here, "one", "two"]
            if name.startswith("--") and value is not None:
                yield ["one", f"{name}={value}"]
                yield ["one", *here, *here]
        before += [name] if parameter.kind is bool else [name, "7"]
        yield ["one", *before]


@pytest.mark.parametrize("words", FUNCTIONS, ids=" ".join)
def test_arguments_are_read_as_typer_reads_them(words: tuple[str, ...]) -> None:
    import typer

    function = FUNCTIONS[words]
    seen: list[dict[str, Any]] = []
    taken = options.for_typer(function)

    def command(**given: Any) -> None:
        seen.append(given)

    command.__annotations__ = taken.__annotations__
    command.__dict__["__signature__"] = inspect.signature(taken)
    app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
    app.command()(command)
    parse, plain = typer.main.get_command(app), 0
    for given in _given(words):
        found = quick.arguments(function, given)
        if found is None:
            continue
        plain += 1
        seen.clear()
        with redirect_stdout(io.StringIO()), contextlib.suppress(Exception, SystemExit):
            parse.main(given, standalone_mode=False)
        assert seen == [found], given
    assert plain or words == ("spec", "link")


def test_what_is_plain_is_printed_as_rich_prints_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    printer = Printer(stderr=False)
    how: list[dict[str, Any]] = [{}, {"style": "red"}, {"markup": False, "soft_wrap": True}]
    for text, options_ in itertools.product(("plain", "two\nlines\n", "it's 3.5 MB", ""), how):
        printer.print(text, **options_)
        quick_ = capsys.readouterr().out
        printer.rich.file = sys.stdout
        printer.rich.print(text, **options_)
        assert capsys.readouterr().out == quick_
    printer.print("[bold]marked[/bold]")
    assert capsys.readouterr().out == "marked\n"


def test_a_plain_command_loads_neither_typer_nor_rich() -> None:
    code = (
        "import sys\nfrom mlirules import cli\n"
        "from mlirules.commands import quick\n"
        "from mlirules.commands import compile as command\n"
        "assert quick.arguments(command.command, ['m.mlir', '-p', 'cpu'])\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'typer', 'rich', 'iree'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
