# SPDX-License-Identifier: Apache-2.0
"""Writes settings into tritonctl.yaml by the smallest edit of its text: comments and order stay.

PyYAML knows where every value begins and ends, which is enough to replace or add one. The edited
text is parsed again and must mean exactly what was intended. Where YAML makes that hard (anchors,
merge keys) the edit is refused with the lines to write by hand.
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

Place = tuple[str | int, ...]
_WIDTH = 100
_INDENT = 2


def edited(text: str, section: Sequence[str], overlay: Mapping[str, Any], *, file: str) -> str:
    """The YAML `text` with `overlay` merged into the mapping at `section`.

    Raises ConfigurationError, naming `file`, where the edit would change more.
    """
    before = yaml.safe_load(text)
    wanted: dict[str, Any] = dict(overlay)
    for key in reversed(section):
        wanted = {key: wanted}
    after = text
    try:
        for place, value in _leaves(before, wanted, ()):
            after = _with(after, place, value)
        done = yaml.safe_load(after) == deep_merge(before, wanted)
    except (yaml.YAMLError, _TooHardError):
        done = False
    if not done:
        raise ConfigurationError(
            f"{file} cannot be edited without changing more than these settings (does it have "
            "anchors or merge keys?)",
            remedy="write this into it by hand:\n" + yaml.safe_dump(wanted, sort_keys=False),
        )
    return after


def difference(before: str, after: str, name: str) -> str:
    """A unified diff."""
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


def read_exactly(file: Path) -> str:
    """The text of a file with its own line ends."""
    with file.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def write_exactly(file: Path, text: str) -> None:
    """Replace a file, or the target of a link, and keep line ends and permissions."""
    real = file.resolve()
    mode = real.stat().st_mode
    write_atomically(real, text)
    real.chmod(mode)


class _TooHardError(Exception):
    """An edit that this module cannot make."""


def _leaves(old: Any, new: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """The smallest values that differ; lists of equal length are compared item by item."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key, value in new.items():
            if key not in old:
                yield (*place, key), value
            else:
                yield from _leaves(old[key], value, (*place, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            mappings = isinstance(before, Mapping) and isinstance(after, Mapping)
            if mappings and set(before) - set(after):
                yield (*place, index), after  # a key is missing: replace, do not merge
            else:
                yield from _leaves(before, after, (*place, index))
    elif old != new:
        yield place, new


def _with(text: str, place: Place, value: Any) -> str:
    """The text with one value replaced or added."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(place):
        child = _child(node, key)
        if child is None:
            rest = value
            for inner in reversed(place[depth + 1 :]):
                rest = {inner: rest}
            return _added(text, node, str(key), rest)
        node = child
    if node is None:
        raise _TooHardError
    return _replaced(text, node, value)


def _child(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
        child: yaml.Node = node.value[key]
        return child
    return None


def _replaced(text: str, node: yaml.Node, value: Any) -> str:
    begin, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        raise _TooHardError
    space = " " if begin == end else ""  # `key:` without a value
    return text[:begin] + space + _flow(value) + text[end:]


def _added(text: str, node: yaml.Node | None, key: str, value: Any) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        return _replaced(text, node, {key: value})
    if not isinstance(node, yaml.MappingNode):
        raise _TooHardError
    if node.flow_style or not node.value:
        return _added_to_flow(text, node, key, value)
    indent = " " * node.value[0][0].start_mark.column
    at = text.find("\n", _end(node.value[-1][1]))
    lines = "".join(f"\n{indent}{line}" for line in _block(key, value, len(indent)))
    if at < 0:
        return text + lines + "\n"
    crlf = text[at - 1 : at] == "\r"
    if crlf:
        at, lines = at - 1, lines.replace("\n", "\r\n")
    return text[:at] + lines + text[at:]


def _added_to_flow(text: str, node: yaml.MappingNode, key: str, value: Any) -> str:
    pair = f"{_flow(key)}: {_flow(value)}"
    if not node.value:
        at = node.start_mark.index + 1
        return text[:at] + pair + text[at:]
    at = _end(node.value[-1][1])
    return f"{text[:at]}, {pair}{text[at:]}"


def _end(node: yaml.Node) -> int:
    """Where the text of a node ends; a block's own mark lies after the comments that follow it."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _block(key: str, value: Any, indent: int) -> list[str]:
    """The lines of an entry of a block mapping; one line if it fits."""
    line = f"{_flow(key)}: {_flow(value)}"
    if not isinstance(value, Mapping) or indent + len(line) <= _WIDTH:
        return [line]
    inner = [item for k, v in value.items() for item in _block(k, v, indent + _INDENT)]
    return [f"{_flow(key)}:", *(" " * _INDENT + item for item in inner)]


def _flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


@dataclass(frozen=True)
class ProjectEdit:
    """An edit of a project file that is not written yet."""

    file: Path
    before: str
    after: str

    @property
    def difference(self) -> str:
        """The edit as a unified diff; "" when nothing changes."""
        return difference(self.before, self.after, self.file.name)


def project_edit(
    project: Project, path: Path | None, model: str, profile: str | None, overlay: Mapping[str, Any]
) -> ProjectEdit:
    """An edit that writes a model's settings into its project file, under the profile if given.

    Raises ConfigurationError.
    """
    file = project.root / FILE_NAME if path is None or path.is_dir() else path
    section = ["models", model]
    if profile is not None:
        section = ["profiles", profile, *section]
    before = read_exactly(file)
    return ProjectEdit(file, before, edited(before, section, overlay, file=str(file)))
