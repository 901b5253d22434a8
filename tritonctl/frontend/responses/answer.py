# SPDX-License-Identifier: Apache-2.0
"""Answer POST /v1/responses: the response object, or the events of its stream."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from tritonctl.frontend.answers import TextGenerator
from tritonctl.frontend.chat_messages import with_own_role
from tritonctl.frontend.conversation import answer_reader
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.logprobs import LogProbs, token_record
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.reasoning import AnswerReader
from tritonctl.frontend.responses.output import OutputBuilder, Record, StreamEvent, new_id
from tritonctl.frontend.responses.request import ResponsesRequest
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import Usage
from tritonctl.frontend.text_response import ChoiceFormatter, respond
from tritonctl.frontend.tools.calls import Content, Event, Thought
from tritonctl.protocol.generation import Chunk


async def answer(
    request: HttpRequest,
    body: ResponsesRequest,
    target: RequestTarget,
    text: TextModel,
    generator: TextGenerator,
) -> None:
    """Answer with a response object or its events. Raises ApiError, ClientGoneError."""
    use = body.resolve_tools(target, text)
    generation = body.to_generation(target, use, refuses_system=text.refuses_system)
    reader = answer_reader(use, generation, text)
    if body.log_probs and reader is not None:
        # Which tokens became reasoning, calls or text is unknown once their text is parsed.
        raise ApiError(
            400,
            "log probabilities belong to output text, and this answer is parsed for reasoning or "
            "calls: leave `message.output_text.logprobs` out, or the tools",
            code="invalid_value",
            param="include",
        )
    vocabulary = generator.vocabulary(generation, text) if body.log_probs else None
    formatter = ResponseFormatter(
        body,
        reader,
        LogProbs(vocabulary) if vocabulary else None,
    )
    request.encode_stream_error = formatter.error_events
    stream = bool(body.stream)
    try:
        await respond(request, generator, generation, formatter, [formatter], stream=stream)
    except ApiError as error:
        error.message = with_own_role(error.message, body.roles)
        raise


class ResponseFormatter(ChoiceFormatter):
    """Formats the one answer of a request, and the response object around it."""

    def __init__(
        self,
        body: ResponsesRequest,
        reader: AnswerReader | None = None,
        log_probs: LogProbs | None = None,
    ) -> None:
        """reader: None if all text is content. log_probs: only if they are requested."""
        self._fields = _request_fields(body)
        self._reader = reader
        self._log_probs = log_probs
        self._top = body.top_logprobs or 0
        self._output = OutputBuilder()
        self._pending_tokens: list[Record] = []  # whose text has not arrived
        self._was_cut_off = False
        self._reasoning_tokens = 0
        self._sequence_number = 0

    @property
    def is_complete(self) -> bool:
        """Whether the last allowed call is complete: further text would be further calls."""
        return self._reader is not None and self._reader.full

    def opening_events(self) -> bytes:
        """Encode the events that start the response."""
        started = self._response("in_progress")
        return self._encode(
            {"type": kind, "response": started}
            for kind in ("response.created", "response.in_progress")
        )

    def events(self, chunk: Chunk) -> bytes:
        """Encode the events of a chunk."""
        return self._encode(self._add(chunk))

    def final_events(self, usage: Usage) -> bytes:
        """Encode the end of the last item and of the response."""
        data = self._encode(self._close())
        response = self._response(self._status, usage)
        return data + self._encode([{"type": f"response.{self._status}", "response": response}])

    def error_events(self, error: ApiError) -> bytes:
        """Encode the end of a stream that fails."""
        for _ in self._output.close(is_complete=False):
            pass
        details = {"code": error.code, "message": error.message, "param": error.param}
        response = self._response("failed")
        response["error"] = {"code": _failure_code(error), "message": error.message}
        return self._encode(
            [{"type": "error", **details}, {"type": "response.failed", "response": response}]
        )

    def collect(self, chunk: Chunk) -> None:
        """Add a chunk to the complete answer."""
        for _ in self._add(chunk):
            pass

    def choice(self) -> Record:
        """Return the fields that the answer adds to the response object."""
        for _ in self._close():
            pass
        return {"output": self._output.items}

    def body(self, choices: Sequence[Record], usage: Usage) -> Record:
        """The complete response object."""
        return {**self._response(self._status, usage), **choices[0]}

    @property
    def _status(self) -> str:
        return "incomplete" if self._was_cut_off else "completed"

    def _add(self, chunk: Chunk) -> Iterable[StreamEvent]:
        """Add a chunk's text to the output."""
        if self._log_probs is not None:
            tokens = self._log_probs.read(chunk)
            self._pending_tokens += [token_record(token, self._top) for token in tokens]
        events = self._parse(chunk)
        self._was_cut_off = chunk.finish_reason == "length" and not self.is_complete
        if isinstance(events[-1] if events else None, Thought):
            self._reasoning_tokens = chunk.num_output_tokens
        for event in events:
            records, self._pending_tokens = self._pending_tokens, []
            yield from self._output.add(event, records if isinstance(event, Content) else ())

    def _parse(self, chunk: Chunk) -> list[Event]:
        if self._reader is None:
            return [Content(chunk.text)] if chunk.text else []
        events = self._reader.feed(chunk.text) if chunk.text else []
        return [*events, *(self._reader.finish() if chunk.finish_reason else ())]

    def _close(self) -> Iterable[StreamEvent]:
        """Close the output."""
        yield from self._output.close(self._pending_tokens, is_complete=not self._was_cut_off)
        if not self._output.has_answer and not self._was_cut_off:
            yield from self._output.add_empty_message()

    def _response(self, status: str, usage: Usage | None = None) -> Record:
        is_cut_off = status == "incomplete"
        return {
            **self._fields,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut_off else None,
            "output": self._output.items,
            "usage": None if usage is None else self._usage(usage),
        }

    def _usage(self, usage: Usage) -> Record:
        return {
            "input_tokens": usage.prompt_tokens,
            # The API's types require them; engines do not report what their cache had.
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _encode(self, events: Iterable[StreamEvent]) -> bytes:
        """Encode events with their sequence numbers."""
        parts = []
        for event in events:
            data = orjson.dumps({**event, "sequence_number": self._sequence_number})
            parts.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode("ascii"), data))
            self._sequence_number += 1
        return b"".join(parts)


def _request_fields(body: ResponsesRequest) -> dict[str, Any]:
    """The fields of the response object that repeat the request, or never change."""
    choice = body.tool_choice or "auto"
    text_format = body.text.format if body.text else None
    sampling = body.sampling_fields()
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": body.model,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": sampling["temperature"],
        "text": {
            "format": text_format.model_dump(by_alias=True, exclude_unset=True)
            if text_format
            else {"type": "text"},
            "verbosity": "medium",
        },
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling["top_p"],
        "truncation": "disabled",
        "user": body.user,
    }


def _failure_code(error: ApiError) -> str:
    """The code of a failed response; the API has no others that fit."""
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_prompt"
