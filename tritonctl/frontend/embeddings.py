# SPDX-License-Identifier: Apache-2.0
"""POST /v1/embeddings: texts to vectors, as numbers or base64, with the server's token counts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Field, field_validator

from tritonctl.frontend.batch_requests import BatchRunner
from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.text_fields import ModelName, has_token_ids

if TYPE_CHECKING:
    from tritonctl.protocol.tasks import Embedding

MAX_TEXTS = 2048  # OpenAI's
_IDS_REFUSED = (
    "token ids belong to another tokenizer: send text "
    "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
)

UNSUPPORTED: Mapping[str, str] = {}


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings; null is the same as leaving a field out."""

    model: ModelName = Field(description="a model or an alias")
    input: str | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)] = (
        Field(description="a text, or up to 2048; token ids are not supported")
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
    def _refuse_token_ids(cls, value: Any) -> Any:
        """Explain why token ids are refused."""
        if has_token_ids(value):
            raise ValueError(_IDS_REFUSED)
        return value

    def check_dimensions(self, target: RequestTarget, *, is_matryoshka: bool | None) -> None:
        """Raise ApiError for shorter vectors of a model that was not trained for them.

        is_matryoshka: None: unknown.
        """
        if self.dimensions is not None and is_matryoshka is False:
            raise ApiError(
                400,
                f"`dimensions` is not supported: nothing says that the model "
                f"`{target.requested_name}` was trained for shorter vectors. Leave it out; who "
                "runs the server can allow it with `frontend.matryoshka`",
                code="unsupported_parameter",
                param="dimensions",
            )

    @property
    def texts(self) -> list[str]:
        """The input as a list."""
        return [self.input] if isinstance(self.input, str) else self.input

    @property
    def tensors(self) -> Mapping[str, Sequence[Any]]:
        """The public tensors that the tokenizer step reads."""
        texts = self.texts
        tensors: dict[str, Sequence[Any]] = {
            "text_input": texts,
            "truncate": [bool(self.truncate)] * len(texts),
        }
        if self.prompt_name is not None:
            tensors["prompt_name"] = [self.prompt_name] * len(texts)
        return tensors


async def answer(
    request: HttpRequest, body: EmbeddingRequest, target: RequestTarget, batch_runner: BatchRunner
) -> None:
    """Answer with the vectors in the texts' order."""
    embeddings = await batch_runner.run(
        request,
        target,
        "input" if isinstance(body.input, str) else "input[{}]",
        body.tensors,
        lambda client, delivery: client.embed(
            target.model,
            body.texts,
            prompt_name=body.prompt_name,
            dimensions=body.dimensions,
            truncate=bool(body.truncate),
            delivery=delivery,
        ),
    )
    encode = _base64 if body.encoding_format == "base64" else _numbers
    usage = request.record.prompt_tokens
    data = {
        "object": "list",
        "data": _data(embeddings, encode),
        "model": target.requested_name,
        "usage": {"prompt_tokens": usage, "total_tokens": usage},
    }
    content = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    await request.answer(200, content)


def _data(embeddings: Sequence[Embedding], encode: Any) -> list[dict[str, Any]]:
    return [
        {"object": "embedding", "index": index, "embedding": encode(embedding.vector)}
        | ({"truncated": True} if embedding.truncated else {})
        for index, embedding in enumerate(embeddings)
    ]


def _numbers(vector: Any) -> Any:
    return vector


def _base64(vector: Any) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
