"""The README's tour: every command of it works when pasted, one after the other."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

README = Path(__file__).resolve().parent.parent / "README.md"


def _tour() -> list[str]:
    """The shell blocks of the tour, in order."""
    text = README.read_text(encoding="utf-8")
    section = text.split("## Five minutes", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def test_the_tour_works_when_pasted(
    tmp_path: Path, pasted: Callable[[str, Path], CompletedProcess[str]]
) -> None:
    blocks = _tour()
    assert len(blocks) >= 5
    done = pasted("\n".join(blocks), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # It fires once, it refuses once with the line that does, its tests pass, it computes.
    assert "+" in done.stdout
    assert "my-sigmoid applies here" in done.stdout
    assert re.search(r"my-sigmoid\.yaml:\d+:\d+: error\[no-match\]", done.stdout)
    assert "2 passed, 0 failed: 1 rules" in done.stdout
    assert "r0: float32 2x3" in done.stdout
    assert "[[0.5" in done.stdout
    assert (tmp_path / "trace.jsonl").read_text().count("\n") == 1
    assert "Pattern my_sigmoid" in (tmp_path / "generated" / "my-sigmoid.pdll").read_text()


def test_every_command_is_in_the_table() -> None:
    from mlirules.cli import build

    named = {command.name for command in build().registered_commands}
    named |= {group.typer_instance.info.name for group in build().registered_groups}
    listed = set(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", README.read_text(), re.MULTILINE))
    assert {n.strip("` ") for row in listed for n in row.split(",")} == named
