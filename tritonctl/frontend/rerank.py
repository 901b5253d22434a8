# SPDX-License-Identifier: Apache-2.0
"""POST /v1/rerank and /v2/rerank: rank documents by relevance to a query.

The response suits Jina's and Cohere's clients: `usage` and `meta` hold the same counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from tritonctl.frontend.batch_requests import BatchRunner
from tritonctl.frontend.bodies import Body, Off
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.text_fields import EmptyList, ModelName

if TYPE_CHECKING:
    from tritonctl.protocol.tasks import Relevance

MAX_DOCUMENTS = 2048

UNSUPPORTED: Mapping[str, str] = {
    "max_chunks_per_doc": "a document is not split; leave it out",
    "max_tokens_per_doc": "the model's own limit holds; leave it out",
    "rank_fields": "documents are texts; leave it out",
    "return_embeddings": "rerankers have no embeddings; leave it out",
}


class Document(Body):
    """A document as an object."""

    text: str


class RerankRequest(Body):
    """The body of POST /v1/rerank; null is the same as leaving a field out."""

    model: ModelName = Field(description="a model or an alias")
    query: str = Field(description="what the documents shall answer")
    documents: Annotated[
        list[str | Document], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)
    ] = Field(description="texts, as they are or as `text` of an object")
    top_n: Annotated[int, Field(ge=1)] | None = Field(
        None, description="the best so many; all when absent"
    )
    return_documents: bool | None = Field(
        None, description="results have the texts; by default at /v1/rerank, not at /v2/rerank"
    )
    truncate: bool | None = Field(
        None,
        description="false: a text that is too long is an error. Otherwise its end is cut, and "
        "its result has `truncated`",
    )
    user: str | None = Field(None, description="changes nothing in the answer")
    max_chunks_per_doc: None = Field(None, description="not supported")
    max_tokens_per_doc: None = Field(None, description="not supported")
    rank_fields: EmptyList | None = Field(None, description="not supported")
    return_embeddings: Off | None = Field(None, description="not supported")

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [
            document if isinstance(document, str) else document.text for document in self.documents
        ]

    @property
    def tensors(self) -> Mapping[str, Sequence[Any]]:
        """The public tensors that the tokenizer step reads."""
        texts = self.texts
        tensors: dict[str, Sequence[Any]] = {
            "query": [self.query] * len(texts),
            "text_input": texts,
        }
        if self.truncate is not None:
            tensors["truncate"] = [self.truncate] * len(texts)
        return tensors


async def answer(
    request: HttpRequest,
    body: RerankRequest,
    target: RequestTarget,
    batch_runner: BatchRunner,
    *,
    with_texts: bool,
) -> None:
    """Answer with the best documents first. with_texts: default of `return_documents`."""
    texts = body.texts
    ranking: Sequence[Relevance] = await batch_runner.run(
        request,
        target,
        "documents[{}]",
        body.tensors,
        lambda client, delivery: client.rerank(
            target.model, body.query, texts, truncate=body.truncate, delivery=delivery
        ),
    )
    returned = with_texts if body.return_documents is None else body.return_documents
    tokens = request.record.prompt_tokens
    await request.answer_json(
        {
            "id": f"rerank-{secrets.token_hex(12)}",
            "object": "list",
            "model": target.requested_name,
            "results": [
                _result(relevance, texts[relevance.index] if returned else None)
                for relevance in ranking[: body.top_n]
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"tokens": {"input_tokens": tokens}},
        }
    )


def _result(relevance: Relevance, text: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {"index": relevance.index, "relevance_score": relevance.score}
    if text is not None:
        result["document"] = {"text": text}
    if relevance.truncated:
        result["truncated"] = True
    return result
