"""Rules that stand in a test as text: as files with some of it changed, and their faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule


def changed(text: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """A file of the rule, each change made at its first place."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / f"{text.partition(chr(10))[0].removeprefix('rule: ')}.yaml"
    path.write_text(text)
    return path


def faults(text: str, folder: Path, *changes: tuple[str, str]) -> list[str]:
    """What loading the changed rule is refused for."""
    with pytest.raises(MlirulesError) as caught:
        load_rule(changed(text, folder, *changes))
    return [fault.message for fault in caught.value.faults]
