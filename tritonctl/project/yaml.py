# SPDX-License-Identifier: Apache-2.0
"""Reads YAML with line numbers for error messages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from tritonctl.errors import ConfigurationError

Location = tuple[str | int, ...]
_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`
_PLAIN = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_TEXT = "tag:yaml.org,2002:str"
# libyaml's loader, if PyYAML has it: fourteen times as fast, and it limits the nesting.
_FASTEST: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class YamlSource:
    """A parsed YAML file."""

    path: Path
    data: dict[str, Any]
    lines: dict[Location, int] = field(default_factory=dict)  # from 1

    def line_of(self, location: Location) -> str:
        """Return `file:line` of a location, or of the nearest enclosing one in the file."""
        for length in range(len(location), -1, -1):
            line = self.lines.get(location[:length])
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path)


def read_yaml(path: Path) -> YamlSource:
    """Read a YAML mapping. Raises ConfigurationError with file:line for anything malformed."""
    node = _compose(path, _read_text(path))
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            f"{path}:1: expected a mapping of keys to values",
            remedy="compare it with the example that `tritonctl init` writes",
        )
    source = YamlSource(path, {})
    _check(node, source, {})
    source.data = _value(node, (), source)
    return source


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path} does not exist", remedy="create it with `tritonctl init`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}", remedy="make it a readable UTF-8 file"
        ) from error


def _compose(path: Path, text: str) -> yaml.Node | None:
    with suppress(yaml.YAMLError):  # the Python parser has better messages
        return yaml.compose(text, Loader=_FASTEST)
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        raise ConfigurationError(
            f"{path}{line}: not valid YAML: {reason}",
            remedy="check indentation, quotes and tabs on that line",
        ) from error


def _check(node: yaml.Node, source: YamlSource, checked: dict[int, bool]) -> None:
    """Refuse tags, duplicate keys, and anchors that contain themselves.

    `finished` maps each visited node to whether its check is complete.
    """
    if not checked.setdefault(id(node), False):
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN:
            raise _malformed(node, source, f"tag {node.tag}")
        if isinstance(node, yaml.MappingNode):
            _refuse_duplicates(node, source)
        for child in _children(node):
            if checked.get(id(child)) is False:
                raise _malformed(child, source, "this anchor contains itself")
            _check(child, source, checked)
        checked[id(node)] = True


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _refuse_duplicates(node: yaml.MappingNode, source: YamlSource) -> None:
    first: dict[str, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        key, line = str(_scalar(key_node, source)), key_node.start_mark.line + 1
        if key in first:
            raise ConfigurationError(
                f"{source.path}:{line}: key `{key}` appears twice; the first one is on line "
                f"{first[key]}",
                remedy="keep one of the two",
            )
        first[key] = line


def _value(node: yaml.Node, location: Location, source: YamlSource) -> Any:
    source.lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, location, source)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*location, i), source) for i, item in enumerate(node.value)]
    return _scalar(node, source)


def _mapping(node: yaml.MappingNode, location: Location, source: YamlSource) -> dict[str, Any]:
    try:
        SafeConstructor().flatten_mapping(node)  # `<<: *anchor`
    except yaml.YAMLError as error:
        raise _malformed(node, source, getattr(error, "problem", None) or str(error)) from error
    # Merged keys come first: a key of the mapping itself replaces them.
    pairs = {str(_scalar(key, source)): (key, value) for key, value in node.value}
    result: dict[str, Any] = {}
    for key, (key_node, value_node) in pairs.items():
        source.lines[(*location, key)] = key_node.start_mark.line + 1
        result[key] = _value(value_node, (*location, key), source)
    return result


def _scalar(node: yaml.Node, source: YamlSource) -> Any:
    if node.tag == _TEXT and isinstance(node, yaml.ScalarNode):  # fast path for most scalars
        return node.value
    try:
        return SafeConstructor().construct_object(node, deep=True)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-99-99
        raise _malformed(node, source, str(error)) from error


def _malformed(node: yaml.Node, source: YamlSource, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{source.path}:{node.start_mark.line + 1}: unsupported value: {reason}",
        remedy="use plain strings, numbers, true/false, lists and mappings",
    )
