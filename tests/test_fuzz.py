"""Mutated rule files: whatever stands in one, the answer is a rule or located faults, soon."""

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlirules.drivers.iree.compiler import op_oracle
from mlirules.drivers.iree.target_facts import facts
from mlirules.drivers.quality.check import check_rule
from mlirules.language.config.op import ConfigRule
from mlirules.language.config_loader import config_of
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import kind_of, rules_of
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Rule
from mlirules.language.rulefiles import LIBRARY, holds_config

CORPUS = Path(__file__).parent / "malformed"
SECONDS = 10.0  # for one file, on a slow and busy machine; most take milliseconds

# Valid rules, small enough that most mutations hit something that matters.
SEEDS: list[str] = [
    path.read_text(encoding="utf-8")
    for path in sorted(LIBRARY.rglob("*.yaml"))
    if path.stat().st_size < 4000 and not holds_config(path)
][:8]
SEEDS += [next((LIBRARY / "configs").glob("*gfx942.yaml")).read_text(encoding="utf-8")]
# Files with one fault each are near other paths of the reader.
SEEDS += [
    path.read_bytes().decode("utf-8", errors="replace")
    for path in sorted(CORPUS.glob("*.yaml"))[::12]
    if path.stat().st_size < 6000
]
TOKENS = sorted({token for seed in SEEDS for token in re.findall(r"\w+|[^\w\s]+|\s+", seed)})
HOSTILE = [
    "...",
    "_",
    "none",
    "True",
    "*a",
    "&a",
    "<<",
    "!!python/object:os.system",
    "%",
    "$",
    "$(",
    "|",
    ">",
    "|9",
    "? ",
    "- ",
    ": ",
    "---",
    "\t",
    "\u2028",
    "\ufeff",
    "\x00",
    "\U0001f600",
    "é",
    "9" * 400,
    "1e999",
    "-0x" + "f" * 300,
    ".inf",
    "0o7",
    "1:2:3",
    "no",
    "2001-01-01",
    "=",
    "**",
    "[" * 200,
    "{" * 200,
    "(" * 200,
    "- " * 60,
    "not " * 100,
    "tuple<" * 300,
    "tensor<999999x",
    "\\",
    '"',
    "'",
    "`",
    "@",
    "#",
    "^bb0(",
    "%0 =",
    "func.func @f() {",
    "{{",
    "[[",
    "CHECK-NOT:",
]


def _load(path: Path) -> Rule | ConfigRule:
    source = load_yaml(path)
    if kind_of(source) == "config":
        return config_of(source, facts=facts)
    return rules_of(source, ops=op_oracle)[0]  # a file may hold a family of them


