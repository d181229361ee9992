"""Tuning specs in MLIR: faults found, read back into rules, linked, held against a model."""

import json
import mmap
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mlirules.cli import build
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning_specs import overlap as overlap_module
from mlirules.drivers.tuning_specs.check import Source, check_spec, load_source
from mlirules.drivers.tuning_specs.compile import configure
from mlirules.drivers.tuning_specs.examples import example_tests
from mlirules.drivers.tuning_specs.link import link, linked_text
from mlirules.drivers.tuning_specs.overlap import overlaps, relation
from mlirules.drivers.tuning_specs.reader import read_spec
from mlirules.language.config.op import ConfigRule
from mlirules.language.config.write import write_config
from mlirules.language.config_loader import load_config
from mlirules.language.faults import MlirulesError

HERE = Path(__file__).parent
FAULTY = sorted((HERE / "faulty_specs").glob("*.mlir"))
OLDER = HERE / "specs" / "products-and-attention.mlir"
CPU, GFX942 = Target.parse("cpu"), Target.parse("hip:gfx942")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(build(), [str(a) for a in arguments])


def test_all_classes_of_faults_are_there() -> None:
    assert [file.name[:2] for file in FAULTY] == [f"{n:02}" for n in range(1, 18)]


@pytest.mark.parametrize("file", FAULTY, ids=lambda p: p.stem)
def test_faulty_specs_are_refused_where_they_are_wrong(file: Path) -> None:
    found = re.match(r"// EXPECT: (?:for (\S+), )?(\d+):(\d+) ([\w-]+): (.*)", file.read_text())
    assert found is not None
    fault = check_spec(str(file), target=found[1]).errors[0]
    place = (str(fault.span.line), str(fault.span.column), fault.code, fault.message)
    assert place == found.groups()[1:]
    assert fault.span.source_line


def test_check_command_exits_with_two_and_says_where() -> None:
    done = run("spec", "check", FAULTY[4], "--json")
    assert done.exit_code == 2
    (fault,) = json.loads(done.stdout)["faults"]
    assert (fault["line"], fault["code"]) == (16, "set-key")
    assert "vector_common_parallel" in fault["suggestion"]


def shipped() -> str:
    """The tuning spec for gfx942 that the compiler carries inside its library."""
    library = compiler.tool_path("libIREECompiler.so")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = re.search(rb"module @iree_default_tuning_spec_gfx942\b", data)
        assert found is not None
        start, end = data.rfind(b"\0", 0, found.start()) + 1, data.find(b"\0", found.start())
        return data[start:end].decode()


def sources() -> dict[str, str]:
    return {"shipped": shipped(), "older": OLDER.read_text()}


@pytest.mark.parametrize("name", ["shipped", "older"])
def test_specs_read_back_as_rules_that_mean_the_same(name: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.mlir"
    spec.write_text(sources()[name])
    done = run("spec", "import", spec, "-t", "hip:gfx942", "-o", tmp_path / "rules", "--json")
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)["written"]
    entries = read_spec(spec.read_text(), "spec").entries
    assert len(written) == len(entries) > 0
    rules = load_source(str(tmp_path / "rules"), target="hip:gfx942").rules
    text = linked_text(link([Source("", sorted(rules, key=lambda r: r.name))]), "hip:gfx942")
    (tmp_path / "again.mlir").write_text(text)
    again = load_source(str(tmp_path / "again.mlir"), target="hip:gfx942").rules
    first = load_source(str(spec), target="hip:gfx942").rules
    for rule in first:
        assert [relation(rule, other) for other in again].count("same") == 1
    # The attributes, compared by the compiler and not as text.
    values = {e.rule: e for e in read_spec(text, "again").entries}
    for rule, entry in zip(first, entries, strict=True):
        back = values[rule.name]
        for key in ("config_value", "decomposition_value"):
            one, other = getattr(entry, key), getattr(back, key)
            assert str(one) == str(other), key


def test_imported_rules_hit_what_they_are_for(tmp_path: Path) -> None:
    spec = tmp_path / "spec.mlir"
    spec.write_text(shipped())
    done = run("spec", "check", spec, "-t", "hip:gfx942", "--prove")
    assert done.exit_code == 0, done.output
    assert "2 entries in 1 sources, 0 errors, 0 warnings, 2 proven" in done.stdout


