"""The distribution: what ships, that it works away from the checkout, and that CI runs the README.

The package is assembled over symbolic links; an sdist holds copies of what they point to. So the
wheel that users get is built from the sdist, and it is that one which is looked into.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from mlirules.support import package

ROOT = Path(__file__).resolve().parent.parent
LINKED = package.LINKED


def _sources() -> set[str]:
    """Every file that must ship, by its name inside the wheel."""
    top = ROOT / "src" / "mlirules"
    own = {f"mlirules/{path.name}" for path in top.iterdir() if path.is_file()}
    own |= {
        f"mlirules/{path.relative_to(top).as_posix()}"
        for room in ("api", "commands", "language", "support")
        for path in (top / room).rglob("*")
        if path.suffix in (".py", ".j2")
    }
    linked = {
        f"mlirules/{folder}/{path.relative_to(top / folder).as_posix()}"
        for folder in LINKED
        for path in (top / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }
    return own | linked


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout.

    setuptools writes beside the sources: two workers building in one tree would collide.
    """
    tree = tmp_path_factory.mktemp("tree") / "mlirules"
    unwanted = shutil.ignore_patterns(".git", ".venv", ".*_cache", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=unwanted)
    return tree


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """A folder with what the wheel installs, which a test may change."""
    folder = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def unlinked(tree: Path, tmp_path: Path) -> Path:
    """A clone of the checkout on a system that has no symbolic links."""
    git = shutil.which("git")
    if git is None or not (ROOT / "src" / "mlirules" / "rules").is_symlink():
        pytest.skip("takes git, and a checkout with links")
    clone = tmp_path / "clone"
    kept = ["src", *LINKED, "build_backend", "pyproject.toml", "README.md", "LICENSE"]
    who = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    origin = f"--git-dir={tmp_path / 'origin'}"
    for command in (
        ("init", "-q", "--bare", str(tmp_path / "origin")),
        (origin, f"--work-tree={tree}", "add", *kept),
        (origin, f"--work-tree={tree}", *who, "commit", "-q", "-m", "x"),
        ("clone", "-q", "-c", "core.symlinks=false", str(tmp_path / "origin"), str(clone)),
    ):
        done = subprocess.run(
            [git, *command], cwd=tree, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (clone / "src" / "mlirules" / "rules").read_text(encoding="utf-8") == "../../rules"
    return clone


def _python(where: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    """A run of Python in the folder ``where``, which finds modules in ``path``."""
    environment = {**os.environ, "PYTHONPATH": str(where / path), "MLIRULES_PREBUILT": "no"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(
        command, cwd=where, env=environment, capture_output=True, text=True, check=False
    )


class Compiled:
    """What a compile of a small program by what is installed loaded, kept and said."""

    PROGRAM = """
import json, sys
from mlirules import cli
if "--no-pdll" in sys.argv:
    sys.argv.remove("--no-pdll")
    import sysconfig
    sysconfig.get_paths = lambda: {"purelib": "/none"}
code = None
try:
    cli.main()  # not `process`, which ends Python at once
except SystemExit as ended:
    code = ended.code
from mlirules.generator.emit import pdll
read = [name for name in ("yaml", "pydantic") if name in sys.modules]
print(json.dumps({"code": code, "read": read, "pdll": pdll.runs()}))
"""

    def __init__(self, installed: Path, *options: str) -> None:
        self.cache = installed.parent / "cache"
        program = installed.parent / "compile.py"
        program.write_text(self.PROGRAM, encoding="utf-8")
        model = ROOT / "examples" / "hello_nn_world.mlir"
        self.binary = installed.parent / "x.vmfb"
        arguments = ["compile", str(model), *options, "-o", str(self.binary)]
        done = subprocess.run(
            [sys.executable, "-P", str(program), *arguments],
            env={
                **os.environ,
                "PYTHONPATH": str(installed),
                "MLIRULES_CACHE_DIR": str(self.cache),
                "PYTHONDONTWRITEBYTECODE": "1",
                **({"PATH": ""} if "--no-pdll" in options else {}),
            },
            cwd=installed.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["code"] in (0, None), done.stderr
        #: Which of what reads rule files was loaded.
        self.read: list[str] = said["read"]
        #: How often mlir-pdll ran.
        self.pdll: int = said["pdll"]

    @property
    def kept(self) -> dict[str, int]:
        """How many files of each kind the user's cache holds, but for what is said of CPUs.

        Only a CPU with AVX512-FP16 is asked about here: it is described to the compiler in full.
        """
        found = sorted(self.cache.iterdir()) if self.cache.exists() else []
        folders = [folder for folder in found if folder.name != "cpus"]
        return {folder.name: len(list(folder.iterdir())) for folder in folders}


def test_links_are_relative() -> None:
    for folder in LINKED:
        link = ROOT / "src" / "mlirules" / folder
        if (ROOT / folder).is_dir():  # an unpacked sdist holds copies, and no folder to link to
            assert link.is_symlink()
            assert str(link.readlink()) == f"../../{folder}"


def test_wheel_holds_every_source_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    prebuilt = {name for name in names if name.startswith("mlirules/prebuilt/")}
    assert names - prebuilt == _sources()
    kinds = {name.split("/")[2] for name in prebuilt}
    assert kinds == {"pdl", "pipelines", "rules", "targets"}


@pytest.mark.parametrize(
    "options", [("--pipeline", "cpu"), ("--pipeline", "cpu-fast"), ("--target", "vulkan")]
)
def test_the_first_compile_reads_what_was_built_in(
    installed: Path, options: tuple[str, str]
) -> None:
    first = Compiled(installed, *options)
    # A saturating stage keeps what it says of the program; of rules nothing is.
    settled = {"settled": 1} if "cpu-fast" in options else {}
    assert (first.read, first.pdll, first.kept) == ([], 0, settled)
    assert first.binary.stat().st_size > 0


@pytest.mark.parametrize("pipeline", ["cpu", "cpu-fast", "cuda"])
def test_where_no_mlir_pdll_can_be_installed_what_was_built_in_serves(
    installed: Path, pipeline: str
) -> None:
    target = ["--target", "cuda:sm_80"] if pipeline == "cuda" else ["--pipeline", pipeline]
    first = Compiled(installed, *target, "--no-pdll")
    assert first.pdll == 0
    assert first.binary.stat().st_size > 0


def pack_with(installed: Path, words: bytes) -> Path:
    """The pack that holds these words; of several the first."""
    packs = sorted((installed / "mlirules" / "prebuilt" / "rules").iterdir())
    return next(path for path in packs if words in path.read_bytes())


def damage(file: Path, at: int) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


def test_a_pack_that_is_not_whole_is_told_and_made_anew(installed: Path) -> None:
    # The rules that the pipeline takes; those of the kernels are larger.
    pack = pack_with(installed, b"torch-relu-to-linalg")
    whole = pack.read_bytes()
    damage(pack, 200)  # in its head, which says what there is
    first = Compiled(installed, "--pipeline", "cpu")
    assert f"{pack}: warning[prebuilt]: is not as it was built" in first.stderr
    assert "pip install --force-reinstall mlirules" in first.stderr
    assert first.read == ["yaml", "pydantic"]
    assert first.kept == {"rules": 1}
    # What was made anew is what was built in.
    (made,) = (first.cache / "rules").iterdir()
    assert made.read_bytes() == whole
    assert Compiled(installed, "--pipeline", "cpu").read == []


def test_a_rule_of_a_pack_that_is_not_whole_is_told_and_read_from_its_file(installed: Path) -> None:
    pack = pack_with(installed, b"torch-relu-to-linalg")
    whole = pack.read_bytes()
    damage(pack, whole.index(b'{"plain":{"rule":"torch-relu-to-linalg"') + 100)
    first = Compiled(installed, "--pipeline", "cpu")
    assert f"{pack}: warning[prebuilt]: is not as it was built" in first.stderr
    assert first.read == ["yaml", "pydantic"]
    # One that no program asks for makes no difference.
    pack.write_bytes(whole)
    damage(pack, whole.index(b'{"plain":{"rule":"torch-cumsum-to-linalg"') + 100)
    assert Compiled(installed, "--pipeline", "cpu").read == []


def test_what_was_edited_where_it_is_installed_takes_effect(installed: Path) -> None:
    top = installed / "mlirules"
    rule = next((top / "rules" / "torch" / "to-linalg").rglob("torch-relu-to-linalg.yaml"))
    state, text = rule.stat(), rule.read_text(encoding="utf-8")
    rule.write_text(text.replace("max", "min"), encoding="utf-8")
    # Neither its size nor its time tells.
    os.utime(rule, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert text != rule.read_text(encoding="utf-8")
    before = Compiled(installed, "--pipeline", "cpu")
    assert (before.read, before.kept) == (["yaml", "pydantic"], {"rules": 1})
    assert Compiled(installed, "--pipeline", "cpu").read == []
    # The code that reads rules: then nothing holds that was made by it as it was.
    code = top / "language" / "unify.py"
    code.write_text(code.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    shutil.rmtree(before.cache)
    after = Compiled(installed, "--pipeline", "cpu")
    # A file for each set that the pipeline names.
    assert after.kept == {"pipelines": 1, "rules": 4}
    assert after.stderr == before.stderr


def test_without_the_compiler_the_build_says_so(tree: Path, tmp_path: Path) -> None:
    # A Python with setuptools and nothing else.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    (tmp_path / "site").mkdir()
    # Its dist-info names the commands.
    tool = metadata.distribution("setuptools")
    for name in {Path(file).parts[0] for file in tool.files or ()} - {"..", "__pycache__"}:
        (tmp_path / "site" / name).symlink_to(str(tool.locate_file(name)))
    (tmp_path / "site" / "mlirules_build.py").symlink_to(
        tree / "build_backend" / "mlirules_build.py"
    )
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns("build", "docs"))
    venv.create(tmp_path / "python", with_pip=False)

    def build(wanted: str) -> subprocess.CompletedProcess[str]:
        program = "import mlirules_build, sys; mlirules_build.build_wheel(sys.argv[1])"
        python = str(tmp_path / "python" / "bin" / "python")
        return subprocess.run(
            [python, "-P", "-c", program, str(tmp_path / "dist")],
            env={**environment, "MLIRULES_PREBUILT": wanted},
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = build("require")
    assert refused.returncode != 0
    assert "MLIRULES_PREBUILT=require: error[prebuilt]: not installed here: iree" in refused.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))
    done = build("")
    assert done.returncode == 0, done.stderr
    assert "THE WHEEL IS BUILT WITHOUT COMPILED RULES" in done.stderr
    (made,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        assert not [name for name in archive.namelist() if "/prebuilt/" in name]


def test_a_checkout_without_links_works(unlinked: Path) -> None:
    (rule,) = unlinked.glob("rules/torch/to-linalg/**/torch-relu-to-linalg.yaml")
    checked = _python(unlinked, "-m", "mlirules", "check", str(rule), path="src")
    assert (checked.returncode, checked.stdout) == (0, "1 files, no faults\n"), checked.stderr
    program = (
        "from mlirules.support import package\n"
        "import mlirules.drivers.measure as measure\n"
        "print(measure.__file__, package.SPECS, package.folder('drivers/measure'))\n"
        "print(package.content('drivers/measure', '.py'), package.code())"
    )
    found = _python(unlinked, "-c", program, path="src")
    assert found.returncode == 0, found.stderr
    measure = unlinked / "drivers" / "measure"
    places, hashes = found.stdout.splitlines()
    assert places == f"{measure / '__init__.py'} {unlinked / 'specs'} {measure}"
    assert hashes.split()[0] == package.content("drivers/measure", ".py")
    # What is kept by the code is not kept over a change of it.
    with (measure / "roofline.py").open("a", encoding="utf-8") as file:
        file.write("\n")
    again = _python(unlinked, "-c", program, path="src").stdout.split()
    assert not set(hashes.split()) & set(again)


def test_a_checkout_without_links_builds_all(unlinked: Path, tmp_path: Path) -> None:
    program = "import sys, mlirules_build as b; b.build_wheel(sys.argv[1])"
    done = _python(unlinked, "-c", program, str(tmp_path), path="build_backend")
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == _sources()
    # The checkout is as it was.
    assert (unlinked / "drivers" / "__init__.py").is_file()
    assert (unlinked / "src" / "mlirules" / "drivers").is_file()
    (unlinked / "src" / "mlirules" / "specs").write_text("elsewhere", encoding="utf-8")
    refused = _python(unlinked, "-c", program, str(tmp_path), path="build_backend")
    assert refused.returncode == 1
    assert "src/mlirules/specs:1:1: error[checkout]: stands for a symbolic" in refused.stderr
    assert "git config core.symlinks true && git checkout" in refused.stderr


def test_a_wheel_alone_is_built_with_the_compiler() -> None:
    program = (
        "import json, mlirules_build as build\n"
        "print(json.dumps([build.get_requires_for_build_wheel(),"
        " build.get_requires_for_build_sdist(), build.get_requires_for_build_editable()]))"
    )

    def asked(wanted: str) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "build_backend"),
                "MLIRULES_PREBUILT": wanted,
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return list(json.loads(done.stdout.splitlines()[-1]))

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_wheel, of_sdist, of_editable = asked("")
    assert set(project["dependencies"]) <= set(of_wheel)
    assert not [name for name in (*of_sdist, *of_editable) if name.startswith("iree")]
    assert not [name for name in asked("no")[0] if name.startswith("iree")]


def test_pytorch_finds_the_backend(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/entry_points.txt")]
        text = archive.read(name).decode()
    assert (
        "[torch_dynamo_backends]\nmlirules = mlirules.api.dynamo.backend:mlirules_backend" in text
    )


def test_wheel_holds_rules_templates_and_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "mlirules/py.typed" in names
    assert any(n.startswith("mlirules/rules/") and n.endswith(".yaml") for n in names)
    assert any(n.startswith("mlirules/specs/pipelines/") and n.endswith(".yaml") for n in names)
    assert any(n.startswith("mlirules/generator/templates/") and n.endswith(".j2") for n in names)
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    assert {f"mlirules/specs/demo/bert.{s}" for s in ("mlirbc", "npz")} <= set(names)


def test_sdist_holds_all_that_git_tracks_and_no_links(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert {f"src/{name}" for name in _sources()} <= names
    git = shutil.which("git")
    if git is None or not (ROOT / "src" / "mlirules" / "rules").is_symlink():
        pytest.skip("what belongs to it is asked of git, in a checkout")
    command = [git, "ls-files", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = set(told.stdout.splitlines()) - {f"src/mlirules/{folder}" for folder in LINKED}
    there = {
        f"src/mlirules/{name}" if name.partition("/")[0] in LINKED else name
        for name in tracked
        if (ROOT / name).is_file()
    }
    made = {"PKG-INFO", "setup.cfg"}
    assert {name for name in names if ".egg-info/" not in name} - made == there


def test_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import mlirules, mlirules.cli, sys\n"
        "for name in mlirules.__all__: getattr(mlirules, name)\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if name.partition('.')[0] == 'mlirules' and getattr(module, '__file__', None):\n"
        "        print(module.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert files
    assert [file for file in files if not file.is_relative_to(tmp_path)] == []


def test_ci_runs_the_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    command = script[-1]
    assert command.startswith("python3 -m venv .venv && ")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