def only_faults(text: str | bytes, path: Path) -> Rule | ConfigRule | MlirulesError:
    """Load and check; anything but a rule or located faults is a failure of the caller's test."""
    started = time.perf_counter()
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    outcome: Rule | ConfigRule | MlirulesError
    try:
        outcome = _load(path)
    except MlirulesError as error:
        outcome = error
    faults = check_rule(path)
    if isinstance(outcome, MlirulesError):
        assert outcome.faults
        assert faults
    for fault in faults:
        assert fault.message
        assert fault.span.path == str(path)
        assert fault.render().startswith(f"{path}:")
        if fault.span.line:
            assert fault.span.column >= 1
            assert len(fault.render()) < 6000
    assert time.perf_counter() - started < SECONDS
    return outcome


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the files stand: reading and checking them must leave nothing else behind."""
    path = tmp_path_factory.mktemp("fuzz")
    (path / "other.txt").write_text("untouched")
    before = sorted(Path.cwd().iterdir())
    yield path
    assert sorted(p.name for p in path.iterdir()) == ["other.txt", "rule.yaml"]
    assert (path / "other.txt").read_text() == "untouched"
    assert sorted(Path.cwd().iterdir()) == before


def _lines(random_: random.Random, text: str) -> str:
    lines = text.split("\n")
    i, j = random_.randrange(len(lines)), random_.randrange(len(lines))
    match random_.randrange(6):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case 3:
            lines[i] = " " * random_.randrange(9) + lines[i].lstrip()
        case 4:
            lines[i] = lines[i].rstrip() + " " + lines[j].strip()
        case _:
            lines = lines[: i + 1]
    return "\n".join(lines)


def _tokens(random_: random.Random, text: str) -> str:
    parts = re.split(r"(\w+|[^\w\s]+)", text)
    i = random_.randrange(len(parts))
    match random_.randrange(4):
        case 0:
            parts[i] = random_.choice(TOKENS)
        case 1:
            parts[i] = random_.choice(HOSTILE)
        case 2:
            parts[i] += random_.choice(HOSTILE)
        case _:
            parts[i] = ""
    return "".join(parts)


def _characters(random_: random.Random, text: str) -> str:
    at = random_.randrange(len(text) + 1)
    match random_.randrange(4):
        case 0:
            return text[:at] + chr(random_.choice([random_.randrange(128), 0x80, 0x2029, 0xFFFE]))
        case 1:
            return text[:at] + text[at + 1 :]
        case 2:
            return text[:at] + chr(random_.randrange(1, 128)) + text[at + 1 :]
        case _:
            return text[:at] + chr(random_.randrange(32, 0xD800)) + text[at:]


MUTATIONS: list[Callable[[random.Random, str], str]] = [_lines, _tokens, _characters]
FAST = settings(
    deadline=None,  # every file has its own limit, without hypothesis' bookkeeping in it
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
    derandomize=True,
)


@settings(FAST, max_examples=400)
@given(st.sampled_from(SEEDS), st.randoms(use_true_random=False), st.integers(1, 4))
def test_mutated_rules(folder: Path, seed: str, random_: random.Random, rounds: int) -> None:
    text = seed
    for _ in range(rounds):
        text = random_.choice(MUTATIONS)(random_, text) or "-"
    only_faults(text, folder / "rule.yaml")


@settings(FAST, max_examples=300)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=5))
def test_flipped_bytes(folder: Path, seed: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray(seed.encode("utf-8", "surrogatepass"))
    for at, value in flips:
        data[at % len(data)] = value
    only_faults(bytes(data), folder / "rule.yaml")


@settings(FAST, max_examples=200)
@given(st.sampled_from(["match", "where", "rewrite", "types", "let"]), st.data())
def test_random_notation(folder: Path, section: str, data: st.DataObject) -> None:
    words = data.draw(
        st.lists(st.sampled_from(TOKENS + HOSTILE) | st.text(max_size=8), max_size=30)
    )
    text = "".join(words).replace("'", "''").replace("\n", " ")
    item = f"x: '{text}'" if section in ("types", "let") else f"- '{text}'"
    only_faults(f"rule: x\n{section}:\n  {item}\n", folder / "rule.yaml")


@settings(FAST, max_examples=100)
@given(st.text(max_size=300))
def test_random_text(folder: Path, text: str) -> None:
    only_faults(text, folder / "rule.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        "{a: " * 30_000,
        "- " * 60_000,
        "a: " * 30_000,
        "? " * 60_000,
        "a:\n" + "".join(" " * n + "a:\n" for n in range(1, 600)),
        "\n" * 120_000,
        "#" * 120_000,
        "'" * 120_001,
        '"' + "\\n" * 60_000,
        "rule: " + "a" * 230_000,
        "rule: |\n" + "  x\n" * 25_000,
        "rule: " + "x \n  " * 20_000,
        "match:\n" + "  - c = a.b(x)\n" * 4_000,
        "let:\n" + "".join(f"  n{i}: n{i - 1} + 1\n" for i in range(1, 7_000)),
        "types:\n" + "".join(f"  n{i}: vtensor\n" for i in range(4_000)),
        "".join(f"n{i}: x\n" for i in range(4_000)),
        "match:\n  - c = " + "torch.aten.mmm(" * 50 + "a" + ")" * 50 + "\n",
        "rewrite:\n  - body: |\n" + "      torch.aten.mmm %qqq\n" * 900,
        "where:\n  - " + "a + " * 990 + "a\n",
        "where:\n  - " + "(" * 1900 + ")" * 1900,
        "where:\n  - " + "a[" * 1900,
        "where:\n  - " + "a if b else " * 300,
        "where:\n  - " + "not " * 900,
        "where:\n  - " + "- " * 1900 + "1",
        "types:\n  a: " + "list<" * 780,
        "tests:\n  - name: deep\n    input: |\n      " + "tuple<" * 20_000,
        "tests:\n  - name: deep\n    input: |\n      " + "func.func @f() {" * 7_000,
        "tests:\n  - name: deep\n    input: |\n      #a = " + "[" * 60_000,
        "tests:\n  - name: deep\n    input: |\n      #a = affine_map<() -> (" + "-" * 9_000,
        "tests:\n  - name: deep\n    input: |\n      #a = affine_map<(i) -> (" + "i+" * 9_000,
        "tests:\n  - name: deep\n    input: |\n      !a0 = f32\n"
        + "".join(f"      !a{i} = tuple<!a{i - 1}, !a{i - 1}>\n" for i in range(1, 60))
        + "      func.func @f(%a: !a59) { return %a : !a58 }\n",
        "tests:\n  - name: deep\n    check: |\n      CHECK: {{" + "(" * 3_000 + "}}\n",
        "tests:\n  - name: deep\n    check: |\n" + "      CHECK: [[X]]{{(a*)*b}}\n" * 4_000,
        "&a [" + "*a," * 30_000,
        "\ud800",
        "%TAG ! tag:x,2000:\n--- !a\n",
        "a: " + "9" * 120_000,
        "a: 1" + ":59" * 30_000,
    ],
    ids=lambda text: repr(text[:24]) + str(len(text)),
)
def test_hostile_sizes(folder: Path, text: str) -> None:
    outcome = only_faults(text, folder / "rule.yaml")
    assert isinstance(outcome, MlirulesError)
