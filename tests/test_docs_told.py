"""The findings that docs/testing.md shows are what `check` says of the files that it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "testing.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(rule: .*?)```", PAGE, re.DOTALL))
SHOWN = re.findall(r"```console\n\$ mlirules (check .*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[words for words, _ in SHOWN])
def test_what_is_shown_is_said(
    command: str,
    output: str,
    tmp_path: Path,
    told: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    _, said = told(*shlex.split(command))
    assert said.strip() == output.strip()


def test_both_are_shown() -> None:
    assert [command.split()[1] for command, _ in SHOWN] == ["my-mm.yaml", "my-linear.yaml"]
