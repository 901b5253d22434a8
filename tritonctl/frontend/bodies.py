# SPDX-License-Identifier: Apache-2.0
"""Read a request's body within limits of size and time, and validate it field by field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, WithJsonSchema

from tritonctl.errors import suggest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.http_request import ClientGoneError, HttpRequest
from tritonctl.frontend.json_structure import count_marks_in_steps, load_unambiguous
from tritonctl.frontend.unread_bodies import UnreadBodies
from tritonctl.project.expected import error_location, expectation

_B = TypeVar("_B", bound="Body")
Location = tuple[str | int, ...]
Located = tuple[Location, dict[str, Any]]
_MAX_VALUE_LENGTH = 60
_MAX_NAME_LENGTH = 100  # of a field that a message names
# A description of each error takes microseconds: they would delay other streams.
_MAX_ERRORS = 1000
_MAX_LENGTH_DIGITS = 20  # of `content-length`
_LARGE_BYTES = 65_536  # bodies that are parsed in steps
_DISCARD_FACTOR = 20  # times the limit: how much of a body that is too long is read and dropped
# Pydantic's error types for a value that is not an object.
_OBJECT = ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type")


def _check_off(value: bool) -> bool:
    if value:
        raise ValueError("expected false")
    return value


# For fields that may be false, but not true. Literal[False] would accept 0, which equals it.
Off = Annotated[
    bool, AfterValidator(_check_off), WithJsonSchema({"type": "boolean", "const": False})
]


class Body(BaseModel):
    """Base of request bodies: unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False
    )


async def read_body(
    request: HttpRequest, bodies: UnreadBodies, *, max_bytes: int, seconds: float
) -> bytes:
    """Read the whole body. Raises ApiError 408, 413, 415, 417 or 429, ClientGoneError.

    The tail of a body that is too long is read and dropped, so that the client gets its answer. A
    client that sends `expect` first learns whether its body is welcome.
    """
    check_content_type(request.header)
    _check_expectation(request, max_bytes)
    client = (request.tenant.name, request.client_address)
    parts: list[bytes] = []
    size = 0
    async with bodies.reading(client, seconds) as unread:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            size += len(part)
            if size <= max_bytes:
                parts.append(part)
                bodies.add_received(unread, len(part))
            if not message.get("more_body", False) or size > max_bytes * _DISCARD_FACTOR:
                break
    if size > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(parts)


def _check_expectation(request: HttpRequest, max_bytes: int) -> None:
    """Refuse what a client with `expect` announces, before it sends it."""
    expectation = request.header(b"expect")
    if expectation is None:
        return
    if expectation.lower() != b"100-continue":
        raise ApiError(417, "send `expect: 100-continue`, or no such header", code="expectation")
    length = request.header(b"content-length") or b""
    if length.isdigit() and int(length[:_MAX_LENGTH_DIGITS]) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the request's body has more than {max_bytes} bytes",
        code="request_too_large",
        headers=((b"connection", b"close"),),
    )


def check_content_type(header: Callable[[bytes], bytes | None]) -> None:
    """Raise ApiError 415 unless the body is plain JSON. header: returns a header's value."""
    kind = (header(b"content-type") or b"").partition(b";")[0]
    if kind.strip().lower() != b"application/json":
        raise ApiError(
            415, "send JSON, with the header `content-type: application/json`", code="media_type"
        )
    if (header(b"content-encoding") or b"identity").lower() != b"identity":
        raise ApiError(415, "send the body without `content-encoding`", code="media_type")


def parse(body_type: type[_B], body: bytes, unsupported: Mapping[str, str]) -> _B:
    """Parse the body. Raises ApiError 400, which names the field.

    `unsupported`: reasons by field, for OpenAI's fields that accept only a neutral value.
    """
    steps = _parse_steps(body_type, body, unsupported)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _B = end.value
            return result


class BodyParser:
    """Parses bodies in an event loop, large ones in steps and one at a time.

    Other streams continue between two steps. A step takes up to 20 ms for a body of 10 MB.
    """

    def __init__(self) -> None:
        self._large = asyncio.Lock()

    async def parse(self, body_type: type[_B], body: bytes, unsupported: Mapping[str, str]) -> _B:
        """As `parse`."""
        if len(body) <= _LARGE_BYTES:
            return parse(body_type, body, unsupported)
        async with self._large:
            steps = _parse_steps(body_type, body, unsupported)
            while True:
                await asyncio.sleep(0)
                try:
                    next(steps)
                except StopIteration as end:
                    result: _B = end.value
                    return result


