"""A decoder of a billion parameters: imported, compiled and run with its weights outside.

    python benchmarks/big_decoder.py [--small] [--folder FOLDER] [--json FILE]

Each step (`mlirules import --externalize`, `compile`, `run`) is a process of its own, reported with
its seconds and its peak memory. Needs PyTorch and transformers, 5 GB of disk and 6 of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES = {
    # 1.1 billion parameters, the shape of TinyLlama.
    "big": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "small": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


@dataclass(frozen=True)
class Step:
    """What a step took: seconds and, at its peak, MiB; ``private_mib`` leaves out mapped files."""

    name: str
    seconds: float
    peak_mib: float
    private_mib: float


def step(name: str, arguments: list[str]) -> Step:
    """Run ``mlirules`` in a process and watch its memory. Exits when it fails."""
    started, private = time.perf_counter(), 0
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "mlirules", *arguments], dict(os.environ)
    )
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        private = max(private, _private_kib(pid))
        time.sleep(0.05)
    if status:
        raise SystemExit(f"mlirules {' '.join(arguments)} failed with {status}")
    seconds = time.perf_counter() - started
    made = Step(name, round(seconds, 1), round(usage.ru_maxrss / 1024), round(private / 1024))
    print(made, file=sys.stderr)
    return made


def _private_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # ended meanwhile
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def measure(folder: Path, size: str, tokens: int) -> dict[str, object]:
    """Import, compile and run the decoder in ``folder``; sizes in bytes."""
    program, weights = folder / "decoder.mlirbc", folder / "decoder.safetensors"
    binary, golden = folder / "decoder.vmfb", folder / "decoder.npz"
    settings = [f"--arg={key}={value}" for key, value in SIZES[size].items()]
    made = [
        step(
            "import",
            [
                "import",
                "transformers:LlamaForCausalLM",
                *settings,
                f"--input=1x{tokens}xsi64",
                f"--output={program}",
                f"--externalize={weights}",
                f"--golden={golden}",
            ],
        ),
        step("compile", ["compile", str(program), f"--parameters={weights}", f"--output={binary}"]),
        step(
            "run",
            [
                "run",
                str(binary),
                f"--parameters={weights}",
                f"--golden={golden}",
                "--rtol=1e-3",
                "--atol=1e-3",
            ],
        ),
    ]
    return {
        "size": size,
        "weights": weights.stat().st_size,
        "program": program.stat().st_size,
        "vmfb": binary.stat().st_size,
        "import_peak_over_weights": round(made[0].peak_mib * 2**20 / weights.stat().st_size, 2),
        "steps": [asdict(one) for one in made],
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a small decoder of the same kind")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="big-decoder-") as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(folder, "small" if asked.small else "big", asked.tokens)
    text = json.dumps(found, indent=1)
    if asked.json:
        asked.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
