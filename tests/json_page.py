# SPDX-License-Identifier: Apache-2.0
"""What a verb prints with `--json`, compared with the types of `tritonctl.cli.documents`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from tritonctl.cli.console.document_name import document_name
from tritonctl.cli.documents.table import DOCUMENTS, STORED_FILES, STORED_NAMES, DocumentForm
from tritonctl.errors import UsageError

ERROR = set(UsageError("", remedy="").as_record())


def as_documented(verb: str, printed: str, number: int = 0) -> Any:
    """Return the record that a verb printed, without its `schema`, once it is of that form.

    number: of the verb's forms. Next to the results of a failed command its error may stand.
    """
    record: dict[str, Any] = json.loads(printed)
    if verb in STORED_FILES:
        assert record.get("schema") == STORED_NAMES.get(verb, record.get("schema"))
        return record
    document = DOCUMENTS[verb][number]
    content = dict(record)
    if verb in STORED_NAMES:
        assert content.pop("schema") == STORED_NAMES[verb]
    elif document.has_schema:
        assert content.pop("schema") == record.pop("schema") == document_name(verb)
    if content.keys() >= ERROR and "error" not in fields_of(document):
        content = {name: value for name, value in content.items() if name not in ERROR}
    assert list(differences(document, content)) == [], f"{verb}: {printed[:2000]}"
    return record


def fields_of(document: DocumentForm) -> dict[str, Any]:
    """The types of a document's fields by name."""
    return {
        name: hint
        for part in document.parts
        for name, hint in get_type_hints(part, include_extras=True).items()
        if not name.startswith("model_")  # pydantic's own
        or not issubclass(part, BaseModel)
    }


def differences(document: DocumentForm, record: Mapping[str, Any]) -> Iterator[str]:
    """Where a record has other fields than its form, or values of another type."""
    yield from _of_fields(fields_of(document), record, "")


def _of_fields(fields: Mapping[str, Any], record: Any, place: str) -> Iterator[str]:
    if not isinstance(record, Mapping):
        yield f"{place}: an object, got {record!r}"
        return
    required = {name for name, hint in fields.items() if get_origin(hint) is not NotRequired}
    yield from (f"{place}.{name} is missing" for name in sorted(required - set(record)))
    yield from (f"{place}.{name} is not documented" for name in sorted(set(record) - set(fields)))
    for name, hint in fields.items():
        if name in record:
            yield from _of_value(hint, record[name], f"{place}.{name}")


def _of_value(hint: Any, value: Any, place: str) -> Iterator[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return
    if origin is NotRequired or _is_annotated(hint):
        yield from _of_value(arguments[0], value, place)
    elif origin in (Union, UnionType):
        found = [list(_of_value(each, value, place)) for each in arguments]
        if [] not in found:
            yield min(found, key=len)[0]
    elif _is_record(hint):
        yield from _of_fields(fields_of(DocumentForm((hint,))), value, place)
    elif origin in (list, tuple, Sequence):
        if not isinstance(value, list):
            yield f"{place}: a list, got {value!r}"
            return
        for each in value:
            yield from _of_value(arguments[0], each, f"{place}[]")
    elif origin in (dict, Mapping):
        if not isinstance(value, dict):
            yield f"{place}: an object, got {value!r}"
            return
        for each in value.values():
            yield from _of_value(arguments[1], each, f"{place}.NAME")
    elif not _is_plain(hint, value):
        yield f"{place}: {hint}, got {value!r}"


def _is_annotated(hint: Any) -> bool:
    return hasattr(hint, "__metadata__")


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (
        is_dataclass(hint) or hasattr(hint, "__total__") or issubclass(hint, BaseModel)
    )


def _is_plain(hint: Any, value: Any) -> bool:
    """Whether a value without parts is of a type as JSON has it."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is NoneType:
        return value is None
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float)
    if isinstance(hint, type) and issubclass(hint, Enum | Path):
        return isinstance(value, str)
    return isinstance(value, hint)
