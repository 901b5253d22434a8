# SPDX-License-Identifier: Apache-2.0
"""POST /v1/rerank and /v2/rerank: documents by how well they answer a query.

The shape is Jina's and Cohere's at once: `usage` and `meta` say the same thing to either client.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.models import Target
from tritonctl.frontend.rows import Rows
from tritonctl.frontend.text_fields import ModelName, NoList

if TYPE_CHECKING:
    from tritonctl.protocol.tasks import Relevance

MOST_DOCUMENTS = 2048

UNSUPPORTED: Mapping[str, str] = {
    "max_chunks_per_doc": "a document is not split; leave it out",
    "max_tokens_per_doc": "the model's own limit holds; leave it out",
    "rank_fields": "documents are texts; leave it out",
    "return_embeddings": "there are none; leave it out",
}


class Document(Body):
    """A document as an object."""

    text: str


class RerankRequest(Body):
    """The body of POST /v1/rerank; null is the same as leaving a field out."""

    model: ModelName = Field(description="a model or an alias")
    query: str = Field(description="what the documents shall answer")
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=MOST_DOCUMENTS)] = (
        Field(description="texts, as they are or as `text` of an object")
    )
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
    rank_fields: NoList | None = Field(None, description="not supported")
    return_embeddings: Literal[False] | None = Field(None, description="not supported")

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]

    @property
    def tensors(self) -> Mapping[str, Sequence[Any]]:
        """The public tensors, as far as the tokenizer step reads them."""
        texts = self.texts
        tensors: dict[str, Sequence[Any]] = {
            "query": [self.query] * len(texts),
            "text_input": texts,
        }
        if self.truncate is not None:
            tensors["truncate"] = [self.truncate] * len(texts)
        return tensors


async def answer(
    exchange: Exchange, asked: RerankRequest, target: Target, rows: Rows, *, with_texts: bool
) -> None:
    """The best documents first. with_texts: the default of `return_documents`."""
    texts = asked.texts
    found: Sequence[Relevance] = await rows.ask(
        exchange,
        target,
        "documents[{}]",
        asked.tensors,
        lambda client, delivery: client.rerank(
            target.model, asked.query, texts, truncate=asked.truncate, delivery=delivery
        ),
    )
    returned = with_texts if asked.return_documents is None else asked.return_documents
    tokens = exchange.facts.prompt_tokens
    await exchange.answer_json(
        {
            "id": f"rerank-{secrets.token_hex(12)}",
            "object": "list",
            "model": target.shown,
            "results": [
                _result(one, texts[one.index] if returned else None) for one in found[: asked.top_n]
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"tokens": {"input_tokens": tokens}},
        }
    )


def _result(one: Relevance, text: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {"index": one.index, "relevance_score": one.score}
    if text is not None:
        result["document"] = {"text": text}
    if one.truncated:
        result["truncated"] = True
    return result
