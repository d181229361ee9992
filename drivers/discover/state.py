"""What a search has worked out, in a file: an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from mlirules.drivers.iree import compiler
from mlirules.language.faults import MlirulesError
from mlirules.support import files, package

#: Seconds between two writes of the file.
OFTEN = 5.0


class State:
    """Costs, proofs and tests by the hash of what they are of; written whole or not at all.

    What was worked out by other code, or another compiler, is not taken up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = hashlib.sha256(f"{package.code()} {compiler.revision()}".encode()).hexdigest()
        self.data: dict[str, dict[str, object]] = {}
        self.recalled = 0
        self._saved = time.monotonic()
        self._changed = False
        if path.is_file():
            try:
                kept = json.loads(path.read_text(encoding="utf-8"))
                if kept["key"] == self.key:
                    self.data = kept["data"]
            except (ValueError, KeyError, TypeError):
                raise MlirulesError.at(
                    str(path),
                    "is no state of a search",
                    code="state",
                    suggestion="give another folder, or remove the file",
                ) from None

    def get(self, kind: str, of: str) -> Any:
        """What is known of something; None where nothing is."""
        found = self.data.get(kind, {}).get(_hash(of))
        self.recalled += found is not None
        return found

    def put(self, kind: str, of: str, found: object) -> None:
        """Keep what was worked out."""
        self.data.setdefault(kind, {})[_hash(of)] = found
        self._changed = True
        if time.monotonic() - self._saved > OFTEN:
            self.save()

    def save(self) -> None:
        """Write the file, if anything changed."""
        if self._changed:
            text = json.dumps({"key": self.key, "data": self.data}, indent=0)
            files.write(self.path, text + "\n")
            self._changed = False
        self._saved = time.monotonic()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