def rule(name: str, tile: int = 32, **dims: Any) -> ConfigRule:
    data: dict[str, Any] = {
        "rule": name,
        "kind": "config",
        "summary": "A rule of a test.",
        "reason": "A test needs it.",
        "targets": ["cpu"],
        "match": {
            "op": "contraction",
            "compute": "c[m, n] += a[m, k] * b[k, n]",
            "types": {"a": "f32", "b": "f32", "c": "f32"},
            **({"dims": dims} if dims else {}),
        },
        "set": {
            "pipeline": "DoubleTilingExpert",
            "tiles": {
                "distribution": {"m": tile, "n": tile},
                "vector_common_parallel": {"m": 4, "n": 16},
                "vector_reduction": {"k": 8},
            },
        },
    }
    data["tests"] = example_tests(data)
    return load_config(f"{name}.yaml", json.dumps(data))


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ({"m": 64}, {"m": 64}, "same"),
        ({"m": 64}, {"m": 128}, None),
        ({"m": {"multiple_of": 32}}, {"m": 64}, "covers"),
        ({"m": {"min": 8, "max": 100}}, {"m": {"min": 50, "max": 200}}, "overlaps"),
        ({"m": {"min": 8, "max": 50}}, {"m": {"min": 51}}, None),
        ({"m": {"multiple_of": 32, "max": 64}}, {"m": {"multiple_of": 48}}, None),
        ({"m": 64}, {}, "covered"),
    ],
)
def test_relations_follow_from_sizes(one: Any, two: Any, expected: str | None) -> None:
    assert relation(rule("one", **one), rule("two", **two)) == expected


def test_names_do_not_matter_for_overlap() -> None:
    text = json.dumps(rule("one", m=64).doc.model_dump(exclude_defaults=True))
    renamed = re.sub(r'"compute": "[^"]*"', '"compute": "z[p, q] += x[p, r] * y[r, q]"', text)
    swaps = {"a": "x", "b": "y", "c": "z", "m": "p", "n": "q", "k": "r", "dims.m": "dims.p"}
    for old, new in swaps.items():
        renamed = renamed.replace(f'"{old}"', f'"{new}"')
    other = load_config("two.yaml", renamed.replace('"one"', '"two"'))
    assert other.loops == ("p", "q", "r")
    assert relation(rule("one", m=64), other) == "same"


def test_linking_asks_which_wins_and_then_says_so() -> None:
    wide = Source("wide", [rule("wide", 32, m={"multiple_of": 32})])
    exact = Source("exact", [rule("exact", 64, m=64)])
    with pytest.raises(MlirulesError, match="wide matches everything that exact matches"):
        link([wide, exact])
    first = link([wide, exact], precedence="first")
    assert [(lost.name, won.name) for lost, won in first.dropped] == [("exact", "wide")]
    for linked in (link([wide, exact], precedence="last"), link([wide, exact], prefer=["exact"])):
        assert [r.name for r in linked.rules] == ["exact", "wide"]
        text = linked_text(linked, "cpu")
        assert "// exact wins over wide where both match: contraction with m=64" in text
        checked = check_spec("linked.mlir", text)
        assert [(f.code, f.severity) for f in checked.faults] == [("overlap", "warning")]
        assert [r.name for r in link([checked]).rules] == ["exact", "wide"]
    report = configure(_program(exact.rules[0]), CPU, link([wide, exact], prefer=["exact"]).rules)
    assert [hit.rule.name for hit in report.hits] == ["exact"]


def test_linking_drops_what_stands_twice() -> None:
    one, two = Source("one", [rule("one", m=64)]), Source("two", [rule("two", m=64)])
    linked = link([one, two])
    assert [r.name for r in linked.rules] == ["one"]
    assert overlaps(linked.rules) == []


