# SPDX-License-Identifier: Apache-2.0
"""What a line asks: plain text, a JSON object, or the path of an image, as rows for a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.bulk.lines import MOST_LINE_BYTES, RawLine
from tritonctl.protocol.tasks import IMAGE, PAIR, QUERY, TEXT, ServedTask

Tensors = dict[str, bytes]
NO_ID = object()
# The first bytes of image files, which are no list of paths.
_IMAGES = (b"\x89PNG", b"\xff\xd8\xff")
_MARK = b"\xef\xbb\xbf"  # with which some editors begin a file in UTF-8


class BadLineError(Exception):
    """A line asks nothing that the model could answer."""


@dataclass(frozen=True)
class Asked:
    """A line's rows. `several`: they are one query's documents, and share a line of output."""

    rows: list[Tensors]
    id: Any = NO_ID
    several: bool = False


Parse = Callable[[RawLine], Asked]


@dataclass(frozen=True)
class Format:
    """How to read lines for a model. `query`: of a rerank whose lines have none."""

    served: ServedTask
    jsonl: bool = False
    query: str | None = None

    def parse(self, line: RawLine) -> Asked:
        """What it asks. Raises BadLineError."""
        if line.too_long:
            raise BadLineError(f"longer than {MOST_LINE_BYTES >> 20} MiB")
        content = line.content if line.index else line.content.removeprefix(_MARK)
        if self.jsonl:
            return self._object(content)
        if self.served.task.takes_images:
            return Asked([{IMAGE: _image(_path(content))}])
        _decoded(content)
        return Asked([{**self._query(None), TEXT: content}])

    def _object(self, content: bytes) -> Asked:
        try:
            given = json.loads(_decoded(content))
        except (ValueError, RecursionError) as error:
            raise BadLineError(f"no JSON: {error}") from error
        if not isinstance(given, dict):
            raise BadLineError("no JSON object")
        name = given.get("id", NO_ID)
        if self.served.task.takes_images:
            return Asked([{IMAGE: _image(_text(given, "image"))}], name)
        query = self._query(given)
        if query and "documents" in given:
            documents = given["documents"]
            if not isinstance(documents, list):
                raise BadLineError("`documents` is no list")
            rows = [
                {**query, TEXT: _text({"documents": one}, "documents").encode()}
                for one in documents
            ]
            return Asked(rows, name, several=True)
        row = {**query, TEXT: _text(given, "text").encode()}
        if given.get("text_pair") is not None:
            if PAIR not in self.served.inputs:
                raise BadLineError(f"{self.served.model} takes no `text_pair`")
            row[PAIR] = _text(given, "text_pair").encode()
        return Asked([row], name)

    def _query(self, given: Any) -> Tensors:
        if QUERY not in self.served.task.inputs:
            return {}
        if given is not None and "query" in given:
            return {QUERY: _text(given, "query").encode()}
        if self.query is None:
            raise BadLineError("it has no `query`")
        return {QUERY: self.query.encode()}


def _text(given: dict[str, Any], field: str) -> str:
    if field not in given:
        raise BadLineError(f"it has no `{field}`")
    value = given[field]
    if not isinstance(value, str):
        raise BadLineError(f"`{field}` is {json.dumps(value)[:40]}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadLineError(f"`{field}` is no text: {error.reason}") from error
    return value


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadLineError(
            f"no UTF-8: byte {error.start + 1} is 0x{content[error.start]:02x}"
        ) from error


def _path(content: bytes) -> str:
    if content.startswith(_IMAGES):
        raise BadLineError("an image, not the path of one: name images with --image")
    return _decoded(content)


def _image(path: str) -> bytes:
    """The file's content; the model judges whether it is an image."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadLineError(f"{path[:200]!r} cannot be read: {reason}") from error
