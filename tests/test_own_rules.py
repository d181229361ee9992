"""`--rules` of `compile`, `run`, `bench`, `profile`: rules of one's own, each where its ops are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.insert import with_rules
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline

TENSOR = "!torch.vtensor<[2,3],f32>"


def rule(folder: Path, name: str, kind: str, body: str) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(
        f"rule: {name}\nkind: {kind}\nsummary: A rule of a test.\nreason: It shows a place.\n{body}"
        "tests:\n  - {name: positive, input: 'module {}', check: 'CHECK: module'}\n"
        "  - {name: negative, unchanged: 'module {}'}\n"
    )
    return file


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a conversion of a custom op, a fusion of it, and a rule over linalg."""
    folder = tmp_path / "own"
    folder.mkdir()
    types = "types: {x: vtensor<M x N x T>, y: vtensor<M x N x T>}\n"
    rule(
        folder,
        "my-twice-to-linalg",
        "conversion",
        types + "match: ['y = torch.operator(x) {name = \"my.twice\"}']\n"
        "rewrite: ['y[m, n] = x[m, n] + x[m, n]']\n",
    )
    rule(
        folder,
        "my-twice-thrice-fuse",
        "fusion",
        types + "match: ['a = torch.operator(x) {name = \"my.half\"}', "
        "'y = torch.operator(a) {name = \"my.twice\"}']\nrewrite: ['y = x']\n",
    )
    rule(
        folder,
        "my-linalg",
        "fusion",
        "types: {x: tensor<M x N x f32>, y: tensor<M x N x f32>}\n"
        "match: ['y[m, n] = x[m, n] + x[m, n]']\nrewrite: ['y[m, n] = x[m, n] * f32(2.0)']\n",
    )
    return folder


def program(folder: Path, *ops: str) -> Path:
    file = folder / "model.mlir"
    rows, value = [], "%x"
    for n, op in enumerate(ops):
        called = f'torch.operator "{op}"({value}) : ({TENSOR})' if "." in op else ""
        called = called or f"torch.aten.{op} {value} : {TENSOR}"
        rows.append(f"  %v{n} = {called} -> {TENSOR}\n")
        value = f"%v{n}"
    body = "".join(rows)
    file.write_text(
        f"func.func @main(%x: {TENSOR}) -> {TENSOR} {{\n{body}  return {value} : {TENSOR}\n}}\n"
    )
    return file


def stages(name: str, own: Path, kind: str) -> list[tuple[str | None, list[str]]]:
    line = with_rules(Pipeline.load(name), [str(own)], Target.parse(kind))
    return [(s.name, [Path(r).stem for r in s.rules if "own" in r]) for s in line.stages]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "cpu-fast",
            [
                *("limits", "integers", "integer-groups", "integer-group-activations"),
                *("integer-group-floats", "integer-activations", "integer-floats"),
                *(
                    "integer-kernels",
                    "bf16-limited",
                    "bf16-added",
                    "bf16",
                    "bf16-plain",
                    "bf16-kernels",
                    "narrow-turns",
                    "widened",
                    "widened-products",
                    "widened-onwards",
                    "patches",
                ),
                *("attention", "layers", "algebra", "bf16-attention"),
                *("flash", "forms", "norms"),
            ],
            ["part-writes", "linalg-forms"],
        ),
        ("vulkan", [], ["part-writes", "linalg-forms"]),
        ("cpu", [], ["part-writes"]),
    ],
)
def test_each_rule_goes_where_its_ops_are(
    name: str, before: list[str], after: list[str], own: Path
) -> None:
    target = "vulkan" if name == "vulkan" else "cpu"
    conversion = (None, ["my-twice-to-linalg"])
    fusions = [("fusions", [])] if name == "vulkan" else []
    own_stages = (
        *("gates", "scales", "scaled-images", "means", "row-kernels"),
        *("limited-kernels", "added-kernels"),
        *("shifted-kernels", "kernels", "pools"),
        *("packing", "bf16-layers", "products", "computed-products", "bytes"),
        *("depthwise", "integer-products", "extensions", "permutes"),
    )
    turned = [(stage, []) for stage in own_stages] if name == "cpu-fast" else []
    assert stages(name, own, target) == [
        (None, ["my-twice-thrice-fuse"]),
        *((n, []) for n in before),
        *fusions,
        conversion,
        ("decompose", []),
        *turned,
        conversion,
        ("to-linalg", []),
        (None, ["my-linalg"]),
        *((n, []) for n in after),
    ]


