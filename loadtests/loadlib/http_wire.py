# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP protocol: generate, generate_stream (server-sent events) and infer, as JSON.

Nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from loadlib.failures import Failure, WireError, triton_failure
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message, Prompt
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


def path(plan: Plan, request_class: RequestClass) -> str:
    """Where requests of a class go."""
    if plan.kind == "tensors":
        return f"/v2/models/{plan.model}/infer"
    return f"/v2/models/{plan.model}/generate{'_stream' if request_class.stream else ''}"


class Bodies:
    """Makes the requests of a plan, for a model of this signature."""

    def __init__(self, plan: Plan, signature: Signature) -> None:
        self._plan = plan
        self._same = {one.name: self._of_class(one, signature) for one in plan.classes}

    def body(
        self, request_class: RequestClass, turn: Turn, messages: Sequence[Message] | None = None
    ) -> bytes:
        """A JSON object. `messages`: of a conversation, in place of the prompt."""
        same = self._same[request_class.name]
        if self._plan.kind == "tensors":
            return _json(same | {"inputs": _tensors(turn.prompt.inputs or {})})
        content = same | _prompt(turn.prompt, messages)
        if turn.max_tokens is not None:
            content["max_tokens"] = turn.max_tokens
        return _json(content)

    def _of_class(self, one: RequestClass, signature: Signature) -> dict[str, Any]:
        if self._plan.kind == "tensors":
            return {} if one.priority is None else {"parameters": {"priority": one.priority}}
        stream = {"stream": one.stream} if "stream" in signature.inputs else {}
        return stream | one.parameters


def _prompt(prompt: Prompt, messages: Sequence[Message] | None) -> dict[str, str]:
    conversation = messages or prompt.messages
    if conversation:
        return {"messages": json.dumps(list(conversation), ensure_ascii=False)}
    return {"text_input": prompt.text or ""}


def _tensors(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **tensor} for name, tensor in inputs.items()]


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")


def refusal(status: int, content: bytes) -> Failure | None:
    """Why an answer of this status failed; None for a good one."""
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


def version(content: bytes) -> str:
    """The model's version in the JSON of an answer to `infer`, without reading its tensors."""
    found = _VERSION.search(content, 0, _VERSION_WITHIN)
    return found[1].decode("ascii") if found else ""


class EventReader:
    """Reads a stream of server-sent events, or the one object of `generate`, as bytes come.

    Events carry num_output_tokens of the whole stream so far; without it each text is one token.
    """

    def __init__(self, keep_text: bool = False) -> None:
        self._rest = b""
        self._texts: list[str] | None = [] if keep_text else None
        self.input_tokens: int | None = None
        self.output_tokens = 0
        self.version = ""

    @property
    def text(self) -> str:
        """The answer so far, if it is kept."""
        return "".join(self._texts or ())

    def feed(self, content: bytes) -> list[int]:
        """New tokens of each event that these bytes complete; WireError for one with an error."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [self.event(line[len(_DATA) :]) for line in lines if line.startswith(_DATA)]

    def event(self, content: bytes) -> int:
        """New tokens in one JSON object."""
        answer = json.loads(content)
        if "error" in answer:
            raise WireError(triton_failure(str(answer["error"])))
        text = str(answer.get("text_output", ""))
        self.version = str(answer.get("model_version", ""))
        if self.input_tokens is None:
            self.input_tokens = answer.get("num_input_tokens")
        if self._texts is not None:
            self._texts.append(text)
        counted = int(answer.get("num_output_tokens", self.output_tokens + bool(text)))
        new, self.output_tokens = counted - self.output_tokens, counted
        return new
