# SPDX-License-Identifier: Apache-2.0
"""LlamaIndex: OpenAILike and OpenAILikeEmbedding, its OpenAI classes for other servers."""

from __future__ import annotations

from typing import Any

from client_features import CALLED, Facts, Features, check, main, near, same
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike


def model(facts: Facts, name: str = "", **options: Any) -> OpenAILike:
    given = {"is_chat_model": True, "temperature": 0, "max_retries": 0, **options}
    return OpenAILike(model=name or facts.speller, api_base=facts.url, api_key="none", **given)


def question(facts: Facts) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=facts.message)]


def chat(facts: Facts) -> None:
    answer = model(facts).chat(question(facts))
    same(answer.message.content, facts.message_answer)
    used = answer.raw.usage
    same([used.prompt_tokens, used.completion_tokens], facts.message_tokens)


def chat_streamed(facts: Facts) -> None:
    parts = [chunk.delta for chunk in model(facts).stream_chat(question(facts))]
    same("".join(part or "" for part in parts), facts.message_answer)


async def asynchronous(facts: Facts) -> None:
    same((await model(facts).achat(question(facts))).message.content, facts.message_answer)
    stream = await model(facts).astream_chat(question(facts))
    same("".join([chunk.delta or "" async for chunk in stream]), facts.message_answer)


def completions(facts: Facts) -> None:
    one = model(facts, is_chat_model=False)
    same(one.complete(facts.prompt).text, facts.answer)
    same("".join(chunk.delta for chunk in one.stream_complete(facts.prompt)), facts.answer)


def embeddings(facts: Facts) -> None:
    one = OpenAILikeEmbedding(model_name=facts.finder, api_base=facts.url, api_key="none")
    near(one.get_text_embedding(facts.text), facts.vector)
    same(len(one.get_text_embedding_batch([facts.text, "8", "9"])), 3)


def spell(number: int) -> str:
    """Spells a number."""
    return str(number)


def tool_calls(facts: Facts) -> None:
    extra = {"is_function_calling_model": True, "additional_kwargs": {"seed": 0}}
    one = model(facts, facts.tools, **extra)
    tool = FunctionTool.from_defaults(fn=spell)
    answer = one.chat_with_tools([tool], user_msg=facts.message)
    called = one.get_tool_calls_from_response(answer)[0]
    same((called.tool_name, called.tool_kwargs), ("spell", CALLED))


def tool_calls_streamed(facts: Facts) -> None:
    extra = {"is_function_calling_model": True, "additional_kwargs": {"seed": 0}}
    one = model(facts, facts.tools, **extra)
    tool = FunctionTool.from_defaults(fn=spell)
    answers = list(one.stream_chat_with_tools([tool], user_msg=facts.message))
    called = one.get_tool_calls_from_response(answers[-1])[0]
    same((called.tool_name, called.tool_kwargs), ("spell", CALLED))


def refusals(facts: Facts) -> None:
    try:
        model(facts, "gpt-none").chat(question(facts))
    except Exception as error:
        check("NotFoundError" in type(error).__name__, f"{type(error).__name__}: {error}")
    else:
        raise ValueError("an unknown model answered")


FEATURES: Features = {
    "chat": chat,
    "chat, streamed": chat_streamed,
    "asynchronous": asynchronous,
    "completions": completions,
    "embeddings": embeddings,
    "tool calls": tool_calls,
    "tool calls, streamed": tool_calls_streamed,
    "refusals": refusals,
}

if __name__ == "__main__":
    main(FEATURES)
