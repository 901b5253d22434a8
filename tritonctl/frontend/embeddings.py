# SPDX-License-Identifier: Apache-2.0
"""POST /v1/embeddings: texts to vectors, in numbers or base64, with the server's token counts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Field, field_validator

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.models import Target
from tritonctl.frontend.rows import Rows
from tritonctl.frontend.text_fields import ModelName

if TYPE_CHECKING:
    from tritonctl.protocol.tasks import Embedding

MOST_TEXTS = 2048  # OpenAI's
_NO_TOKENS = (
    "token ids are those of another tokenizer: send text "
    "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
)

UNSUPPORTED: Mapping[str, str] = {}


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings; null is the same as leaving a field out."""

    model: ModelName = Field(description="a model or an alias")
    input: str | Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)] = Field(
        description="a text, or up to 2048; token ids are not supported"
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: of little-endian 32-bit numbers"
    )
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="the vector's first so many, for models trained for it"
    )
    user: str | None = Field(None, description="changes nothing in the answer")
    prompt_name: str | None = Field(
        None, description="not OpenAI's: which of the model's prompts stands before the text"
    )
    truncate: bool | None = Field(
        None,
        description="not OpenAI's: cut texts that are too long, and say so by `truncated`; "
        "otherwise they are an error",
    )

    @field_validator("input", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """Token ids have a reason of their own."""
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int | list) and not isinstance(first, bool):
            raise ValueError(_NO_TOKENS)
        return value

    @property
    def texts(self) -> list[str]:
        """All texts."""
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def tensors(self) -> Mapping[str, Sequence[Any]]:
        """The public tensors, as far as the tokenizer step reads them."""
        texts = self.texts
        tensors: dict[str, Sequence[Any]] = {
            "text_input": texts,
            "truncate": [bool(self.truncate)] * len(texts),
        }
        if self.prompt_name is not None:
            tensors["prompt_name"] = [self.prompt_name] * len(texts)
        return tensors


async def answer(exchange: Exchange, asked: EmbeddingRequest, target: Target, rows: Rows) -> None:
    """The vectors, in the texts' order."""
    found = await rows.ask(
        exchange,
        target,
        "input" if isinstance(asked.input, str) else "input[{}]",
        asked.tensors,
        lambda client, delivery: client.embed(
            target.model,
            asked.texts,
            prompt_name=asked.prompt_name,
            dimensions=asked.dimensions,
            truncate=bool(asked.truncate),
            delivery=delivery,
        ),
    )
    write = _base64 if asked.encoding_format == "base64" else _numbers
    usage = exchange.facts.prompt_tokens
    data = {
        "object": "list",
        "data": _data(found, write),
        "model": target.shown,
        "usage": {"prompt_tokens": usage, "total_tokens": usage},
    }
    body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    await exchange.answer(200, body)


def _data(found: Sequence[Embedding], write: Any) -> list[dict[str, Any]]:
    return [
        {"object": "embedding", "index": index, "embedding": write(one.vector)}
        | ({"truncated": True} if one.truncated else {})
        for index, one in enumerate(found)
    ]


def _numbers(vector: Any) -> Any:
    return vector


def _base64(vector: Any) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