def _parse_steps(
    body_type: type[_B], body: bytes, unsupported: Mapping[str, str]
) -> Generator[None, None, _B]:
    """As `parse`, yielding after each bounded piece of work."""
    yield from count_marks_in_steps(body)
    data = load_unambiguous(body)
    yield
    try:
        return body_type.model_validate_json(body)
    except ValidationError as error:
        invalid = error
    yield
    raise _to_api_error(invalid, body_type, data, unsupported)


def _to_api_error(
    error: ValidationError, body_type: type[BaseModel], data: Any, unsupported: Mapping[str, str]
) -> ApiError:
    if error.error_count() > _MAX_ERRORS:
        text = f"the body has {error.error_count()} errors: GET /openapi.json lists its fields"
        return ApiError(400, text, code="invalid_value")
    items = [dict(item) for item in error.errors(include_url=False)]
    located = [(error_location(item, data), item) for item in sorted(items, key=_rank)]
    location, first = _most_specific(located)
    if location and str(location[0]) in unsupported:
        name = str(location[0])
        text = f"`{name}` is not supported: {unsupported[name]}"
        return ApiError(400, text, code="unsupported_parameter", param=name)
    return _explain(location, first, located, body_type)


def _explain(
    location: Location,
    first: dict[str, Any],
    located: Sequence[Located],
    body_type: type[BaseModel],
) -> ApiError:
    match first["type"]:
        case "extra_forbidden":
            return _unknown_field(location, body_type)
        case "missing":
            return missing_field(_field_path(location))
        case "json_invalid":
            text = f"the body is not JSON: {first['ctx']['error']}"
            return ApiError(400, text, code="invalid_json")
        case "union_tag_invalid" | "union_tag_not_found":
            return _wrong_tag(first, location)
    return _wrong_value(location, located)


def _wrong_value(location: Location, located: Sequence[Located]) -> ApiError:
    same_location = [item for place, item in located if place == location]
    param = _field_path(location) or None
    return ApiError(400, _value_message(same_location, param), code="invalid_value", param=param)


def _most_specific(located: Sequence[Located]) -> Located:
    """Return the first error, or one inside its value: another member of a union fits better."""
    location, first = located[0]
    for place, item in located:
        if len(place) > len(location) and place[: len(location)] == location:
            location, first = place, item
    return location, first


def missing_field(path: str) -> ApiError:
    """400 for a field that must be there."""
    text = f"`{path}` is missing"
    return ApiError(400, text, code="missing_required_parameter", param=path)


def _unknown_field(location: Location, body_type: type[BaseModel]) -> ApiError:
    name, path = str(location[-1]), _field_path(location)
    is_comparable = len(location) == 1 and len(name) <= _MAX_NAME_LENGTH
    nearest = suggest(name, body_type.model_fields) if is_comparable else None
    text = f"unknown field `{path}`" + (f": did you mean `{nearest}`?" if nearest else "")
    return ApiError(400, text, code="unknown_parameter", param=path)


def _wrong_tag(item: dict[str, Any], location: Location) -> ApiError:
    """400 for an object whose `type` is missing or unknown."""
    key = item["ctx"]["discriminator"].strip("'")
    path = _field_path((*location, key))
    if key not in item["input"]:
        return missing_field(path)
    expected = item["ctx"].get("expected_tags", "text").replace(", ", " or ")
    text = f"`{path}`: expected {expected}, got {_describe(item['input'][key])}"
    return ApiError(400, text, code="invalid_value", param=path)


def _rank(item: dict[str, Any]) -> int:
    """Sort key: errors that explain other errors come first."""
    if item["type"] == "literal_error" and "type" in map(str, item["loc"]):
        return 0
    if item["type"].startswith("union_tag") and isinstance(item["input"], Mapping):
        return 0
    return 1 if item["type"] == "extra_forbidden" else 2


def _value_message(items: Sequence[dict[str, Any]], path: str | None) -> str:
    """Describe the expected value, for those members of a union that are of the value's type."""
    subject = f"`{path}`" if path else "the body"
    custom = next((item for item in items if item["type"] == "value_error"), None)
    if custom is not None:
        return f"{subject}: {custom['ctx']['error']}"
    of_its_type = [item for item in items if not item["type"].endswith("_type")]
    alternatives = " or ".join(dict.fromkeys(map(_expectation, of_its_type or items)))
    return f"{subject}: expected {alternatives}, got {_describe(items[0]['input'])}"


def _expectation(item: dict[str, Any]) -> str:
    return "an object" if item["type"] in _OBJECT else expectation(item).removeprefix("expected ")


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, str):
        value = value[: _MAX_VALUE_LENGTH + 1]
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python refuses to print numbers of more than 4300 digits
        return "a number"
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"


def _field_path(location: Sequence[str | int]) -> str:
    """Format a location, such as `messages[0].content`."""
    text = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part:.{_MAX_NAME_LENGTH}}"
        for part in location
    )
    return text.removeprefix(".")
