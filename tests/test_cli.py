"""The command line as a process sees it: help, reports, exit codes, no traceback."""

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import served
from mlirules.drivers.iree import npz
from mlirules.support import package

ROOT = Path(__file__).resolve().parent.parent
HELLO = ROOT / "examples" / "hello_nn_world.mlir"
COMMANDS = [
    "apply",
    "bench",
    "bisect",
    "check",
    "compile",
    "demo",
    "diff",
    "discover",
    "docs",
    "explain",
    "generate",
    "import",
    "lsp",
    "new",
    "profile",
    "prove",
    "run",
    "spec check",
    "spec coverage",
    "spec import",
    "spec link",
    "test",
    "tune",
    "verify",
    "version",
]


def mlirules(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the command line in a process of its own."""
    return subprocess.run(
        [*served.command(), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = mlirules(*command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert f"Example: mlirules {command}" in done.stdout


@pytest.mark.parametrize("arguments", [["version"], ["apply", "none.mlir"], ["aply"]])
def test_what_is_served_is_what_a_process_says(arguments: list[str]) -> None:
    """Most tests call a server that has loaded the command line (tests/served.py)."""
    alone = [sys.executable, "-m", "mlirules", *arguments]
    ran = subprocess.run(
        alone, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    told = mlirules(*arguments)
    assert served.command() != alone[:3]
    assert (told.returncode, told.stdout, told.stderr) == (ran.returncode, ran.stdout, ran.stderr)


def test_help_lists_every_command() -> None:
    done = mlirules("--help")
    assert all(f" {command.split()[0]} " in done.stdout for command in COMMANDS)


def test_help_loads_no_compiler() -> None:
    program = (
        "import sys\nfrom mlirules.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith('iree')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_version_tells_the_compiler() -> None:
    done = mlirules("version", "--json")
    assert done.returncode == 0
    facts = json.loads(done.stdout)
    assert facts["iree-base-compiler"] == facts["iree-base-runtime"] == "3.13.0"
    assert "local-task://" in facts["devices"]
    short = mlirules("--version")
    assert (short.returncode, short.stdout) == (0, f"mlirules {facts['mlirules']}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["apply"], 2, "Missing argument"),
        (["nonsense"], 2, "No such command"),
        (["apply", "no-such-file.mlir"], 2, "no-such-file.mlir: error[file]"),
        (["check", "no/such/rules"], 2, "error[no-rules]"),
        (["test", "torch/to-linalg", "--devices", "gpu"], 2, "unknown device 'gpu'"),
        (["run", str(HELLO), "-t", "cpux"], 2, "unknown target 'cpux'"),
        (["import", "nothing.py:Net", "-o", "x.mlir"], 2, "no such file"),
        (["docs"], 2, "say where to write"),
    ],
)
def test_wrong_input_is_2_without_a_traceback(arguments: list[str], code: int, said: str) -> None:
    done = mlirules(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_faults_as_json_are_on_stdout() -> None:
    done = mlirules("apply", "no-such-file.mlir", "--json")
    assert done.returncode == 2
    (fault,) = json.loads(done.stdout)["faults"]
    assert fault["code"] == "file"
    assert done.stderr == ""


def test_a_bug_is_one_line_unless_debug_asks_for_more(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom mlirules import cli\nfrom mlirules.drivers.iree import runtime\n"
        "def broken(): raise KeyError('something')\n"
        "runtime.devices = broken\ncli.main(sys.argv[1:])"
    )

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    plain, debug = run("version"), run("--debug", "version")
    assert plain.returncode == debug.returncode == 70
    assert "internal error: KeyError" in plain.stderr
    assert "report" in plain.stderr
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


def test_no_colours_where_there_is_no_terminal() -> None:
    done = mlirules("apply", HELLO, "--diff", "--stats")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    done = mlirules("apply", HELLO, "-o", tmp_path / "none" / "out.mlir")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_new_check_test_round(tmp_path: Path) -> None:
    for kind in ("conversion", "fusion", "kernel", "config"):
        assert mlirules("new", kind, f"my-{kind}", "-o", tmp_path).returncode == 0
    checked = mlirules("check", tmp_path, "--json", "--trust-native")
    assert json.loads(checked.stdout) == {"files": 4, "faults": []}
    tested = mlirules("test", tmp_path, "--json", "--trust-native")
    assert tested.returncode == 0, tested.stdout
    assert all(result["passed"] for result in json.loads(tested.stdout))


def test_a_failing_inline_test_is_1(tmp_path: Path) -> None:
    assert mlirules("new", "fusion", "my-relu", "-o", tmp_path).returncode == 0
    path = tmp_path / "my-relu.yaml"
    path.write_text(path.read_text().replace("applied: 1", "applied: 2"))
    done = mlirules("test", path)
    assert done.returncode == 1
    assert "FAIL my-relu: two relus become one" in done.stdout
    assert "applied 1 times, not 2" in done.stdout


def test_a_golden_file_tells_its_types_to_what_is_compiled(tmp_path: Path) -> None:
    """A compiled program does not say what its arguments are."""
    program, golden, binary = (tmp_path / f"net.{end}" for end in ("mlir", "npz", "vmfb"))
    program.write_text(
        "func.func @twice(%x: tensor<3xbf16>) -> tensor<3xbf16> {\n"
        "  %y = arith.addf %x, %x : tensor<3xbf16>\n"
        "  return %y : tensor<3xbf16>\n"
        "}\n"
    )
    x = np.array([1, 2, 3], ml_dtypes.bfloat16)
    npz.write(golden, {"a0": x, "r0": x + x})
    assert mlirules("compile", program, "-o", binary).returncode == 0
    done = mlirules("run", binary, "--golden", golden, "-o", tmp_path / "again.npz")
    assert done.returncode == 0, done.stderr
    assert "rtol 0.016" in done.stderr  # of bf16, not of f32
    (again,) = npz.load(tmp_path / "again.npz", prefix="r")
    assert (again.dtype.name, again.tolist()) == ("bfloat16", [2, 4, 6])
    npz.write(golden, {"a0": x, "r0": x})
    assert mlirules("run", binary, "--golden", golden).returncode == 1


def test_compile_then_run(tmp_path: Path) -> None:
    vmfb = tmp_path / "hello.vmfb"
    done = mlirules("compile", HELLO, "-o", vmfb, "--no-fallback", "--trace", tmp_path / "trace")
    assert done.returncode == 0, done.stderr
    trace = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [entry["number"] for entry in trace] == list(range(1, len(trace) + 1))
    golden = HELLO.with_suffix(".npz")
    report = mlirules("run", vmfb, "--golden", golden, "--json", "-o", tmp_path / "out.npz")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["problems"] == []
    assert mlirules("run", vmfb, "--golden", tmp_path / "out.npz").returncode == 2  # no inputs


def test_compile_passes_flags_on(tmp_path: Path) -> None:
    arguments: list[str | Path] = ["compile", HELLO, "-o", tmp_path / "x.vmfb", "--"]
    assert mlirules(*arguments, "--iree-opt-level=O2").returncode == 0
    wrong = mlirules(*arguments, "--iree-no-such-flag")
    assert wrong.returncode == 2
    assert "--iree-no-such-flag" in wrong.stderr
    second = mlirules("compile", HELLO, HELLO, "-o", tmp_path / "x.vmfb")
    assert second.returncode == 2
    assert "is no flag of iree-compile" in second.stderr
    assert "one program is compiled at a time" in second.stderr


def test_what_does_not_compile_leaves_the_output_as_it_was(tmp_path: Path) -> None:
    """It is compiled beside its place, and takes that when all is well."""
    vmfb = tmp_path / "x.vmfb"
    vmfb.write_bytes(b"before")
    for flag in ("--iree-no-such-flag", "--iree-llvmcpu-target-cpu=no-such-cpu"):
        done = mlirules("compile", HELLO, "-o", vmfb, "--", flag)
        assert done.returncode != 0, done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["x.vmfb"]
        assert vmfb.read_bytes() == b"before"
    done = mlirules("compile", HELLO, "-o", tmp_path / "none" / "x.vmfb")
    assert done.returncode == 2
    assert "x.vmfb: error[file]: cannot be written: No such file or directory" in done.stderr


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        done = mlirules("compile", HELLO, "-o", pipe)
        assert reader.stdout is not None
        data = reader.stdout.read()
    assert done.returncode == 0, done.stderr
    assert f"{len(data)} bytes for cpu" in done.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_generate_tells_what_changed(tmp_path: Path) -> None:
    assert mlirules("new", "conversion", "my-sigmoid", "-o", tmp_path).returncode == 0
    arguments: list[str | Path] = ["generate", tmp_path / "my-sigmoid.yaml"]
    arguments += ["-o", tmp_path / "out", "--json"]
    first, second = (json.loads(mlirules(*arguments).stdout) for _ in range(2))
    assert len(first["written"]) == 2
    assert second["written"] == []
    assert second["unchanged"] == first["written"]
    assert second["mlir_pdll_runs"] == 0
    (pdll,) = (tmp_path / "out").glob("*.pdll")
    assert "generated from my-sigmoid.yaml:1" in pdll.read_text()


def test_docs_are_made_of_the_rules(tmp_path: Path) -> None:
    done = mlirules("docs", "torch/to-linalg/matmul/torch-mm-to-linalg", "-o", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "rules" / "torch-mm-to-linalg.md").read_text()
    assert "c = torch.aten.mm(a, b)" in page
    assert "`T != i1`" in page
    assert mlirules("docs", "--schema").stdout == (tmp_path / "schema" / "rule.json").read_text()


def test_the_shipped_schema_is_the_models() -> None:
    shipped = package.RULES / "schema" / "rule.json"
    assert mlirules("docs", "--schema").stdout == shipped.read_text()


def test_docs_list_the_functions() -> None:
    done = mlirules("docs", "--functions", "--json")
    from mlirules.language.builtins import FUNCTIONS
    from mlirules.language.functions import SIMPLE

    assert len(json.loads(done.stdout)) == len(FUNCTIONS) + len(SIMPLE)


def test_demo_reports() -> None:
    done = mlirules("demo", "--target", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    (run,) = report["runs"]
    assert run["problems"] == []
    assert run["leftovers"] == []
    assert sum(run["applications"].values()) > 100
    assert run["ms"] > 0
    assert run["stock_ms"] > 0


def test_the_shipped_library_has_no_faults() -> None:
    done = mlirules("check", "--strict")
    assert done.returncode == 0, done.stdout


def test_a_piped_table_is_not_cut() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    done = subprocess.run(
        [*served.command(), "docs", "--functions"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    rows = done.stdout.splitlines()
    known = {
        row["function"] for row in json.loads(mlirules("docs", "--functions", "--json").stdout)
    }
    assert len(rows) == len(known) + 1
    assert any("[" in name for name in known)
    assert all(any(row.startswith(name) for row in rows) for name in known)


@pytest.mark.parametrize("words", [["--help"], ["docs", "--functions"]], ids=["help", "docs"])
def test_what_cannot_be_written_is_told(words: list[str]) -> None:
    command = [sys.executable, "-m", "mlirules", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_output_is_no_fault() -> None:
    words = shlex.join([sys.executable, "-m", "mlirules", "version"])
    done = subprocess.run(f"{words} >&-", shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_waits_for_its_threads_and_takes_nothing_apart() -> None:
    """The end of Python would: a thread that lives must not bring it about."""
    program = """
import atexit, sys, threading, time
from mlirules import cli

class Kept:
    def __del__(self):
        print("taken apart", flush=True)

kept = Kept()
atexit.register(print, "told at the end", flush=True)

def work():
    time.sleep(0.3)
    print("worked", flush=True)

threading.Thread(target=work).start()
sys.argv = ["mlirules", "--no-such-option"]
cli.process()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout.splitlines() == ["worked", "told at the end"]
