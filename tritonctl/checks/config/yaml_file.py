# SPDX-License-Identifier: Apache-2.0
"""Read a YAML file as a tree of nodes with spans, without constructing objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonctl.checks.small_file import UnreadableError, read_small
from tritonctl.checks.source_span import SourceText, Span

if TYPE_CHECKING:
    import yaml

_MAX_DIGITS = 18  # always fits into 64 bits
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class YamlFile:
    """A YAML file that holds a mapping."""

    source: SourceText
    root: yaml.MappingNode | None = None  # None if the file could not be read
    read_error: str | None = None  # the reason, without `root`
    span: Span | None = None  # of the error, if known

    def node(self, *path: str) -> yaml.Node | None:
        """Return the node at a path of keys; of repeated keys the last counts, as in PyYAML."""
        current: yaml.Node | None = self.root
        for key in path:
            matches = [value for name, value in entries(current) if name.value == key]
            current = matches[-1] if matches else None
        return current

    def text(self, *path: str) -> str | None:
        """Return a scalar as written; None if it is missing or null."""
        import yaml  # slow, and few models have such a file

        node = self.node(*path)
        if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
            return None
        return str(node.value)

    def flag(self, *path: str) -> bool | None:
        """Return a boolean; None for anything else."""
        return _BOOLEANS.get((self.text(*path) or "").lower())

    def number(self, *path: str) -> int | None:
        """Return a whole number of 0 or more; None for anything else."""
        text = self.text(*path) or ""
        fits = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        return int(text) if fits else None

    def value_location(self, *path: str) -> tuple[Span, SourceText]:
        """Return the span of a value and the source it refers to."""
        return self.value_span(*path), self.source

    def value_span(self, *path: str) -> Span:
        """Return the span of a value; if it is missing, of the nearest enclosing value."""
        while path and self.node(*path) is None:
            path = path[:-1]
        node = self.node(*path)
        return node_span(node) if path and node is not None else Span(0, 0)


def entries(node: yaml.Node | None) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Yield the scalar keys of a mapping with their values."""
    import yaml

    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(name, yaml.ScalarNode):
            yield name, value


def node_span(node: yaml.Node) -> Span:
    """Return the span of a node."""
    return Span(node.start_mark.index, node.end_mark.index)


def read_yaml_file(path: Path, display_path: str, largest: int) -> YamlFile:
    """Read a mapping from a file of limited size; an error is part of the result."""
    empty = SourceText(display_path, "")
    try:
        source = SourceText(display_path, read_small(path, largest).decode("utf-8"))
    except UnreadableError as error:
        return YamlFile(empty, read_error=str(error))
    except UnicodeDecodeError:
        return YamlFile(empty, read_error="it is not UTF-8")
    return _parsed(source)


def _parsed(source: SourceText) -> YamlFile:
    import yaml

    try:
        root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        span = Span(mark.index, mark.index + 1) if mark else None
        return YamlFile(source, read_error=error.problem or str(error), span=span)
    except yaml.YAMLError as error:  # a character that YAML does not have
        return YamlFile(source, read_error=str(error).splitlines()[0])
    except (RecursionError, ValueError) as error:
        return YamlFile(source, read_error=str(error) or "it is nested too deep")
    if not isinstance(root, yaml.MappingNode):
        return YamlFile(source, read_error="it is not a mapping of keys to values")
    return YamlFile(source, root)
