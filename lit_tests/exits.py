"""``exits.py N COMMAND...``: run a command, fail unless it exits with N. lit's `not` takes any."""

import subprocess
import sys

wanted, command = int(sys.argv[1]), sys.argv[2:]
code = subprocess.run(command, check=False).returncode
if code != wanted:
    print(f"exited with {code}, not {wanted}: {command}", file=sys.stderr)
sys.exit(code != wanted)
