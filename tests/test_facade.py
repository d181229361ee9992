"""The front door: every public name resolves, and importing the package loads no compiler."""

import subprocess
import sys

import pytest

import mlirules


@pytest.mark.parametrize("name", sorted(mlirules.__all__))
def test_public_name_resolves(name: str) -> None:
    assert getattr(mlirules, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mlirules.nothing


def test_dir_lists_the_public_names() -> None:
    assert dir(mlirules) == sorted(mlirules.__all__)


def test_import_loads_no_compiler() -> None:
    program = "import sys, mlirules; print([m for m in sys.modules if m.startswith('iree')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
