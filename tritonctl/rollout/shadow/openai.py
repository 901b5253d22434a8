# SPDX-License-Identifier: Apache-2.0
"""Requests of OpenAI's API as the frontend would ask Triton: read by the frontend's own code.

Imported where a project has a frontend: the frontend's packages are an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tritonctl.frontend import chat, completions, embeddings, rerank
from tritonctl.frontend.asked import TextAsked
from tritonctl.frontend.bodies import Body, check_type, parse
from tritonctl.frontend.chat import ChatRequest
from tritonctl.frontend.completions import CompletionRequest
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.embeddings import EmbeddingRequest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.models import Target, target_of
from tritonctl.frontend.rerank import RerankRequest
from tritonctl.frontend.text_models import TextModel
from tritonctl.protocol.generation import generation_request
from tritonctl.protocol.tasks import QUERY, TEXT, Row, RowOptions, ServedTask, rows_request
from tritonctl.rollout.shadow.rest import NotUnderstoodError

_KINDS: Mapping[str, tuple[type[Body], Mapping[str, str]]] = {
    "/v1/chat/completions": (ChatRequest, chat.UNSUPPORTED),
    "/v1/completions": (CompletionRequest, completions.UNSUPPORTED),
    "/v1/embeddings": (EmbeddingRequest, embeddings.UNSUPPORTED),
    "/v1/rerank": (RerankRequest, rerank.UNSUPPORTED),
    "/v2/rerank": (RerankRequest, rerank.UNSUPPORTED),
}


def openai_question(
    path: str, headers: Mapping[str, str], content: bytes, config: FrontendConfig
) -> tuple[str, Callable[[ServedTask], Any]] | None:
    """The model, and what makes its ModelInferRequest; None of a path that asks no model.

    headers: names in lower case. Of several prompts the first, and one answer to it. Raises
    NotUnderstoodError.
    """
    known = _KINDS.get(path.partition("?")[0])
    if known is None:
        return None

    def header(name: bytes) -> bytes | None:
        value = headers.get(name.decode("ascii"))
        return None if value is None else value.encode("latin-1")

    try:
        check_type(header)
        body: Any = parse(known[0], content, known[1])
        target = target_of(config.models, config.settings.aliases, body.model)
        return target.model, _asking(body, target, config)
    except ApiError as error:
        raise NotUnderstoodError(f"the frontend refuses it: {error.code}") from error


def _asking(body: Body, target: Target, config: FrontendConfig) -> Callable[[ServedTask], Any]:
    match body:
        case ChatRequest():
            text = config.texts.get(target.model, TextModel())
            return _text(body.asked(target, body.use(target, text)))
        case CompletionRequest():
            return _text(body.asked(target))
        case EmbeddingRequest():
            rows = [Row({TEXT: text.encode()}) for text in body.texts]
            options = RowOptions(
                prompt_name=body.prompt_name,
                dimensions=body.dimensions,
                truncate=bool(body.truncate),
            )
            return lambda served: rows_request(served, rows, options)
        case RerankRequest():
            query = body.query.encode()
            documents = [Row({QUERY: query, TEXT: text.encode()}) for text in body.texts]
            return lambda served: rows_request(
                served, documents, RowOptions(truncate=body.truncate)
            )
        case _:
            raise NotUnderstoodError("of no kind that is compared")


def _text(asked: TextAsked) -> Callable[[ServedTask], Any]:
    request = generation_request(asked.target.model, asked.prompts[0], asked.sampling)
    return lambda _: request
