"""The README's tour: every command of it works when pasted, one after the other."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def _tour() -> list[str]:
    """The shell blocks of the tour, in order."""
    text = README.read_text(encoding="utf-8")
    section = text.split("## Five minutes", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def test_the_tour_works_when_pasted(tmp_path: Path) -> None:
    blocks = _tour()
    assert len(blocks) >= 5
    program = f'mlirules() {{ "{sys.executable}" -m mlirules "$@"; }}\nset -euo pipefail\n'
    done = subprocess.run(
        ["bash", "-c", program + "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
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
