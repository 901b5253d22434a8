# SPDX-License-Identifier: Apache-2.0
"""Convert OpenAI API requests to Triton requests with the frontend's code.

Imported only if a project has a frontend: its packages are an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tritonctl.frontend import chat, completions, embeddings, rerank
from tritonctl.frontend.bodies import Body, check_content_type, parse
from tritonctl.frontend.chat import ChatRequest
from tritonctl.frontend.completions import CompletionRequest
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.embeddings import EmbeddingRequest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.models import RequestTarget, resolve_target
from tritonctl.frontend.rerank import RerankRequest
from tritonctl.frontend.responses.request import UNSUPPORTED as OF_RESPONSES
from tritonctl.frontend.responses.request import ResponsesRequest
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.protocol.generation import generation_request
from tritonctl.protocol.tasks import QUERY, TEXT, RowOptions, ServedTask, TaskRow, rows_request
from tritonctl.rollout.shadow.rest_requests import NotUnderstoodError

_KINDS: Mapping[str, tuple[type[Body], Mapping[str, str]]] = {
    "/v1/chat/completions": (ChatRequest, chat.UNSUPPORTED),
    "/v1/responses": (ResponsesRequest, OF_RESPONSES),
    "/v1/completions": (CompletionRequest, completions.UNSUPPORTED),
    "/v1/embeddings": (EmbeddingRequest, embeddings.UNSUPPORTED),
    "/v1/rerank": (RerankRequest, rerank.UNSUPPORTED),
    "/v2/rerank": (RerankRequest, rerank.UNSUPPORTED),
}


def openai_question(
    path: str, headers: Mapping[str, str], content: bytes, config: FrontendConfig
) -> tuple[str, Callable[[ServedTask], Any]] | None:
    """Return the model and a factory of its ModelInferRequest; None if the path has no model.

    headers: names in lower case. Of several prompts only the first is used, with one answer. Raises
    NotUnderstoodError.
    """
    kind = _KINDS.get(path.partition("?")[0])
    if kind is None:
        return None

    def header(name: bytes) -> bytes | None:
        value = headers.get(name.decode("ascii"))
        return None if value is None else value.encode("latin-1")

    try:
        check_content_type(header)
        body: Any = parse(kind[0], content, kind[1])
        target = resolve_target(config.models, config.settings.aliases, body.model)
        return target.model, _request_factory(body, target, config)
    except ApiError as error:
        raise NotUnderstoodError(f"the frontend refuses it: {error.code}") from error


def _request_factory(
    body: Body, target: RequestTarget, config: FrontendConfig
) -> Callable[[ServedTask], Any]:
    match body:
        case ChatRequest() | ResponsesRequest():
            text = config.texts.get(target.model, TextModel())
            return _text_request_factory(
                body.to_generation(target, body.resolve_tools(target, text))
            )
        case CompletionRequest():
            return _text_request_factory(body.to_generation(target))
        case EmbeddingRequest():
            rows = [TaskRow({TEXT: text.encode()}) for text in body.texts]
            options = RowOptions(
                prompt_name=body.prompt_name,
                dimensions=body.dimensions,
                truncate=bool(body.truncate),
            )
            return lambda task: rows_request(task, rows, options)
        case RerankRequest():
            query = body.query.encode()
            documents = [TaskRow({QUERY: query, TEXT: text.encode()}) for text in body.texts]
            return lambda task: rows_request(task, documents, RowOptions(truncate=body.truncate))
        case _:
            raise NotUnderstoodError("this kind of request is not compared")


def _text_request_factory(generation: TextGenerationRequest) -> Callable[[ServedTask], Any]:
    request = generation_request(
        generation.target.model, generation.prompts[0], generation.sampling
    )
    return lambda _: request
