# SPDX-License-Identifier: Apache-2.0
"""Parse a line, plain text, a JSON object or an image path, into rows for a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.bulk.lines import MAX_LINE_BYTES, RawLine
from tritonctl.protocol.tasks import IMAGE, PAIR, QUERY, TEXT, ServedTask

Tensors = dict[str, bytes]
NO_ID = object()
# The first bytes of image files, which were passed instead of a list of paths.
_IMAGE_SIGNATURES = (b"\x89PNG", b"\xff\xd8\xff")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write it at the start of a UTF-8 file


class BadLineError(Exception):
    """A line is not a valid request to the model."""


@dataclass(frozen=True)
class LineRequest:
    """The rows of a line."""

    rows: list[Tensors]
    id: Any = NO_ID  # the line's own, repeated in the output
    is_ranking: bool = False


Parse = Callable[[RawLine], LineRequest]


@dataclass(frozen=True)
class LineFormat:
    """The format of lines for a model."""

    served_task: ServedTask
    jsonl: bool = False
    query: str | None = None  # for ranking lines without a query

    def parse(self, line: RawLine) -> LineRequest:
        """Parse a line. Raises BadLineError."""
        if line.too_long:
            raise BadLineError(f"longer than {MAX_LINE_BYTES >> 20} MiB")
        content = line.content if line.index else line.content.removeprefix(_BYTE_ORDER_MARK)
        if self.jsonl:
            return self._parse_object(content)
        if self.served_task.task.takes_images:
            return LineRequest([{IMAGE: _image(_path(content))}])
        _decode(content)
        return LineRequest([{**self._query_tensors(None), TEXT: content}])

    def _parse_object(self, content: bytes) -> LineRequest:
        try:
            record = json.loads(_decode(content))
        except (ValueError, RecursionError) as error:
            raise BadLineError(f"invalid JSON: {error}") from error
        if not isinstance(record, dict):
            raise BadLineError("not a JSON object")
        line_id = record.get("id", NO_ID)
        if self.served_task.task.takes_images:
            return LineRequest([{IMAGE: _image(_text_field(record, "image"))}], line_id)
        query = self._query_tensors(record)
        if query and "documents" in record:
            documents = record["documents"]
            if not isinstance(documents, list):
                raise BadLineError("`documents` is not a list")
            rows = [
                {**query, TEXT: _text_field({"documents": document}, "documents").encode()}
                for document in documents
            ]
            return LineRequest(rows, line_id, is_ranking=True)
        row = {**query, TEXT: _text_field(record, "text").encode()}
        if record.get("text_pair") is not None:
            if PAIR not in self.served_task.inputs:
                raise BadLineError(f"{self.served_task.model} does not accept `text_pair`")
            row[PAIR] = _text_field(record, "text_pair").encode()
        return LineRequest([row], line_id)

    def _query_tensors(self, record: Any) -> Tensors:
        if QUERY not in self.served_task.task.inputs:
            return {}
        if record is not None and "query" in record:
            return {QUERY: _text_field(record, "query").encode()}
        if self.query is None:
            raise BadLineError("`query` is missing")
        return {QUERY: self.query.encode()}


def _text_field(record: dict[str, Any], field: str) -> str:
    if field not in record:
        raise BadLineError(f"`{field}` is missing")
    value = record[field]
    if not isinstance(value, str):
        raise BadLineError(f"`{field}` is {json.dumps(value)[:40]}, expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadLineError(f"`{field}` is not valid text: {error.reason}") from error
    return value


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadLineError(
            f"invalid UTF-8: byte {error.start + 1} is 0x{content[error.start]:02x}"
        ) from error


def _path(content: bytes) -> str:
    if content.startswith(_IMAGE_SIGNATURES):
        raise BadLineError("an image, not its path: pass images with --image")
    return _decode(content)


def _image(path: str) -> bytes:
    """Read the file; the model checks whether it is an image."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadLineError(f"{path[:200]!r} cannot be read: {reason}") from error
