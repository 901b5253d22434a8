# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own library, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import openai
from client_features import (
    AGES,
    CALLED,
    NAMES,
    PERSON,
    SPELL,
    Facts,
    Features,
    check,
    main,
    near,
    same,
)
from responses_features import RESPONSES


def client(facts: Facts, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=facts.url, api_key="none", max_retries=0, **options)


def aclient(facts: Facts) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=facts.url, api_key="none", max_retries=0)


def asked(facts: Facts, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": facts.message}]
    return {"model": facts.speller, "messages": messages, **fields}


def models(facts: Facts) -> None:
    names = {model.id for model in client(facts).models.list()}
    check({facts.speller, facts.finder, facts.tools} <= names, f"the models are {names}")
    same(client(facts).models.retrieve(facts.speller).id, facts.speller)


def chat(facts: Facts) -> None:
    answer = client(facts).chat.completions.create(**asked(facts))
    same(answer.choices[0].message.content, facts.message_answer)
    same(answer.choices[0].finish_reason, "stop")
    same([answer.usage.prompt_tokens, answer.usage.completion_tokens], facts.message_tokens)


def chat_streamed(facts: Facts) -> None:
    options = {"include_usage": True}
    stream = client(facts).chat.completions.create(
        **asked(facts), stream=True, stream_options=options
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    same(text, facts.message_answer)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    same([reason for reason in reasons if reason], ["stop"])
    usage = chunks[-1].usage
    same([usage.prompt_tokens, usage.completion_tokens], facts.message_tokens)


def helper_streamed(facts: Facts) -> None:
    """`chat.completions.stream`: accumulates the events by itself."""
    with client(facts).chat.completions.stream(**asked(facts)) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    same(final.choices[0].message.content, facts.message_answer)


def completions(facts: Facts) -> None:
    answer = client(facts).completions.create(model=facts.speller, prompt=facts.prompt)
    same(answer.choices[0].text, facts.answer)
    stream = client(facts).completions.create(model=facts.speller, prompt=facts.prompt, stream=True)
    same("".join(chunk.choices[0].text for chunk in stream), facts.answer)


def token_ids(facts: Facts) -> None:
    """A prompt as ids, and several."""
    one = client(facts)
    answer = one.completions.create(model=facts.speller, prompt=facts.prompt_ids)
    same(answer.choices[0].text, facts.answer)
    same(answer.usage.prompt_tokens, len(facts.prompt_ids))
    several = one.completions.create(model=facts.speller, prompt=[facts.prompt_ids] * 2)
    same([choice.text for choice in several.choices], [facts.answer] * 2)
    refused(openai.BadRequestError, "prompt", lambda: one.completions.create(
        model=facts.speller, prompt=[10**6]))  # fmt: skip


def length(facts: Facts) -> None:
    answer = client(facts).chat.completions.create(**asked(facts, max_completion_tokens=2))
    same(answer.choices[0].finish_reason, "length")
    same(answer.usage.completion_tokens, 2)


def stop(facts: Facts) -> None:
    word = facts.message_answer.split()[1]
    answer = client(facts).chat.completions.create(**asked(facts, stop=[word]))
    same(answer.choices[0].message.content, facts.message_answer.partition(word)[0])
    same(answer.choices[0].finish_reason, "stop")


def several(facts: Facts) -> None:
    answer = client(facts).chat.completions.create(**asked(facts, n=3))
    same([c.message.content for c in answer.choices], [facts.message_answer] * 3)
    same(answer.usage.completion_tokens, 3 * facts.message_tokens[1])


def logprobs(facts: Facts) -> None:
    answer = client(facts).chat.completions.create(**asked(facts, logprobs=True))
    content = answer.choices[0].logprobs.content
    same("".join(token.token for token in content), facts.message_answer)
    check(all(token.logprob <= 0 for token in content), "a log probability is above 0")


async def asynchronous(facts: Facts) -> None:
    async with aclient(facts) as one:
        calls = [one.chat.completions.create(**asked(facts)) for _ in range(8)]
        answers = await asyncio.gather(*calls)
        same({a.choices[0].message.content for a in answers}, {facts.message_answer})
        stream = await one.chat.completions.create(**asked(facts), stream=True)
        parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
    same("".join(parts), facts.message_answer)


def embeddings(facts: Facts) -> None:
    """The library asks for base64 by itself."""
    answer = client(facts).embeddings.create(model=facts.finder, input=[facts.text, "8"])
    same(len(answer.data), 2)
    near(answer.data[0].embedding, facts.vector)
    check(answer.usage.prompt_tokens > 0, "no tokens are counted")


def embeddings_as_floats(facts: Facts) -> None:
    answer = client(facts).embeddings.create(
        model=facts.finder, input=facts.text, encoding_format="float"
    )
    near(answer.data[0].embedding, facts.vector)


def tool_calls(facts: Facts) -> None:
    """Whole, then with the tool's answer in the conversation."""
    one = client(facts)
    fields = asked(facts, model=facts.tools, tools=[SPELL], seed=0)
    answer = one.chat.completions.create(**fields)
    same(answer.choices[0].finish_reason, "tool_calls")
    message = answer.choices[0].message
    called = message.tool_calls[0]
    same((called.function.name, json.loads(called.function.arguments)), ("spell", CALLED))
    told = {"role": "tool", "tool_call_id": called.id, "content": "seven"}
    messages = [*fields["messages"], message, told]
    second = one.chat.completions.create(**{**fields, "messages": messages, "seed": 1})
    same(json.loads(second.choices[0].message.content), facts.person)


def tool_calls_streamed(facts: Facts) -> None:
    fields = asked(facts, model=facts.tools, tools=[SPELL], seed=0)
    with client(facts).chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    same(final.choices[0].finish_reason, "tool_calls")
    called = final.choices[0].message.tool_calls[0]
    same((called.function.name, json.loads(called.function.arguments)), ("spell", CALLED))


def json_schema(facts: Facts) -> None:
    """By guided decoding: this model knows numbers alone, not JSON."""
    schema = {"name": "person", "schema": PERSON, "strict": True}
    fields = asked(facts, response_format={"type": "json_schema", "json_schema": schema})
    answer = client(facts).chat.completions.create(**fields)
    same(answer.choices[0].finish_reason, "stop")
    person(answer.choices[0].message.content)


def person(text: str) -> None:
    said = json.loads(text)
    check(said["name"] in NAMES and said["age"] in AGES, f"the answer is {said}")


def json_schema_streamed(facts: Facts) -> None:
    """Several choices at once, each whole."""
    schema = {"name": "person", "schema": PERSON, "strict": True}
    fields = asked(facts, response_format={"type": "json_schema", "json_schema": schema}, n=2)
    texts = ["", ""]
    for chunk in client(facts).chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for text in texts:
        person(text)


def required_tool(facts: Facts) -> None:
    """One that must be called, by its name and as one of several."""
    tool = {"type": "function", "function": {"name": "introduce", "parameters": PERSON}}
    named = {"type": "function", "function": {"name": "introduce"}}
    for choice, tools in (("required", [SPELL, tool]), ("required", [tool]), (named, [tool])):
        fields = asked(facts, tools=tools, tool_choice=choice, parallel_tool_calls=False)
        answer = client(facts).chat.completions.create(**fields)
        (called,) = answer.choices[0].message.tool_calls
        arguments = json.loads(called.function.arguments)
        if called.function.name == "introduce":
            person(called.function.arguments)
        else:
            check(type(arguments["number"]) is int, f"the arguments are {arguments}")


def refusals(facts: Facts) -> None:
    """As the exceptions of OpenAI's library."""
    one = client(facts)
    refused(openai.NotFoundError, "model", lambda: one.chat.completions.create(
        **asked(facts, model="gpt-none")))  # fmt: skip
    refused(openai.BadRequestError, "temperature", lambda: one.chat.completions.create(
        **asked(facts, temperature=9)))  # fmt: skip
    refused(openai.BadRequestError, "colour", lambda: one.chat.completions.create(
        **asked(facts), extra_body={"colour": "red"}))  # fmt: skip
    long = [{"role": "user", "content": "7 " * 5000}]
    refused(openai.BadRequestError, None, lambda: one.chat.completions.create(
        **asked(facts, messages=long)), code="context_length_exceeded")  # fmt: skip


def refused(kind: type, param: str | None, call: Any, code: str | None = None) -> None:
    try:
        call()
    except openai.APIStatusError as error:
        check(isinstance(error, kind), f"{type(error).__name__}, expected {kind.__name__}: {error}")
        body = error.body
        check(isinstance(body, dict) and body.get("message"), f"no message: {body}")
        if param:
            same(body.get("param"), param)
        if code:
            same(body.get("code"), code)
    else:
        raise ValueError(f"not refused: {param or code}")


def timeout(facts: Facts) -> None:
    """The client's own, amid an answer that does not end: it frees its place."""
    began = time.monotonic()
    try:
        client(facts, timeout=0.5).chat.completions.create(
            **asked(facts, model=facts.tools, seed=2, max_tokens=5000)
        )
    except openai.APITimeoutError:
        check(time.monotonic() - began < 5, "the timeout came late")
    else:
        raise ValueError("the answer ended")


def left_early(facts: Facts) -> None:
    stream = client(facts).chat.completions.create(
        **asked(facts, model=facts.tools, seed=2, max_tokens=5000), stream=True
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    stream.close()


FEATURES: Features = {
    "list of models": models,
    "chat": chat,
    "chat, streamed, with usage": chat_streamed,
    "chat, the library's own stream": helper_streamed,
    "completions": completions,
    "completions of token ids": token_ids,
    "cut by length": length,
    "stop words": stop,
    "several choices": several,
    "log probabilities": logprobs,
    "asynchronous": asynchronous,
    "embeddings": embeddings,
    "embeddings as floats": embeddings_as_floats,
    "tool calls": tool_calls,
    "tool calls, streamed": tool_calls_streamed,
    "JSON by a schema": json_schema,
    "JSON by a schema, streamed": json_schema_streamed,
    "tools that must be called": required_tool,
    "refusals": refusals,
    "timeout": timeout,
    "leaving a stream": left_early,
    **RESPONSES,
}

if __name__ == "__main__":
    main(FEATURES)