def test_link_command_takes_specs_and_rules(tmp_path: Path) -> None:
    (tmp_path / "rule.yaml").write_text(write_config(rule("one", m=64).doc))
    out = tmp_path / "linked.mlir"
    faultless = FAULTY[4].read_text().replace("vector_commmon", "vector_common")
    (tmp_path / "other.mlir").write_text(faultless)
    done = run("spec", "link", tmp_path / "rule.yaml", tmp_path / "other.mlir", "-o", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["entries"] == ["one", "mm"]
    assert check_spec(str(out)).faults == []
    compiler.run_tool("iree-opt", [str(out)])


def _program(config: ConfigRule) -> str:
    return next(t.input for t in config.tests if t.input is not None)


def test_an_entry_that_is_not_understood_is_never_lost(tmp_path: Path) -> None:
    text = FAULTY[4].read_text().replace("vector_commmon", "vector_common")
    odd = "    transform.match.operation_empty %op : !transform.any_op\n    %batch, %m"
    (tmp_path / "odd.mlir").write_text(text.replace("    %batch, %m", odd, 1))
    done = run("spec", "check", tmp_path / "odd.mlir", "--json")
    assert done.exit_code == 0, done.output
    (fault,) = json.loads(done.stdout)["faults"]
    assert (fault["severity"], fault["code"]) == ("warning", "spec-op")
    out = tmp_path / "linked.mlir"
    done = run("spec", "link", tmp_path / "odd.mlir", "-o", out)
    assert done.exit_code == 0, done.output
    assert "transform.match.operation_empty" in out.read_text()
    compiler.run_tool("iree-opt", [str(out)])
    done = run("spec", "import", tmp_path / "odd.mlir", "-o", tmp_path / "rules")
    assert done.exit_code == 2, done.output
    assert "0 rules of" in done.stderr
    assert "1 entries refused" in done.stderr
    assert not list((tmp_path / "rules").iterdir())


def test_coverage_tells_default_entry_and_what_hits_nothing(tmp_path: Path) -> None:
    config = rule("one", m=64)
    (tmp_path / "model.mlir").write_text(_program(config))
    (tmp_path / "rules").mkdir()
    for made in (config, rule("never", m=65)):
        (tmp_path / "rules" / f"{made.name}.yaml").write_text(write_config(made.doc))
    done = run("spec", "coverage", tmp_path / "model.mlir", tmp_path / "rules", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["hit_nothing"] == ["never"]
    row = next(r for r in told["dispatches"] if r["entry"])
    assert row["entry"] == "one"
    assert "distribution = [32, 32, 0]" in row["configuration"]
    assert row["default"].startswith("#iree_cpu.lowering_config<")
    assert row["default"] != row["configuration"]


def test_hip_names_a_library_op_that_can_never_match() -> None:
    text = OLDER.read_text().replace("iree_linalg_ext.online_attention", "linalg.matmul")
    codes = [f.code for f in check_spec("spec.mlir", text, target="hip:gfx942").errors]
    assert "never-matches" in codes


# ---- other inputs, upgrades, what specs do to models ------------------------------------------

CORPUS = HERE / "specs" / "corpus"
PRODUCT = CORPUS / "02-product-of-exact-sizes.mlir"
PLAIN = """\
func.func @product(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>)
    -> tensor<64x64xf32> {
  %r = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>)
    outs(%c : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
"""


def test_folders_and_bytecode_are_read(tmp_path: Path) -> None:
    module = compiler.parse(PRODUCT.read_text())
    with (tmp_path / "spec.mlirbc").open("wb") as file:
        module.operation.write_bytecode(file)
    (tmp_path / "other.mlir").write_text(PRODUCT.read_text())
    done = run("spec", "check", tmp_path, "-t", "cpu", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["sources"]
    assert [(Path(s["path"]).name, s["entries"]) for s in told] == [
        ("other.mlir", ["m"]),
        ("spec.mlirbc", ["m"]),
    ]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("pdl.pattern : benefit(1) {\n  %o = operation\n  rewrite %o {\n  }\n}", "mlir", ""),
        (
            "pdl.pattern @p : benefit(1) {\n  %o = pdl.operation\n  pdl.rewrite %o {\n"
            "    pdl.erase %o\n  }\n}",
            "no-spec",
            "PDL patterns",
        ),
        (PLAIN, "no-spec", "no named sequence"),
        (
            "// @__kernel_config stands in a comment\n"
            "module attributes { transform.with_named_sequence } {\n"
            "  transform.named_sequence @x(%op: !transform.any_op {transform.readonly}) {\n"
            "    transform.yield\n  }\n}",
            "no-entry",
            "none tries entries",
        ),
    ],
)
def test_what_is_no_spec_is_called_what_it_is(text: str, code: str, message: str) -> None:
    fault = check_spec("file.mlir", text).errors[0]
    assert fault.code == code
    assert message in fault.message


def test_a_placeholder_links_to_nothing_but_is_no_error(tmp_path: Path) -> None:
    (placeholder,) = CORPUS.glob("*placeholder.mlir")
    out = tmp_path / "linked.mlir"
    done = run("spec", "link", placeholder, "-o", out)
    assert done.exit_code == 0, done.output
    assert "changes nothing" in done.stderr
    compiler.run_tool("iree-opt", [str(out)])
    done = run("spec", "link", placeholder, PRODUCT, "-o", out)
    assert done.exit_code == 0, done.output
    assert [r.name for r in check_spec(str(out)).rules] == ["m"]


def test_older_spellings_are_upgraded_and_every_change_is_listed(tmp_path: Path) -> None:
    old = HERE / "specs" / "older" / "product.mlir"
    fault = check_spec(str(old), target="hip:gfx942").errors[0]
    assert "mlirules spec upgrade" in fault.suggestion
    new = tmp_path / "new.mlir"
    done = run("spec", "upgrade", old, "-o", new, "--json")
    assert done.exit_code == 0, done.output
    changes = json.loads(done.stdout)["changes"]
    assert [(c["old"], c["new"]) for c in changes] == [
        ("MFMA_F16_16x16x16_F32", "MFMA_F32_16x16x16_F16"),
        ("subgroup_m_count = 2 : i64", "subgroup_basis = [[2, 2, 1], [0, 1, 2]]"),
        ("subgroup_n_count = 2 : i64,", ""),
        ("LLVMGPUVectorDistribute", "#iree_gpu.pipeline<VectorDistribute>"),
        ("prefetch_shared_memory = true", "prefetch_num_stages = 2"),
    ]
    lines = old.read_text().split("\n")
    for change in changes:  # where it says, in the old file
        at = change["column"] - 1
        assert lines[change["line"] - 1][at:].startswith(change["old"].rstrip(","))
    assert new.read_text().startswith("// A LLVMGPUVectorDistribute comment")
    assert check_spec(str(new), target="hip:gfx942").errors == []


def test_on_cuda_it_is_said_which_flag_works(tmp_path: Path) -> None:
    (spec,) = CORPUS.glob("*product-cuda.mlir")
    done = run("spec", "check", spec, "-t", "cuda:sm_80")
    assert done.exit_code == 0, done.output
    assert "--iree-codegen-transform-dialect-library=SPEC" in done.stderr
    done = run("spec", "import", spec, "-t", "cuda:sm_80", "-o", tmp_path / "rules")
    assert done.exit_code == 0, done.output
    done = run("generate", tmp_path / "rules", "--to", "tuning-spec", "-o", tmp_path / "made")
    assert done.exit_code == 0, done.output
    (flags,) = (tmp_path / "made").glob("*.flags")
    assert flags.read_text().startswith("--iree-codegen-transform-dialect-library=")
    (made,) = (tmp_path / "made").glob("*.mlir")
    assert "--iree-codegen-tuning-spec-path is ignored" in made.read_text()


def test_a_folder_may_be_the_one_we_are_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "one.yaml").write_text(write_config(rule("one", m=64).doc))
    monkeypatch.chdir(tmp_path / "own")
    done = run("generate", ".", "--to", "tuning-spec", "-o", tmp_path / "made")
    assert done.exit_code == 0, done.output
    assert [f.name for f in sorted((tmp_path / "made").glob("*own*"))]


