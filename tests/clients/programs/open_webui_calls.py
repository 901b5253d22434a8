# SPDX-License-Identifier: Apache-2.0
"""The calls that Open WebUI 0.12.4 makes of a server: its routers/openai.py, retrieval/utils.py.

They are made again here, with its library and its headers; Open WebUI itself does not run.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from client_features import Facts, Features, check, main, near, same

HEADERS = {"Authorization": "Bearer none", "Content-Type": "application/json"}


async def models(facts: Facts) -> None:
    """get_models_request: reads `data`, and of each model `id` and `owned_by`."""
    async with aiohttp.ClientSession() as session, session.get(
        f"{facts.url}/models", headers={"Authorization": "Bearer none"}
    ) as response:  # fmt: skip
        answer = await response.json()
    check({facts.speller} <= {model["id"] for model in answer["data"]}, f"{answer}")


async def chat_streamed(facts: Facts) -> None:
    """generate_chat_completion: the event stream goes to the browser as it is."""
    body = {
        "stream": True,
        "model": facts.speller,
        "messages": [{"role": "user", "content": facts.message}],
        "stream_options": {"include_usage": True},
    }
    async with aiohttp.ClientSession() as session, session.post(
        f"{facts.url}/chat/completions", data=json.dumps(body), headers=HEADERS
    ) as response:  # fmt: skip
        check("text/event-stream" in response.headers["Content-Type"], str(response.headers))
        events = [line async for line in response.content if line.strip()]
    same(events[-1].strip(), b"data: [DONE]")
    chunks: list[dict[str, Any]] = [json.loads(e.removeprefix(b"data: ")) for e in events[:-1]]
    parts = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
    same("".join(parts), facts.message_answer)
    same(chunks[-1]["usage"]["completion_tokens"], facts.message_tokens[1])


async def title(facts: Facts) -> None:
    """tasks.py asks for a chat's title: not streamed, at most 1,000 tokens."""
    body = {
        "model": facts.speller,
        "messages": [{"role": "user", "content": facts.message}],
        "stream": False,
        "max_completion_tokens": 300,
    }
    async with aiohttp.ClientSession() as session, session.post(
        f"{facts.url}/chat/completions", data=json.dumps(body), headers=HEADERS
    ) as response:  # fmt: skip
        answer = await response.json()
    same(answer["choices"][0]["message"]["content"], facts.message_answer)


async def embeddings(facts: Facts) -> None:
    """agenerate_openai_batch_embeddings: floats."""
    async with aiohttp.ClientSession() as session, session.post(
        f"{facts.url}/embeddings", headers=HEADERS,
        json={"input": [facts.text], "model": facts.finder},
    ) as response:  # fmt: skip
        answer = await response.json()
    near(answer["data"][0]["embedding"], facts.vector)


async def refusals(facts: Facts) -> None:
    """It shows `error.message` to the user."""
    body = {"model": "gpt-none", "messages": [{"role": "user", "content": "7"}], "stream": True}
    async with aiohttp.ClientSession() as session, session.post(
        f"{facts.url}/chat/completions", data=json.dumps(body), headers=HEADERS
    ) as response:  # fmt: skip
        answer = await response.json()
    same(response.status, 404)
    check("gpt-none" in answer["error"]["message"], f"{answer}")


FEATURES: Features = {
    "list of models": models,
    "chat, streamed, with usage": chat_streamed,
    "chat": title,
    "embeddings": embeddings,
    "refusals": refusals,
}

if __name__ == "__main__":
    main(FEATURES)
