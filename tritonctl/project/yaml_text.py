# SPDX-License-Identifier: Apache-2.0
"""Writes readable YAML: keys in order, multi-line texts as blocks, no anchors."""

from __future__ import annotations

from typing import Any

import yaml


def yaml_text(data: Any, *, flat_leaves: bool = False) -> str:
    """Return data as a YAML document; `flat_leaves` puts collections of scalars on one line."""
    flow = None if flat_leaves else False
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        width=100,
        allow_unicode=True,
        default_flow_style=flow,
    )


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