def test_differences_coverage_and_proof_of_models(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "a.mlir").write_text(PLAIN)
    other = tmp_path / "other.mlir"
    text = PRODUCT.read_text()
    other.write_text(text.replace("distribution = [32, 32, 0]", "distribution = [16, 32, 0]"))
    assert other.read_text() != text
    same = run("spec", "diff", PRODUCT, PRODUCT, models, "-t", "cpu")
    assert same.exit_code == 0, same.output
    done = run("spec", "diff", PRODUCT, other, models, "-t", "cpu", "--json")
    assert done.exit_code == 1, done.output
    ((change,),) = [m["changes"] for m in json.loads(done.stdout)]
    assert any("distribution = [32, 32, 0]" in line for line in change["before"])
    assert any("distribution = [16, 32, 0]" in line for line in change["after"])
    page = tmp_path / "page.html"
    done = run("spec", "coverage", models, PRODUCT, "-t", "cpu", "--html", page)
    assert done.exit_code == 0, done.output
    assert "1 models, 1 configured ops, 1 hit by entries" in done.stdout
    assert "<td>m</td>" in page.read_text()
    done = run("spec", "import", PRODUCT, "-t", "cpu", "-o", tmp_path / "rules", "--prove", models)
    assert done.exit_code == 0, done.output
    assert "1 configured ops, 1 alike" in done.stdout


def test_time_grows_with_the_entries_and_no_faster() -> None:
    """Counted, not timed: pairs of rules that are held against each other."""
    many = [rule(f"r{n}", m=64 * (n + 1), k={"multiple_of": 8}) for n in range(120)]
    compared = list(overlap_module._candidates(many))
    assert compared == []
    assert overlaps([*many, rule("all", m={"multiple_of": 64})])
    twice = [r for r in many for _ in range(2)]
    assert len(overlaps(twice)) == len(many)
