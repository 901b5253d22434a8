# SPDX-License-Identifier: Apache-2.0
"""OpenAI's library at /v1/responses; every object is checked against the library's own types."""

from __future__ import annotations

import json
from typing import Any

import openai
from client_features import CALLED, PERSON, SPELL, Facts, Features, check, same
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

TOOL = {"type": "function", "strict": True, **SPELL["function"]}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PREFIX = "response."


class Person(BaseModel):
    """As PERSON."""

    name: str
    age: int


def client(facts: Facts) -> openai.OpenAI:
    """Without retries, which would hide failures."""
    return openai.OpenAI(base_url=facts.url, api_key="none", max_retries=0)


def create(facts: Facts, **fields: Any) -> Any:
    """A response, or its stream, of the message."""
    fields = {"model": facts.speller, "input": facts.message, **fields}
    answer = client(facts).responses.create(**fields)
    if not fields.get("stream"):
        Response.model_validate(answer.to_dict())
    return answer


def read(stream: Any) -> list[Any]:
    """The events of a stream, whose numbers count."""
    events = list(stream)
    for number, event in enumerate(events):
        EVENT.validate_python(event.to_dict())
        same(event.sequence_number, number)
    return events


def whole(facts: Facts) -> None:
    """From a text, and from a message with instructions."""
    answer = create(facts, metadata={"a": "b"}, store=True)
    same((answer.output_text, answer.status), (facts.message_answer, "completed"))
    same([answer.usage.input_tokens, answer.usage.output_tokens], facts.message_tokens)
    same((answer.metadata, answer.previous_response_id), ({"a": "b"}, None))
    message = {"role": "user", "content": [{"type": "input_text", "text": facts.message}]}
    same(create(facts, input=[message]).output_text, facts.message_answer)


def streamed(facts: Facts) -> None:
    """OpenAI's sequence of events."""
    events = read(create(facts, stream=True))
    types = [event.type.removeprefix(PREFIX) for event in events]
    deltas = [event.delta for event in events if event.type == f"{PREFIX}output_text.delta"]
    first = ["created", "in_progress", "output_item.added", "content_part.added"]
    last = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    same(types, [*first, *["output_text.delta"] * len(deltas), *last])
    same("".join(deltas), facts.message_answer)
    final = events[-1].response
    same(final.output_text, facts.message_answer)
    same([final.usage.input_tokens, final.usage.output_tokens], facts.message_tokens)


def helper(facts: Facts) -> None:
    """`responses.stream`, which accumulates by itself."""
    with client(facts).responses.stream(model=facts.speller, input=facts.message) as stream:
        for _ in stream:
            pass
        same(stream.get_final_response().output_text, facts.message_answer)


def length(facts: Facts) -> None:
    """Cut off: incomplete, whole or streamed."""
    answer = create(facts, max_output_tokens=2)
    same((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    same(answer.usage.output_tokens, 2)
    end = read(create(facts, max_output_tokens=2, stream=True))[-1]
    same((end.type, end.response.status), (f"{PREFIX}incomplete", "incomplete"))


def calls(facts: Facts) -> None:
    """A call, whole and streamed, and the conversation with its result."""
    fields = {"model": facts.tools, "tools": [TOOL], "extra_body": {"seed": 0}}
    answer = create(facts, **fields)
    (call,) = answer.output
    same((call.type, call.name, json.loads(call.arguments)), ("function_call", "spell", CALLED))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "seven"}
    items = [{"role": "user", "content": facts.message}, *answer.output, result]
    second = create(facts, **{**fields, "input": items, "extra_body": {"seed": 1}})
    same(json.loads(second.output_text), facts.person)
    events = read(create(facts, **fields, stream=True))
    (streamed_call,) = events[-1].response.output
    same(json.loads(streamed_call.arguments), CALLED)


def forced(facts: Facts) -> None:
    """Required calls: by a name, of any tool, and of the allowed ones."""
    tool = {"type": "function", "name": "introduce", "parameters": PERSON}
    named = {"type": "function", "name": "introduce"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    for choice in ("required", named, allowed):
        answer = create(facts, tools=[TOOL, tool], tool_choice=choice, parallel_tool_calls=False)
        (call,) = answer.output
        same(answer.status, "completed")
        if choice != "required":
            same(call.name, "introduce")
            check(Person.model_validate_json(call.arguments), "no person")


def parsed(facts: Facts) -> None:
    """`responses.parse`: an answer by a schema, as an object."""
    schema = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    answer = create(facts, text={"format": schema})
    check(Person.model_validate_json(answer.output_text), "no person")
    final = client(facts).responses.parse(
        model=facts.tools, input=facts.message, tools=[], extra_body={"seed": 1}
    )
    same(json.loads(final.output_text), facts.person)


def schema_and_tools(facts: Facts) -> None:
    """A typed answer next to a tool that may be called: one of them, by its schema."""
    tool = {"type": "function", "name": "introduce", "parameters": PERSON}
    text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    for seed in range(4):
        answer = create(facts, tools=[tool], text=text, temperature=1, extra_body={"seed": seed})
        same(answer.status, "completed")
        for item in answer.output:
            said = item.arguments if item.type == "function_call" else item.content[0].text
            check(Person.model_validate_json(said), "no person")


def log_probs(facts: Facts) -> None:
    """With `include`, whole and streamed."""
    include = ["message.output_text.logprobs"]
    answer = create(facts, include=include)
    tokens = answer.output[0].content[0].logprobs
    same("".join(token.token for token in tokens), facts.message_answer)
    events = read(create(facts, include=include, stream=True))
    deltas = [event for event in events if event.type == f"{PREFIX}output_text.delta"]
    text = "".join(token.token for event in deltas for token in event.logprobs)
    same(text, facts.message_answer)


def refusals(facts: Facts) -> None:
    """As the library's exceptions, which name the field."""
    for param, fields in (
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("background", {"background": True}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("include", {"include": ["reasoning.encrypted_content"]}),
    ):
        try:
            create(facts, **fields)
        except openai.BadRequestError as error:
            same(error.body["param"] if isinstance(error.body, dict) else None, param)
        else:
            raise ValueError(f"not refused: {param}")


RESPONSES: Features = {
    "responses": whole,
    "responses, streamed": streamed,
    "responses, the library's own stream": helper,
    "responses cut by length": length,
    "responses with tool calls": calls,
    "responses with tools that must be called": forced,
    "responses by a schema": parsed,
    "responses by a schema, with tools": schema_and_tools,
    "responses with log probabilities": log_probs,
    "responses refused": refusals,
}
