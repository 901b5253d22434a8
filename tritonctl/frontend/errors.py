# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's shape, and what ours and Triton's become there.

Clients learn what they can change. What failed inside, addresses and files among it, goes to the
log alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from tritonctl.errors import (
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    TritonctlError,
    UsageError,
)

Headers = tuple[tuple[bytes, bytes], ...]

INVALID = "invalid_request_error"
SERVER = "server_error"
_RETRY_SOON: Headers = ((b"retry-after", b"1"),)
_ENSEMBLE = re.compile(r"^(?:Triton refused the request: )?(?:in ensemble '[^']*', )?")
_UNEXPECTED = re.compile(r"unexpected inference input '(\w+)'")
_UNKNOWN_MODEL = "Request for unknown model"
# Of our steps: the prompt leaves no room for the answer, or is itself too long.
_TOO_LONG = re.compile(
    r"the prompt has \d+ tokens|text_input has \d+ tokens|max_tokens is \d+ and the prompt has"
)
# Tensors of the ensemble by what a client calls them; prompts are `messages` or `prompt`.
FIELDS = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "random_seed": "seed",
    "min_tokens": "min_tokens",
    "end_id": "ignore_eos",
    "stop_words": "stop",
    "include_stop_word": "include_stop_str_in_output",
    "return_log_probs": "logprobs",
    "guided_decoding_guide_type": "response_format",
    "guided_decoding_guide": "response_format",
    "lora_name": "model",
    "prompt_name": "prompt_name",
    "dimensions": "dimensions",
    "truncate": "truncate",
}
_PROMPTS = ("text_input", "messages", "query")


class ApiError(Exception):
    """What a client is told: an HTTP status, and OpenAI's `error` object.

    `param`: the field of the request, such as `messages[0].role`. `headers`: of the response.
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
        """As plain data."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    @property
    def body(self) -> bytes:
        """As JSON."""
        return orjson.dumps(self.record)


def unavailable(message: str = "The model's server does not answer. Try again soon.") -> ApiError:
    """503: nobody can answer now."""
    return ApiError(503, message, type=SERVER, code="server_unavailable", headers=_RETRY_SOON)


def internal() -> ApiError:
    """500: what happened is in the log."""
    return ApiError(
        500,
        "The server failed on this request. Its operator finds the reason in the log.",
        type=SERVER,
        code="internal_error",
    )


def unknown_model(name: str) -> ApiError:
    """404, as OpenAI says it."""
    return ApiError(
        404,
        f"The model `{name:.200}` does not exist: GET /v1/models lists those that do",
        code="model_not_found",
        param="model",
    )


def of_tritonctl(
    error: TritonctlError, prompt: str, fields: Mapping[str, str] = FIELDS
) -> ApiError:
    """What a client is told of a failed call.

    `prompt`: the field that holds the prompt. `fields`: the request's by tensor, as it named them.
    """
    if isinstance(error, ServerBusyError):
        return ApiError(
            429,
            "The model has as many requests waiting as may wait. Try again soon.",
            type=SERVER,
            code="server_overloaded",
            headers=_RETRY_SOON,
        )
    if isinstance(error, RequestRejectedError):
        return _of_refusal(error, prompt, fields)
    if isinstance(error, ServerError):
        return unavailable()
    if isinstance(error, UsageError):
        return ApiError(400, f"{error.problem}: {error.remedy}")
    return internal()


def _of_refusal(error: RequestRejectedError, prompt: str, fields: Mapping[str, str]) -> ApiError:
    text = _ENSEMBLE.sub("", error.problem)
    if _UNKNOWN_MODEL in text:
        return unavailable("The model is not loaded. Try again later.")
    if unexpected := _UNEXPECTED.search(text):
        field = fields.get(unexpected[1], unexpected[1])
        return ApiError(
            400,
            f"this model takes no `{field}`: leave it out",
            code="unsupported_parameter",
            param=field,
        )
    word = re.match(r"\w*", text)
    tensor = word[0] if word else ""
    param = prompt if tensor in _PROMPTS else fields.get(tensor)
    if _TOO_LONG.match(text):
        return ApiError(400, text, code="context_length_exceeded", param=param or prompt)
    if tensor == "lora_name":
        return ApiError(404, text, code="model_not_found", param=param)
    # Of our steps: a message about the request begins with one of its tensors, which the client
    # knows by another name.
    if param is not None:
        told = text if param == tensor else f"`{param}`{text.removeprefix(tensor)}"
    elif error.is_argument:  # the words of a step of the project's own
        told, param = text, prompt
    else:
        return internal()
    return ApiError(400, told, code="invalid_value", param=param)