def test_a_custom_op_compiles_and_runs(
    own: Path, tmp_path: Path, told: Callable[..., tuple[int, str]]
) -> None:
    model = program(tmp_path, "my.twice", "relu")
    code, said = told("run", model, "--input", "2x3xf32=1 2 3 -4 5 6", "--rules", own)
    assert code == 0, said
    assert "[[ 2.  4.  6.]\n [ 0. 10. 12.]]" in said
    assert "3 applications of 3 rules" in said
    # What applied nowhere is told, at its place.
    fusion = own / "my-twice-thrice-fuse.yaml"
    assert f"{fusion}:1:7: warning[not-applied]: my-twice-thrice-fuse applied nowhere" in said
    code, said = told(
        "compile", program(tmp_path, "my.half", "my.twice"), "-r", own, "-o", tmp_path / "m"
    )
    assert code == 0, said
    assert said.count("warning[not-applied]") == 2


@pytest.mark.slow
def test_bench_where_stock_cannot_compile(
    own: Path, tmp_path: Path, told: Callable[..., tuple[int, str]]
) -> None:
    model = program(tmp_path, "my.twice", "relu")
    code, said = told("bench", model, "-p", "cpu", "--rules", own, "--rounds", 3, "--seconds", 0)
    assert code == 0, said
    assert "warning: stock iree-compile does not compile it: " in said
    assert "warning: cpu does not compile it: " in said
    assert "warning: nothing else compiles: the times of cpu with rules stand alone" in said


def test_rules_without_a_place(tmp_path: Path) -> None:
    line = Pipeline.load("cpu-fast")
    with pytest.raises(MlirulesError, match="stands in the pipeline already"):
        with_rules(line, ["torch/to-linalg/elementwise"], Target.parse("cpu"))
    types = "targets: [vulkan]\ntypes: {x: vtensor<M x T>, y: vtensor<M x T>}\n"
    other = rule(
        tmp_path, "my-gpu", "fusion", types + "match: [y = torch.aten.relu(x)]\nrewrite: [y = x]\n"
    )
    with pytest.raises(
        MlirulesError, match=r"my-gpu.yaml:1:7: .* my-gpu is for vulkan, the program"
    ):
        with_rules(line, [str(other)], Target.parse("cpu"))
    twin = rule(
        tmp_path,
        "torch-relu-to-linalg",
        "fusion",
        types + "match: [y = torch.aten.relu(x)]\nrewrite: [y = x]\n",
    )
    with pytest.raises(MlirulesError, match="has the name of a rule of the pipeline"):
        with_rules(line, [str(twin)], Target.parse("cpu"))


def test_bench_of_pipelines_against_each_other(
    tmp_path: Path, told: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "pipeline: mine\nsummary: As cpu, and a flag.\nextends: cpu\nflags: [--iree-opt-level=O1]\n"
    )
    model = program(tmp_path, "relu")
    few = ["--rounds", 3, "--seconds", 0, "--json"]
    code, said = told("bench", model, "-p", "cpu", "-p", tmp_path / "mine.yaml", *few)
    assert code == 0, said
    report, _ = json.JSONDecoder().raw_decode(said)
    assert report["pipeline"] == "mine"
    assert [row["name"] for row in report["timings"]] == ["stock", "cpu", "mine"]
