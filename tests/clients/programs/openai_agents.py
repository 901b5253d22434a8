# SPDX-License-Identifier: Apache-2.0
"""OpenAI's agents SDK, whose default is /v1/responses."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from client_features import Facts, Features, check, main, same
from pydantic import BaseModel

set_tracing_disabled(True)


class Person(BaseModel):
    """As PERSON of client_features: of few values, so that the answer ends."""

    name: Literal["Ada", "Grace"]
    age: Literal[36, 85]


def agent(facts: Facts, model: str, **fields: Any) -> Agent[Any]:
    """An agent on the frontend."""
    client = openai.AsyncOpenAI(base_url=facts.url, api_key="none", max_retries=0)
    responses = OpenAIResponsesModel(model=model, openai_client=client)
    return Agent(name="numbers", model=responses, **fields)


async def run(facts: Facts) -> None:
    """One answer."""
    result = await Runner.run(agent(facts, facts.speller), facts.message)
    same(result.final_output, facts.message_answer)


async def streamed(facts: Facts) -> None:
    """The SDK's stream, and its final output."""
    result = Runner.run_streamed(agent(facts, facts.speller), facts.message)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type.endswith("output_text.delta")
    ]
    same("".join(deltas), facts.message_answer)
    same(result.final_output, facts.message_answer)


async def turns(facts: Facts) -> None:
    """A second turn: the first answer goes back as the SDK writes it."""
    one = agent(facts, facts.speller)
    first = await Runner.run(one, facts.message)
    items = [*first.to_input_list(), {"role": "user", "content": facts.message}]
    second = await Runner.run(one, items)
    check(second.final_output, "no second answer")


async def tool(facts: Facts) -> None:
    """The model calls a tool, which the SDK runs; a call that must be made ends the run."""
    called: list[int] = []

    def spell(number: int) -> str:
        """Spells a number."""
        called.append(number)
        return "seven"

    one = agent(
        facts,
        facts.tools,
        tools=[function_tool(spell)],
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(extra_body={"seed": 0}, parallel_tool_calls=False),
    )
    same((await Runner.run(one, facts.message)).final_output, "seven")
    same(called, [7342])
    streaming = Runner.run_streamed(one, facts.message)
    async for _ in streaming.stream_events():
        pass
    same(called, [7342, 7342])


async def typed(facts: Facts) -> None:
    """`output_type`: by guided decoding, with the SDK's strict schema."""
    result = await Runner.run(agent(facts, facts.speller, output_type=Person), facts.message)
    check(isinstance(result.final_output, Person), f"the output is {result.final_output!r}")


async def concurrent(facts: Facts) -> None:
    """Several at once."""
    one = agent(facts, facts.speller)
    results = await asyncio.gather(*(Runner.run(one, facts.message) for _ in range(8)))
    same({result.final_output for result in results}, {facts.message_answer})


FEATURES: Features = {
    "responses": run,
    "responses, streamed": streamed,
    "responses over several turns": turns,
    "responses with tool calls": tool,
    "responses by a schema": typed,
    "responses, asynchronous": concurrent,
}

if __name__ == "__main__":
    main(FEATURES)
