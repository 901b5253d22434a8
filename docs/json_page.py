# SPDX-License-Identifier: Apache-2.0
"""docs/reference/json-output.md, made of the types of the documents by `make reference`.

The meaning of a field is the comment after it in the source of its type.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from tritonctl.cli.console.document_name import document_name
from tritonctl.cli.documents.table import DOCUMENTS, STORED_FILES, STORED_NAMES, DocumentForm

_HEAD = """\
<!-- Made by `make reference` from tritonctl/cli/documents/: edits are lost. -->

# JSON output

Every command takes `--json`. Standard output then has JSON and nothing else; progress, notes and
the text of an error go to standard error, and `--quiet` leaves out progress and notes. Exit codes
are [the same](../how-to/troubleshoot.md#exit-codes).

- A document is an object on one line. Most commands print one; "one for each" says which print
  several.
- `schema` is the name and version of the document's form, such as `tritonctl.status/1`; three older
  forms are stored in files: `tritonctl/loadsummary/v1`, `tritonctl/tuning/v1` and
  `tritonctl/capacity/v1`. A version may get further fields: ignore those that you do
  not know. A form that loses a field, or gives it another meaning, is another version.
- A failure is a document, too: [`error`](#error). If there are results, such as the figures of a
  load test that missed its SLO, its fields stand in the document of the results, which keeps its
  `schema`.
- Names say the unit: `_ms`, `_s` and `_seconds`, `_bytes`, `_percent`, `_tokens`, `_rps` and
  `_per_s` (per second). A share is from 0 to 1. `null` is unknown, or none.
- Lines of data have no `schema`: what `embed`, `classify` and `rerank` write for a line of input.

```sh
tritonctl status --json | jq -r '.models | to_entries[] | "\\(.key) \\(.value)"'
tritonctl loadtest run --json > summary.json || jq -r .problem summary.json
```
"""
_OBJECTS = """\
## Objects

Values of the fields above.
"""
_PLAIN = {str: "text", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def page() -> str:
    """Return the page: the documents of each verb, then the objects inside them."""
    objects: dict[str, type] = {}
    seen: dict[tuple[DocumentForm, ...], str] = {}
    parts = [_HEAD]
    for verb, documents in DOCUMENTS.items():
        parts.append(f"## {verb}\n")
        if (earlier := seen.setdefault(documents, verb)) != verb:
            parts.append(f"As [`{earlier}`](#{_anchor(earlier)}); `{_name(verb)}`.\n")
            continue
        for number, document in enumerate(documents):
            parts += _section(verb, document, objects, has_name=number == 0)
    for verb, description in STORED_FILES.items():
        name = f" `{STORED_NAMES[verb]}`." if verb in STORED_NAMES else ""
        parts.append(f"## {verb}\n\n{description}{name}\n")
    parts += [_OBJECTS, *_object_sections(objects)]
    return "\n".join(parts).rstrip() + "\n"


def _name(verb: str) -> str:
    return STORED_NAMES.get(verb, document_name(verb))


def _section(
    verb: str, document: DocumentForm, objects: dict[str, type], *, has_name: bool
) -> Iterator[str]:
    """The description and the fields of a document; adds the types of its values to `objects`."""
    name = f" `{_name(verb)}`." if has_name and document.has_schema else ""
    yield f"{_summary(document.parts[0])}{name}\n"
    yield from _table(document.parts, objects)


def _object_sections(objects: dict[str, type]) -> Iterator[str]:
    """A section for each type; those of its own values are added behind."""
    written: set[str] = set()
    while waiting := [each for name, each in objects.items() if name not in written]:
        for each in waiting:
            written.add(each.__name__)
            yield f"### {each.__name__}\n\n{_summary(each)}\n"
            yield from _table((each,), objects)


def _table(parts: Sequence[type], objects: dict[str, type]) -> Iterator[str]:
    yield from ("| field | type | is |", "|---|---|---|")
    yield from (f"| {' | '.join(row)} |" for row in _rows(parts, objects))
    yield ""


def _rows(parts: Sequence[type], objects: dict[str, type]) -> Iterator[tuple[str, str, str]]:
    """Names, type and meaning; neighbours of one type whose names say all share a row."""
    fields = [field for part in parts for field in _described_fields(part, objects)]
    for (kind, meaning), group in groupby(fields, key=lambda field: field[1:]):
        names = [f"`{name}`" for name, *_ in group]
        if meaning:
            yield from ((name, kind, meaning) for name in names)
        else:
            yield ", ".join(names), kind, ""


def _described_fields(part: type, objects: dict[str, type]) -> Iterator[tuple[str, str, str]]:
    comments = _comments(part)
    for name, hint in get_type_hints(part, include_extras=True).items():
        optional = "; may be absent" if get_origin(hint) is NotRequired else ""
        yield name, _kind(hint, objects) + optional, _prose(comments.get(name, ""))


def _kind(hint: Any, objects: dict[str, type]) -> str:
    """Name a type as JSON has it; an object as a link to its section."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if not arguments:
        return _class_name(hint, objects)
    kinds = [_kind(each, objects) for each in arguments if each is not ...]
    if origin in (Union, UnionType):
        return " or ".join(kinds)
    if origin in (dict, Mapping):
        return f"{kinds[1]} by name"
    is_list = origin in (list, tuple, Sequence)
    return f"list of {kinds[0]}" if is_list else kinds[0]  # else NotRequired or Annotated


def _class_name(hint: Any, objects: dict[str, type]) -> str:
    if isinstance(hint, type) and _is_record(hint):
        if verb := _verbs().get(hint):
            return f"document of [`{verb}`](#{_anchor(verb)})"
        objects.setdefault(hint.__name__, hint)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, type) and issubclass(hint, Enum | Path):
        return "text"
    return _PLAIN.get(hint, "any")


@cache
def _verbs() -> Mapping[type, str]:
    """The first verb that prints a type as a whole document."""
    verbs: dict[type, str] = {}
    for verb, documents in DOCUMENTS.items():
        for document in documents:
            verbs.setdefault(document.parts[0], verb)
    return verbs


def _is_record(hint: type) -> bool:
    return is_dataclass(hint) or hasattr(hint, "__total__") or issubclass(hint, BaseModel)


@cache
def _comments(part: type) -> Mapping[str, str]:
    """The comment at the end of each field's line; of inherited fields, too."""
    comments: dict[str, str] = {}
    source = textwrap.dedent(inspect.getsource(part))
    by_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)  # noqa: S101 - it is the source of a class
    names = vars(sys.modules[part.__module__])
    for base in node.bases:  # a TypedDict does not know its own
        if isinstance(base, ast.Name) and base.id != "TypedDict" and base.id in names:
            comments |= _comments(names[base.id])
    for field in node.body:
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if comment := by_line.get(field.end_lineno or 0):
            comments[field.target.id] = comment
    return comments


def _summary(part: type) -> str:
    return _prose(inspect.cleandoc(part.__doc__ or "").partition("\n\n")[0])


def _anchor(heading: str) -> str:
    return heading.replace(" ", "-")


def _prose(text: str) -> str:
    """Text as Markdown, with the words of JSON: nothing in it ends a cell."""
    plain = re.sub(r"\bNone\b", "null", " ".join(text.split()))
    return plain.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    sys.stdout.write(page())
