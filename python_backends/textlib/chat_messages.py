# SPDX-License-Identifier: Apache-2.0
"""The tensor `messages`: a JSON array of {"role", "content"} objects, checked by hand."""

import json
from typing import Any

from textlib.errors import RequestError

MOST_BYTES = 10_000_000
# CPU time that a conversation's prompt may take; an ordinary one takes a ten-thousandth of it.
CPU_SECONDS = 0.5
# How the chat worker's answer begins: a prompt follows, or why there is none.
OK = b"\0"
FAILED = b"\1"
_KEYS = {"role", "content"}
_FORM = '[{"role": "user", "content": "..."}]'


def parse_messages(raw: bytes) -> list[dict[str, str]]:
    """The conversation, oldest message first. Raises RequestError.

    The chat template decides which roles exist; that they are text is checked here.
    """
    if len(raw) > MOST_BYTES:
        raise RequestError(
            f"messages has {len(raw)} bytes, the limit is {MOST_BYTES}. Leave out old messages."
        )
    value = _json(raw)
    if not isinstance(value, list):
        raise RequestError(f"messages is {_kind(value)}, expected a JSON array: {_FORM}.")
    if not value:
        raise RequestError(f"messages is empty, expected at least one message: {_FORM}.")
    return [_message(index, item) for index, item in enumerate(value)]


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(
            f"messages is not valid UTF-8: byte 0x{raw[error.start]:02x} at offset "
            f"{error.start} ({error.reason}). Send the JSON as UTF-8."
        ) from None
    except RecursionError:
        raise RequestError("messages is nested too deeply, expected a flat array.") from None
    except ValueError as error:
        raise RequestError(f"messages is not valid JSON: {error}. Expected {_FORM}.") from None


def _message(index: int, item: Any) -> dict[str, str]:
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise RequestError(f"{where} is {_kind(item)}, expected an object as in {_FORM}.")
    if unknown := sorted(item.keys() - _KEYS):
        raise RequestError(f"{where} has the key {unknown[0]!r:.80}; it takes role and content.")
    for key in ("role", "content"):
        _check_text(f"{where}.{key}", item.get(key))
    if not item["role"]:
        raise RequestError(f"{where}.role is empty, expected a role such as user or assistant.")
    return item


def _check_text(where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{where} is {_kind(value)}, expected text.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where} has half a surrogate pair at character {error.start}: no such character "
            "exists. Send characters beyond U+FFFF as UTF-8 or as two \\u escapes."
        ) from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    if value is None:
        return "missing or null"
    return names.get(type(value), "a number")
