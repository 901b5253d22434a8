# SPDX-License-Identifier: Apache-2.0
"""Write settings into tritonctl.yaml by the smallest text edit, which keeps comments and order.

PyYAML's marks of every value suffice to replace or add one. The edited text is parsed again and
must equal the intended data. For anchors and merge keys the edit is refused, with the lines to
write by hand.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tritonctl.errors import ConfigurationError
from tritonctl.host.files import write_atomically
from tritonctl.project.file import FILE_NAME, deep_merge
from tritonctl.project.schema import Project

YamlPath = tuple[str | int, ...]
_WIDTH = 100
_INDENT = 2


def edit_yaml(text: str, section: Sequence[str], overlay: Mapping[str, Any], *, file: str) -> str:
    """Merge `overlay` into the mapping at `section` of the YAML `text`; return the new text.

    Raises ConfigurationError, naming `file`, if the edit would change anything else.
    """
    old_data = yaml.safe_load(text)
    nested_overlay: dict[str, Any] = dict(overlay)
    for key in reversed(section):
        nested_overlay = {key: nested_overlay}
    new_text = text
    try:
        for path, value in _changed_leaves(old_data, nested_overlay, ()):
            new_text = _set_value(new_text, path, value)
        is_exact = yaml.safe_load(new_text) == deep_merge(old_data, nested_overlay)
    except (yaml.YAMLError, _UnsupportedEditError):
        is_exact = False
    if not is_exact:
        raise ConfigurationError(
            f"{file} cannot be edited without changing more than these settings (does it have "
            "anchors or merge keys?)",
            remedy="add this by hand:\n" + yaml.safe_dump(nested_overlay, sort_keys=False),
        )
    return new_text


def unified_diff(old_text: str, new_text: str, name: str) -> str:
    """Return a unified diff."""
    old, new = (text.splitlines(keepends=True) for text in (old_text, new_text))
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def read_exactly(file: Path) -> str:
    """Read a file's text with its line ends."""
    with file.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def write_exactly(file: Path, text: str) -> None:
    """Replace a file, or a link's target; keep line ends and permissions."""
    real = file.resolve()
    mode = real.stat().st_mode
    write_atomically(real, text)
    real.chmod(mode)


class _UnsupportedEditError(Exception):
    """This module cannot make the edit."""


def _changed_leaves(old: Any, new: Any, path: YamlPath) -> Iterator[tuple[YamlPath, Any]]:
    """Yield the smallest differing values; lists of equal length compare item by item."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key, value in new.items():
            if key not in old:
                yield (*path, key), value
            else:
                yield from _changed_leaves(old[key], value, (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            mappings = isinstance(old_item, Mapping) and isinstance(new_item, Mapping)
            if mappings and set(old_item) - set(new_item):
                yield (*path, index), new_item  # a key is missing: replace, do not merge
            else:
                yield from _changed_leaves(old_item, new_item, (*path, index))
    elif old != new:
        yield path, new


def _set_value(text: str, path: YamlPath, value: Any) -> str:
    """Return the text with one value replaced or added."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(path):
        child = _child(node, key)
        if child is None:
            nested_value = value
            for inner in reversed(path[depth + 1 :]):
                nested_value = {inner: nested_value}
            return _add_entry(text, node, str(key), nested_value)
        node = child
    if node is None:
        raise _UnsupportedEditError
    return _replace_node(text, node, value)


def _child(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
        child: yaml.Node = node.value[key]
        return child
    return None


def _replace_node(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        raise _UnsupportedEditError
    separator = " " if start == end else ""  # `key:` without a value
    return text[:start] + separator + _flow_text(value) + text[end:]


def _add_entry(text: str, node: yaml.Node | None, key: str, value: Any) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return _replace_node(text, node, {key: value})
    if not isinstance(node, yaml.MappingNode):
        raise _UnsupportedEditError
    if node.flow_style or not node.value:
        return _add_flow_entry(text, node, key, value)
    indent = " " * node.value[0][0].start_mark.column
    at = text.find("\n", _end_index(node.value[-1][1]))
    lines = "".join(f"\n{indent}{line}" for line in _block_lines(key, value, len(indent)))
    if at < 0:
        return text + lines + "\n"
    crlf = text[at - 1 : at] == "\r"
    if crlf:
        at, lines = at - 1, lines.replace("\n", "\r\n")
    return text[:at] + lines + text[at:]


def _add_flow_entry(text: str, node: yaml.MappingNode, key: str, value: Any) -> str:
    pair = f"{_flow_text(key)}: {_flow_text(value)}"
    if not node.value:
        at = node.start_mark.index + 1
        return text[:at] + pair + text[at:]
    at = _end_index(node.value[-1][1])
    return f"{text[:at]}, {pair}{text[at:]}"


def _end_index(node: yaml.Node) -> int:
    """Return a node's end index; a block's own mark lies after the comments that follow it."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end_index(last[1] if isinstance(node, yaml.MappingNode) else last)


def _block_lines(key: str, value: Any, indent: int) -> list[str]:
    """Return the lines of a block-mapping entry; one line if it fits."""
    line = f"{_flow_text(key)}: {_flow_text(value)}"
    if not isinstance(value, Mapping) or indent + len(line) <= _WIDTH:
        return [line]
    inner = [item for k, v in value.items() for item in _block_lines(k, v, indent + _INDENT)]
    return [f"{_flow_text(key)}:", *(" " * _INDENT + item for item in inner)]


def _flow_text(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


@dataclass(frozen=True)
class ProjectEdit:
    """An unwritten edit of a project file."""

    file: Path
    old_text: str
    new_text: str

    @property
    def difference(self) -> str:
        """The edit as a unified diff; "" without changes."""
        return unified_diff(self.old_text, self.new_text, self.file.name)


def create_project_edit(
    project: Project, path: Path | None, model: str, profile: str | None, overlay: Mapping[str, Any]
) -> ProjectEdit:
    """Create the edit that writes a model's settings into its project file or profile.

    Raises ConfigurationError.
    """
    file = project.root / FILE_NAME if path is None or path.is_dir() else path
    section = ["models", model]
    if profile is not None:
        section = ["profiles", profile, *section]
    old_text = read_exactly(file)
    return ProjectEdit(file, old_text, edit_yaml(old_text, section, overlay, file=str(file)))
