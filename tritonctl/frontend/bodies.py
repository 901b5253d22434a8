# SPDX-License-Identifier: Apache-2.0
"""A request's body: read within bounds of size and time, then typed; each mistake by its field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from tritonctl.errors import suggest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.exchange import ClientGoneError, Exchange
from tritonctl.project.expected import expected, place_in

_B = TypeVar("_B", bound="Body")
_MOST_SHOWN = 60
_DISCARDED = 20  # times the bound: what is read, and dropped, of a body that is too long
# What the project file calls sections of keys.
_OBJECT = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")


class Body(BaseModel):
    """A request's body: the fields that there are, and no others."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False
    )


async def read_body(exchange: Exchange, *, most_bytes: int, seconds: float) -> bytes:
    """The whole body. Raises ApiError 408, 413 or 415, ClientGoneError.

    The rest of one that is too long is read and dropped, so that the client gets its answer.
    """
    check_type(exchange.header)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await exchange.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size += len(part)
                if size <= most_bytes:
                    parts.append(part)
                if not message.get("more_body", False) or size > most_bytes * _DISCARDED:
                    break
    except TimeoutError:
        raise ApiError(
            408,
            f"the request's body took longer than {seconds:g} seconds",
            code="request_timeout",
            headers=((b"connection", b"close"),),
        ) from None
    if size > most_bytes:
        raise ApiError(
            413,
            f"the request's body has more than {most_bytes} bytes",
            code="request_too_large",
            headers=((b"connection", b"close"),),
        )
    return b"".join(parts)


def check_type(header: Callable[[bytes], bytes | None]) -> None:
    """Raises ApiError 415 for what does not come as plain JSON. header: value by name."""
    kind = (header(b"content-type") or b"").partition(b";")[0]
    if kind.strip().lower() != b"application/json":
        raise ApiError(
            415, "send JSON, with the header `content-type: application/json`", code="media_type"
        )
    if (header(b"content-encoding") or b"identity").lower() != b"identity":
        raise ApiError(415, "send the body without `content-encoding`", code="media_type")


def parse(kind: type[_B], body: bytes, unsupported: Mapping[str, str]) -> _B:
    """The typed request. Raises ApiError 400, which names the field.

    `unsupported`: why fields of OpenAI's take no value but the one that changes nothing.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error, kind, body, unsupported) from None


def _explained(
    error: ValidationError, kind: type[BaseModel], body: bytes, unsupported: Mapping[str, str]
) -> ApiError:
    found: list[dict[str, Any]] = [dict(item) for item in error.errors(include_url=False)]
    items = sorted(found, key=_telling)
    first = items[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']}", code="invalid_json")
    data = _loaded(body)
    place = place_in(first, data)
    param = _written(place)
    if place and str(place[0]) in unsupported:
        name = str(place[0])
        text = f"`{name}` is not supported: {unsupported[name]}"
        return ApiError(400, text, code="unsupported_parameter", param=name)
    if first["type"] == "extra_forbidden":
        nearest = suggest(str(place[-1]), kind.model_fields) if len(place) == 1 else None
        text = f"unknown field `{param}`" + (f": did you mean `{nearest}`?" if nearest else "")
        return ApiError(400, text, code="unknown_parameter", param=param)
    if first["type"] == "missing":
        text = f"`{param}` is missing"
        return ApiError(400, text, code="missing_required_parameter", param=param)
    return ApiError(400, _mistake(items, place, data), code="invalid_value", param=param or None)


def _telling(item: dict[str, Any]) -> int:
    """Mistakes that explain others come first."""
    if item["type"] in ("literal_error", "union_tag_invalid") and "type" in map(str, item["loc"]):
        return 0
    return 1 if item["type"] == "extra_forbidden" else 2


def _mistake(items: Sequence[dict[str, Any]], place: tuple[Any, ...], data: Any) -> str:
    """What was expected at this place, by all members of a union."""
    here = [item for item in items if place_in(item, data) == place]
    own = next((item for item in here if item["type"] == "value_error"), None)
    path = f"`{_written(place)}`" if place else "the body"
    if own is not None:
        return f"{path}: {own['ctx']['error']}"
    wanted = " or ".join(dict.fromkeys(map(_wanted, here)))
    return f"{path}: expected {wanted}, got {_shown(here[0]['input'])}"


def _wanted(item: dict[str, Any]) -> str:
    return "an object" if item["type"] in _OBJECT else expected(item).removeprefix("expected ")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python writes out no number of more than 4300 digits
        return "a number"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _written(place: Sequence[str | int]) -> str:
    """`messages[0].content`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _loaded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # it takes no NaN, which pydantic reads
        return {}
