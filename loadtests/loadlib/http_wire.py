# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP protocol: generate, generate_stream (server-sent events) and infer, as JSON.

This module does no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from loadlib.failures import Failure, WireError, triton_failure
from loadlib.plan_types import GeneratorPlan, PlanRequestClass
from loadlib.prompts import LoadPrompt, Message
from loadlib.signature import Signature
from loadlib.workload import Turn

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "UNAVAILABLE",
    503: "UNAVAILABLE",
}
_OK = 200
_DATA = b"data:"
_VERSION, _VERSION_WITHIN = re.compile(rb'"model_version":"(\w*)"'), 1024


def path(plan: GeneratorPlan, request_class: PlanRequestClass) -> str:
    """Return the URL path for requests of a class."""
    if plan.kind == "tensors":
        return f"/v2/models/{plan.model}/infer"
    return f"/v2/models/{plan.model}/generate{'_stream' if request_class.stream else ''}"


class HttpBodies:
    """Builds the JSON requests of a plan for a model with this signature."""

    def __init__(self, plan: GeneratorPlan, signature: Signature) -> None:
        self._plan = plan
        self._class_fields = {
            request_class.name: self._class_request(request_class, signature)
            for request_class in plan.classes
        }

    def body(
        self, request_class: PlanRequestClass, turn: Turn, messages: Sequence[Message] | None = None
    ) -> bytes:
        """Return a JSON object; a conversation's `messages` replace the prompt."""
        class_fields = self._class_fields[request_class.name]
        if self._plan.kind == "tensors":
            return _json(class_fields | {"inputs": _tensors(turn.prompt.inputs or {})})
        content = class_fields | _prompt(turn.prompt, messages)
        if turn.max_tokens is not None:
            content["max_tokens"] = turn.max_tokens
        return _json(content)

    def _class_request(
        self, request_class: PlanRequestClass, signature: Signature
    ) -> dict[str, Any]:
        if self._plan.kind == "tensors":
            return (
                {}
                if request_class.priority is None
                else {"parameters": {"priority": request_class.priority}}
            )
        stream = {"stream": request_class.stream} if "stream" in signature.inputs else {}
        return stream | request_class.parameters


def _prompt(prompt: LoadPrompt, messages: Sequence[Message] | None) -> dict[str, str]:
    conversation = messages or prompt.messages
    if conversation:
        return {"messages": json.dumps(list(conversation), ensure_ascii=False)}
    return {"text_input": prompt.text or ""}


def _tensors(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **tensor} for name, tensor in inputs.items()]


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


def http_failure(status: int, content: bytes) -> Failure | None:
    """Return the failure for an HTTP status; None for 200."""
    if status == _OK:
        return None
    message = _message(content)
    return Failure(_STATUS.get(status, f"HTTP {status}"), message)


def _message(content: bytes) -> str:
    text = content.strip().removeprefix(_DATA).strip().decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


def response_version(content: bytes) -> str:
    """Return the model version in an `infer` response, without parsing its tensors."""
    match = _VERSION.search(content, 0, _VERSION_WITHIN)
    return match[1].decode("ascii") if match else ""


class EventReader:
    """Reads a stream of server-sent events, or the single object of `generate`.

    `num_output_tokens` counts the whole stream so far; without it each text is one token.
    """

    def __init__(self, keep_text: bool = False) -> None:
        self._partial_line = b""
        self._texts: list[str] | None = [] if keep_text else None
        self.input_tokens: int | None = None
        self.output_tokens = 0
        self.uncounted = False  # the model does not report num_output_tokens
        self.version = ""

    @property
    def text(self) -> str:
        """The response text so far, if kept."""
        return "".join(self._texts or ())

    def feed(self, content: bytes) -> list[int]:
        """Return the new tokens of each completed event. Raises WireError for an error event."""
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        return [self.event(line[len(_DATA) :]) for line in lines if line.startswith(_DATA)]

    def event(self, content: bytes) -> int:
        """Return the new tokens in one JSON object."""
        answer = json.loads(content)
        if "error" in answer:
            raise WireError(triton_failure(str(answer["error"])))
        text = str(answer.get("text_output", ""))
        self.version = str(answer.get("model_version", ""))
        if self.input_tokens is None:
            self.input_tokens = answer.get("num_input_tokens")
        if self._texts is not None:
            self._texts.append(text)
        self.uncounted = self.uncounted or bool(text and "num_output_tokens" not in answer)
        total_tokens = int(answer.get("num_output_tokens", self.output_tokens + bool(text)))
        new, self.output_tokens = total_tokens - self.output_tokens, total_tokens
        return new
