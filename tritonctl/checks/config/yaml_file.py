# SPDX-License-Identifier: Apache-2.0
"""A YAML file read as a tree of nodes with their places; no object is ever made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonctl.checks.places import Source, Span
from tritonctl.checks.small_file import UnreadableError, read_small

if TYPE_CHECKING:
    import yaml

_LONGEST = 18  # digits, of numbers of 64 bits
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class YamlFile:
    """A mapping. Without `root`, `broken` says why it is missing, `span` where."""

    source: Source
    root: yaml.MappingNode | None = None
    broken: str | None = None
    span: Span | None = None

    def node(self, *path: str) -> yaml.Node | None:
        """What stands at a path of keys; the last one counts, as for YAML's loaders."""
        current: yaml.Node | None = self.root
        for key in path:
            named = [value for name, value in entries(current) if name.value == key]
            current = named[-1] if named else None
        return current

    def text(self, *path: str) -> str | None:
        """A scalar as written; None where it is missing or null."""
        import yaml  # slow, and few models have such a file

        node = self.node(*path)
        if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
            return None
        return str(node.value)

    def flag(self, *path: str) -> bool | None:
        """A truth value; None for anything else."""
        return _TRUTH.get((self.text(*path) or "").lower())

    def number(self, *path: str) -> int | None:
        """A whole number, 0 or more; None for anything else."""
        text = self.text(*path) or ""
        fits = text.isascii() and text.isdecimal() and len(text) <= _LONGEST
        return int(text) if fits else None

    def at(self, *path: str) -> tuple[Span, Source]:
        """The place of a value, with the text that it is a place in."""
        return self.place(*path), self.source

    def place(self, *path: str) -> Span:
        """Where a value stands; where it is absent, the nearest thing around it."""
        while path and self.node(*path) is None:
            path = path[:-1]
        node = self.node(*path)
        return span_of(node) if path and node is not None else Span(0, 0)


def entries(node: yaml.Node | None) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys that are scalars, with their values."""
    import yaml

    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(name, yaml.ScalarNode):
            yield name, value


def span_of(node: yaml.Node) -> Span:
    """Where a node stands."""
    return Span(node.start_mark.index, node.end_mark.index)


def read_yaml_file(path: Path, shown: str, largest: int) -> YamlFile:
    """Read a mapping of at most so many bytes; what stops it is in the result."""
    empty = Source(shown, "")
    try:
        source = Source(shown, read_small(path, largest).decode("utf-8"))
    except UnreadableError as error:
        return YamlFile(empty, broken=str(error))
    except UnicodeDecodeError:
        return YamlFile(empty, broken="it is not UTF-8")
    return _parsed(source)


def _parsed(source: Source) -> YamlFile:
    import yaml

    try:
        root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        span = Span(mark.index, mark.index + 1) if mark else None
        return YamlFile(source, broken=error.problem or str(error), span=span)
    except yaml.YAMLError as error:  # a character that YAML does not have
        return YamlFile(source, broken=str(error).splitlines()[0])
    except (RecursionError, ValueError) as error:
        return YamlFile(source, broken=str(error) or "it is nested too deep")
    if not isinstance(root, yaml.MappingNode):
        return YamlFile(source, broken="it is not a mapping of keys to values")
    return YamlFile(source, root)
