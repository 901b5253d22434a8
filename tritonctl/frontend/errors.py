# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's shape, and the conversion of tritonctl's and Triton's errors.

Clients see what they can change. Details of internal failures, such as addresses and files, appear
only in the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from tritonctl.errors import (
    ModelFailedError,
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    TritonctlError,
    UsageError,
)
from tritonctl.protocol.generation import PROMPT_IDS
from tritonctl.protocol.sampling_table import sampling_parameters

Headers = tuple[tuple[bytes, bytes], ...]

INVALID = "invalid_request_error"
SERVER = "server_error"
_RETRY_SOON: Headers = ((b"retry-after", b"1"),)
# A crashed server answers again after 8 to 19 s: two retries, OpenAI's default, outlast that.
_RETRY_AFTER_RESTART: Headers = ((b"retry-after", b"10"),)
_ENSEMBLE = re.compile(r"^(?:Triton refused the request: )?(?:in ensemble '[^']*', )?")
_UNEXPECTED = re.compile(r"unexpected inference input '(\w+)'")
_UNKNOWN_MODEL = "Request for unknown model"
# Messages of our steps: the prompt leaves no room for the answer, or is too long itself.
_TOO_LONG = re.compile(
    r"the prompt has \d+ tokens|text_input has \d+ tokens|max_tokens is \d+ and the prompt has"
)
# The client's fields by tensor of the ensemble; prompts are `messages` or `prompt`.
FIELDS = {
    "max_tokens": "max_tokens",
    **{
        tensor: name
        for name, parameter in sampling_parameters().items()
        for tensor in (name, *parameter.aliases)
    },
    "end_id": "ignore_eos",
    "stop_words": "stop",
    "include_stop_word": "include_stop_str_in_output",
    "return_log_probs": "logprobs",
    "guided_decoding_guide_type": "response_format",
    "guided_decoding_guide": "response_format",
    "lora_name": "model",
    PROMPT_IDS: "prompt",
    "prompt_name": "prompt_name",
    "dimensions": "dimensions",
    "truncate": "truncate",
}
_PROMPTS = ("text_input", "messages", "query")


class ApiError(Exception):
    """An error response: an HTTP status and OpenAI's `error` object.

    `param`: the request's field, such as `messages[0].role`. `headers`: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,  # noqa: A002 - OpenAI's word
        code: str | None = None,
        param: str | None = None,
        headers: Headers = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers

    @property
    def record(self) -> dict[str, Any]:
        """The response body as plain data."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    @property
    def body(self) -> bytes:
        """The response body as JSON."""
        return orjson.dumps(self.record)


def unavailable(
    message: str = "The model's server does not answer. Try again in 10 s.",
) -> ApiError:
    """503: no server can answer now."""
    return ApiError(
        503, message, type=SERVER, code="server_unavailable", headers=_RETRY_AFTER_RESTART
    )


def internal_error() -> ApiError:
    """500: the log has the details."""
    return ApiError(
        500,
        "The server failed on this request. Its operator finds the reason in the log.",
        type=SERVER,
        code="internal_error",
    )


def unknown_model(name: str) -> ApiError:
    """404, in OpenAI's words."""
    return ApiError(
        404,
        f"The model `{name:.200}` does not exist: GET /v1/models lists those that do",
        code="model_not_found",
        param="model",
    )


def from_tritonctl_error(
    error: TritonctlError, prompt: str, fields: Mapping[str, str] = FIELDS
) -> ApiError:
    """Convert the error of a failed call.

    `prompt`: the request's field with the prompt. `fields`: the request's fields by tensor.
    """
    if isinstance(error, ServerBusyError):
        return ApiError(
            429,
            "The model's queue is full. Try again soon.",
            type=SERVER,
            code="server_overloaded",
            headers=_RETRY_SOON,
        )
    if isinstance(error, ModelFailedError):
        return internal_error()
    if isinstance(error, RequestRejectedError):
        return _from_rejection(error, prompt, fields)
    if isinstance(error, ServerError):
        return unavailable()
    if isinstance(error, UsageError):
        return ApiError(400, f"{error.problem}: {error.remedy}")
    return internal_error()


def _from_rejection(
    error: RequestRejectedError, prompt: str, fields: Mapping[str, str]
) -> ApiError:
    text = _ENSEMBLE.sub("", error.problem)
    if _UNKNOWN_MODEL in text:
        return unavailable("The model is not loaded. Try again later.")
    if unexpected := _UNEXPECTED.search(text):
        return _unexpected_input(unexpected[1], prompt, fields)
    word = re.match(r"\w*", text)
    tensor = word[0] if word else ""
    param = prompt if tensor in _PROMPTS else fields.get(tensor)
    if _TOO_LONG.match(text):
        return ApiError(400, text, code="context_length_exceeded", param=param or prompt)
    if tensor == "lora_name":
        return ApiError(404, text, code="model_not_found", param=param)
    # A message of our steps starts with a tensor's name, for which the client has another name.
    if param is not None:
        message = text if param == tensor else f"`{param}`{text.removeprefix(tensor)}"
    elif error.is_argument:  # the message of a step that the project defines
        message, param = text, prompt
    else:
        return internal_error()
    return ApiError(400, message, code="invalid_value", param=param)


def _unexpected_input(tensor: str, prompt: str, fields: Mapping[str, str]) -> ApiError:
    """400 for a tensor that the model does not have."""
    field = fields.get(tensor, tensor)
    text = f"this model takes no `{field}`: leave it out"
    if tensor == PROMPT_IDS:
        field = prompt
        text = (
            f"this model takes text, not token ids: send text as `{prompt}`. Once its operator has "
            "rendered its ensemble again, it takes ids, too"
        )
    return ApiError(400, text, code="unsupported_parameter", param=field)
