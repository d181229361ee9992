"""The benchmark over PyTorch's op database: what it keeps, leaves out and reports."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.support.pool import Work

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("op_database")


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("op_database_export")


def test_each_op_left_out_has_its_reason(exporting: Any) -> None:
    assert "random" in exporting.left_out("bernoulli")
    assert "random" in exporting.left_out("nn.functional.dropout2d")
    assert "factorises" in exporting.left_out("linalg.svdvals")
    for kept in ("nextafter", "nn.functional.normalize", "fft.rfft", "linalg.norm", "matmul"):
        assert not exporting.left_out(kept)


def test_exports_go_on_where_they_ended(database: Any, tmp_path: Path) -> None:
    log = tmp_path / "exports.jsonl"
    said = [
        {"entry": {"name": "abs-0", "area": "abs"}},
        {"ended": "abs"},
        {"refused": "item-0", "why": "ValueError: no result is a tensor"},
        {"ended": "item"},
    ]
    log.write_text("\n".join(map(json.dumps, said)) + '\n{"entry": {"na', encoding="utf-8")
    exports = database.Exports.read(log)
    assert list(exports.entries) == ["abs-0"]
    assert exports.refused == {"item-0": "ValueError: no result is a tensor"}
    assert exports.ended == {"abs", "item"}
    chosen = exports.of({"item", "neg"})
    assert (list(chosen.entries), list(chosen.refused), chosen.ended) == ([], ["item-0"], {"item"})


EXPORTER = """\
import os, time

class Exporter:
    def __init__(self, setup):
        self.setup = setup

    def __call__(self, name, tell):
        if name == "crashes":
            tell({"entry": {"name": "crashes-0", "area": name}})
            os.abort()
        if name == "hangs":
            time.sleep(60)
        tell({"entry": {"name": f"{name}-0", "area": name, "setup": self.setup}})
"""


def test_an_export_that_dies_or_hangs_costs_its_op(database: Any, tmp_path: Path) -> None:
    (tmp_path / "an_exporter.py").write_text(EXPORTER)
    log = tmp_path / "exports.jsonl"
    work = Work("an_exporter:Exporter", "f32", 2.0, path=(str(tmp_path),))
    database.export_ops(log, work, ["abs", "crashes", "hangs", "neg"], "2")
    exports = database.Exports.read(log)
    assert set(exports.entries) == {"abs-0", "crashes-0", "neg-0"}
    assert exports.entries["neg-0"]["setup"] == "f32"
    assert set(exports.refused) == {"crashes", "hangs"}
    assert "SIGABRT" in exports.refused["crashes"]
    assert exports.refused["hangs"] == "stopped after 2 s"
    assert exports.ended == {"abs", "crashes", "hangs", "neg"}


def test_results_of_narrow_types_have_a_tolerance_of_their_own(database: Any) -> None:
    def of(*types: str) -> Any:
        return database.tolerances({"results": [{"dtype": dtype} for dtype in types]})

    assert of("float32", "int64") == {}
    assert of("bfloat16", "float32") == {"bfloat16": (1.6e-2, 1e-5)}


def test_a_unit_in_the_last_place_of_f16_is_within_its_tolerance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    data = importlib.import_module("corpus_data")
    want = np.array([1.0, 3.0], dtype=np.float16)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "one.npz", r0=want)
    result = data.Value("tensor", "float16", (2,))
    variants = {"core": data.Variant(1, (0,))}
    strict = data.Program(tmp_path, "one", "one", (), (result,), False, variants)
    lenient = replace(strict, tolerances={"float16": (1e-2, 1e-5)})
    near = [want + np.array([0, 0.0078125], dtype=np.float16)]
    assert "1 of 2 elements differ" in data.difference(strict, "core", near)
    assert data.difference(lenient, "core", near) == ""
    assert data.difference(lenient, "core", [want + np.float16(0.5)])


def test_the_section_is_renewed_in_its_place(database: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nBefore.\n", encoding="utf-8")
    first = database.section([database.Measured("f32", database.Exports(), [])], "a CPU")
    database.renew(page, first)
    page.write_text(page.read_text() + "\nAfter.\n", encoding="utf-8")
    second = first.replace("a CPU", "another CPU")
    database.renew(page, second)
    text = page.read_text()
    assert text.count(database.BEGIN) == text.count(database.END) == 1
    assert "another CPU" in text
    assert text.startswith("# Page\n\nBefore.\n")
    assert text.endswith("After.\n")
    page.write_text(text.replace(database.END, ""), encoding="utf-8")
    with pytest.raises(Exception, match="one of the marks"):
        database.renew(page, second)


def test_a_wrong_element_type_is_told(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        database.parse_arguments(["--dtype", "f31"])
    assert stopped.value.code == 2
    assert "f31" in capsys.readouterr().err


@pytest.mark.slow
def test_programs_are_exported_compiled_and_compared(database: Any, tmp_path: Path) -> None:
    for needed in ("torch", "scipy", "expecttest"):
        pytest.importorskip(needed)
    folder = tmp_path / "f32"
    (folder / "core").mkdir(parents=True)
    (folder / "data").mkdir()
    log = folder / "exports.jsonl"
    database.export_ops(log, database.exporting(folder, "f32"), ["item", "special.i0e"], "1")
    exports = database.Exports.read(log)
    assert exports.ended == {"item", "special.i0e"}
    assert set(exports.entries) == {"special.i0e-0", "special.i0e-1"}
    assert set(exports.refused) == {"item-0", "item-1"}
    with log.open("a", encoding="utf-8") as lines:
        for name in database.op_database_export.names("f32"):
            lines.write(json.dumps({"ended": name}) + "\n")
    figures = tmp_path / "figures.json"
    arguments = ["--cache", str(tmp_path), "--workers", "1", "--json", str(figures)]
    assert database.main(arguments) == 0
    rows = json.loads(figures.read_text())["rows"]
    outcomes = {(row["program"], row["mode"]): row["outcome"] for row in rows}
    assert outcomes["special.i0e-0", "rules"] == "pass"
    assert outcomes["special.i0e-0", "fallback"] == "pass"
    assert outcomes["special.i0e-0", "builtin"] != "pass"
