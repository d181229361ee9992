"""What the pages of the library's names need: Sphinx' roles of docstrings as plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: The lone `::` before a block, which its indent alone marks in Markdown.
_BLOCK = re.compile(r"^[ \t]*::[ \t]*$", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?(?:[\w.]*\.)?(\w+)`")


class Roles(griffe.Extension):
    """:class:`~package.Name` becomes `Name`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """As griffe calls it, for every object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = _BLOCK.sub("", _ROLE.sub(r"`\1`", obj.docstring.value))
