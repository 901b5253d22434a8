# SPDX-License-Identifier: Apache-2.0
"""Clients of rerankers: Cohere's SDK, both of its versions, and LiteLLM's `rerank`.

    rerank_libraries.py URL MODEL QUERY DOCUMENT...

Prints one JSON object: for each client [index, score] of the best two, or its exception's name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import cohere
import litellm

Best = list[tuple[int, float]]


def cohere_v2(url: str, **asked: Any) -> Best:
    answer = cohere.ClientV2(api_key="none", base_url=url).rerank(**asked)
    return [(one.index, one.relevance_score) for one in answer.results]


def cohere_v1(url: str, **asked: Any) -> Best:
    answer = cohere.Client(api_key="none", base_url=url).rerank(**asked)
    return [(one.index, one.relevance_score) for one in answer.results]


def of_litellm(provider: str) -> Callable[..., Best]:
    def ask(url: str, model: str, **asked: Any) -> Best:
        answer = litellm.rerank(model=f"{provider}/{model}", api_base=url, api_key="none", **asked)
        return [(one["index"], one["relevance_score"]) for one in answer.results]

    return ask


CLIENTS: dict[str, Callable[..., Best]] = {
    "cohere, v2": cohere_v2,
    "cohere, v1": cohere_v1,
    "litellm, cohere": of_litellm("cohere"),
    "litellm, jina_ai": of_litellm("jina_ai"),
}


def main() -> None:
    url, model, query, *documents = sys.argv[1:]
    said: dict[str, Any] = {}
    for name, client in CLIENTS.items():
        # Of LiteLLM's providers, Jina's takes the path with it.
        place = f"{url}/v1/rerank" if "jina" in name else url
        try:
            said[name] = client(place, model=model, query=query, documents=documents, top_n=2)
        except Exception as error:  # what a client raises is its answer
            said[name] = f"{type(error).__name__}: {error}"[:2000]
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
