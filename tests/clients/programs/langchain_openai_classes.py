# SPDX-License-Identifier: Apache-2.0
"""LangChain: ChatOpenAI, OpenAI, OpenAIEmbeddings."""

from __future__ import annotations

import json
from typing import Any

from client_features import CALLED, SPELL, Facts, Features, check, main, near, same
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings


def model(facts: Facts, name: str = "", **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=name or facts.speller, base_url=facts.url, api_key="none", max_retries=0, **options
    )


def chat(facts: Facts) -> None:
    answer = model(facts).invoke(facts.message)
    same(answer.content, facts.message_answer)
    used = answer.usage_metadata
    same([used["input_tokens"], used["output_tokens"]], facts.message_tokens)
    same(answer.response_metadata["finish_reason"], "stop")


def chat_streamed(facts: Facts) -> None:
    chunks = list(model(facts, stream_usage=True).stream(facts.message))
    same("".join(chunk.content for chunk in chunks), facts.message_answer)
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    same(whole.usage_metadata["output_tokens"], facts.message_tokens[1])


async def asynchronous(facts: Facts) -> None:
    answers = await model(facts).abatch([facts.message] * 4)
    same({answer.content for answer in answers}, {facts.message_answer})
    parts = [chunk.content async for chunk in model(facts).astream(facts.message)]
    same("".join(parts), facts.message_answer)


def completions(facts: Facts) -> None:
    """The class's default is a temperature of 0.7 and 256 tokens."""
    one = OpenAI(
        model=facts.speller, base_url=facts.url, api_key="none", temperature=0, max_retries=0
    )
    same(one.invoke(facts.prompt), facts.answer)
    same("".join(one.stream(facts.prompt)), facts.answer)


def embeddings(facts: Facts) -> None:
    """By default it sends token ids of OpenAI's own vocabulary: those are of another model."""
    one = OpenAIEmbeddings(
        model=facts.finder, base_url=facts.url, api_key="none", check_embedding_ctx_length=False
    )
    near(one.embed_query(facts.text), facts.vector)
    same(len(one.embed_documents([facts.text, "8"])), 2)


def tool_calls(facts: Facts) -> None:
    bound = model(facts, facts.tools, seed=0).bind_tools([SPELL])
    question = HumanMessage(facts.message)
    answer = bound.invoke([question])
    called = answer.tool_calls[0]
    same((called["name"], called["args"]), ("spell", CALLED))
    told = ToolMessage("seven", tool_call_id=called["id"])
    second = model(facts, facts.tools, seed=1).bind_tools([SPELL]).invoke([question, answer, told])
    same(json.loads(second.content), facts.person)


def tool_calls_streamed(facts: Facts) -> None:
    chunks = list(model(facts, facts.tools, seed=0).bind_tools([SPELL]).stream(facts.message))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    same((whole.tool_calls[0]["name"], whole.tool_calls[0]["args"]), ("spell", CALLED))


def stop(facts: Facts) -> None:
    word = facts.message_answer.split()[1]
    answer = model(facts).invoke(facts.message, stop=[word])
    same(answer.content, facts.message_answer.partition(word)[0])


def length(facts: Facts) -> None:
    answer = model(facts, max_tokens=2).invoke(facts.message)
    same(answer.response_metadata["finish_reason"], "length")


def refusals(facts: Facts) -> None:
    try:
        model(facts, "gpt-none").invoke(facts.message)
    except Exception as error:
        check("NotFoundError" in type(error).__name__, f"{type(error).__name__}: {error}")
    else:
        raise ValueError("an unknown model answered")


FEATURES: Features = {
    "chat": chat,
    "chat, streamed, with usage": chat_streamed,
    "asynchronous": asynchronous,
    "completions": completions,
    "embeddings": embeddings,
    "tool calls": tool_calls,
    "tool calls, streamed": tool_calls_streamed,
    "stop words": stop,
    "cut by length": length,
    "refusals": refusals,
}

if __name__ == "__main__":
    main(FEATURES)
