# SPDX-License-Identifier: Apache-2.0
"""LiteLLM as a client, with its `openai/` provider."""

from __future__ import annotations

import json
from typing import Any

import litellm
from client_features import CALLED, SPELL, Facts, Features, check, main, near, same


def given(facts: Facts, name: str = "", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": facts.message}]
    place = {"api_base": facts.url, "api_key": "none", "num_retries": 0}
    return {"model": f"openai/{name or facts.speller}", "messages": messages, **place, **fields}


def chat(facts: Facts) -> None:
    answer = litellm.completion(**given(facts))
    same(answer.choices[0].message.content, facts.message_answer)
    same(answer.choices[0].finish_reason, "stop")
    same([answer.usage.prompt_tokens, answer.usage.completion_tokens], facts.message_tokens)


def chat_streamed(facts: Facts) -> None:
    stream = litellm.completion(**given(facts), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    same(text, facts.message_answer)
    used = [c.usage for c in chunks if getattr(c, "usage", None)][-1]
    same([used.prompt_tokens, used.completion_tokens], facts.message_tokens)


async def asynchronous(facts: Facts) -> None:
    answer = await litellm.acompletion(**given(facts))
    same(answer.choices[0].message.content, facts.message_answer)
    stream = await litellm.acompletion(**given(facts), stream=True)
    parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
    same("".join(parts), facts.message_answer)


def completions(facts: Facts) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{facts.speller}", prompt=facts.prompt,
        api_base=facts.url, api_key="none",
    )  # fmt: skip
    same(answer.choices[0].text, facts.answer)


def embeddings(facts: Facts) -> None:
    answer = litellm.embedding(
        model=f"openai/{facts.finder}", input=[facts.text], api_base=facts.url, api_key="none"
    )
    near(answer.data[0]["embedding"], facts.vector)


def tool_calls(facts: Facts) -> None:
    answer = litellm.completion(**given(facts, facts.tools, tools=[SPELL], seed=0))
    called = answer.choices[0].message.tool_calls[0].function
    same((called.name, json.loads(called.arguments)), ("spell", CALLED))
    same(answer.choices[0].finish_reason, "tool_calls")


def tool_calls_streamed(facts: Facts) -> None:
    fields = given(facts, facts.tools, tools=[SPELL], seed=0)
    chunks = list(litellm.completion(**fields, stream=True))
    answer = litellm.stream_chunk_builder(chunks, messages=fields["messages"])
    called = answer.choices[0].message.tool_calls[0].function
    same((called.name, json.loads(called.arguments)), ("spell", CALLED))


def length(facts: Facts) -> None:
    answer = litellm.completion(**given(facts, max_tokens=2))
    same(answer.choices[0].finish_reason, "length")
    same(answer.usage.completion_tokens, 2)


def refusals(facts: Facts) -> None:
    try:
        litellm.completion(**given(facts, "gpt-none"))
    except litellm.NotFoundError:
        pass
    else:
        raise ValueError("an unknown model answered")
    try:
        litellm.completion(**given(facts, temperature=9))
    except litellm.BadRequestError as error:
        check("temperature" in str(error), f"the refusal is {error}")
    else:
        raise ValueError("a temperature of 9 was taken")


FEATURES: Features = {
    "chat": chat,
    "chat, streamed, with usage": chat_streamed,
    "asynchronous": asynchronous,
    "completions": completions,
    "embeddings": embeddings,
    "tool calls": tool_calls,
    "tool calls, streamed": tool_calls_streamed,
    "cut by length": length,
    "refusals": refusals,
}

if __name__ == "__main__":
    main(FEATURES)
