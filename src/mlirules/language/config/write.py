"""Config rules as YAML."""

from __future__ import annotations

from typing import Any

import yaml

from mlirules.language.config.model import ConfigDoc, plain


def write_config(doc: ConfigDoc, schema: str = "") -> str:
    """A config rule as YAML that ``configrule.load_config`` reads back to the same model.

    ``schema`` is the path for the editor's modeline; none is written when it is empty.
    """
    head = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return head + yaml.dump(
        plain(doc),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=False,
    )


class _Dumper(yaml.SafeDumper):
    """Blocks for texts of several lines, one line for small mappings and lists."""

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> yaml.MappingNode:
        small = all(isinstance(v, (int, float, str, bool)) for v in mapping.values())
        short = small and not {"rule", "pipeline", "name", "op", "device"} & set(mapping)
        return super().represent_mapping(tag, mapping, flow_style=short or flow_style)

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        small = all(isinstance(v, (int, float, str, bool, type(None))) for v in sequence)
        return super().represent_sequence(tag, sequence, flow_style=small or flow_style)


def _text_node(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text_node)
