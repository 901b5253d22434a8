# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: routes to endpoints, and the parts that they share, built once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tritonctl.frontend import chat, completions, embeddings, errors, metrics, rerank
from tritonctl.frontend.answers import Answers
from tritonctl.frontend.bodies import parse, read_body
from tritonctl.frontend.budgets.headers import stranger
from tritonctl.frontend.budgets.of_config import budgets_of, keys_of
from tritonctl.frontend.chat import ChatChoices, ChatRequest
from tritonctl.frontend.choices import Choices
from tritonctl.frontend.completions import CompletionChoices, CompletionRequest
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.draining import Draining
from tritonctl.frontend.embeddings import EmbeddingRequest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.exchange import JSON, ClientGoneError, Exchange, Message, Receive, Send
from tritonctl.frontend.health import Health
from tritonctl.frontend.logprobs import vocabulary_of
from tritonctl.frontend.models import Models, Target
from tritonctl.frontend.observing import observing
from tritonctl.frontend.openapi import Operation, document
from tritonctl.frontend.rerank import RerankRequest
from tritonctl.frontend.rows import Rows
from tritonctl.frontend.text_fields import TextFields
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.upstream import Connect, Servers
from tritonctl.frontend.vocabulary import Vocabulary

_LOG = logging.getLogger("tritonctl.frontend")
_CANCELLED = "cancelled"
_TEXT = "text_generation"
_OPEN = "/openapi.json"  # and probes; everything else is for tenants
Handle = Callable[[Exchange, "Parts"], Awaitable[None]]


@dataclass
class Parts:
    """What endpoints share; made when the application starts, in its event loop."""

    config: FrontendConfig
    connect: Connect | None = None
    draining: Draining = field(default_factory=Draining)
    in_flight: int = field(default=0, init=False)

    async def open(self) -> None:
        """Make them."""
        self.observer = observing(self.config)
        self.keys = keys_of(self.config)
        self.budgets = budgets_of(self.config)
        self.budgets.start()
        self.servers = Servers(self.config, self.connect)
        await self.servers.open()
        self.models = Models(self.config, self.servers.router)
        self.rows = Rows(self.servers, self.budgets)
        self.answers = Answers(self.servers, self.budgets)
        self.health = Health(self.config, self.servers.router, self.draining)

    async def close(self) -> None:
        """Close connections."""
        await self.budgets.close()
        await self.servers.close()
        await self.observer.close()


def build_app(
    config: FrontendConfig, *, connect: Connect | None = None, draining: Draining | None = None
) -> Starlette:
    """The application. `connect`: makes the client for a server; tests have their own.

    `draining`: says when it is to end, where somebody else decides that.
    """
    parts = Parts(config, connect, draining or Draining())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await parts.open()
        try:
            yield
        finally:
            await parts.close()

    endpoints = {(method, path): Endpoint(path, parts, handle) for method, path, handle in _ROUTES}
    routes = [
        Route(path, endpoint, methods=[method]) for (method, path), endpoint in endpoints.items()
    ]
    routes += [Route(path, Probe(parts, handle), methods=["GET"]) for path, handle in _PROBES]
    return _Application(
        endpoints,
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )


class _Application(Starlette):
    """Starlette, whose layers a request passes only where they have something to do for it.

    endpoints: by method and path, those that are found by their names alone.
    """

    def __init__(self, endpoints: Mapping[tuple[str, str], Endpoint], **named: Any) -> None:
        super().__init__(**named)
        self._endpoints = endpoints

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or begin and end."""
        endpoint = None
        if scope["type"] == "http":
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
        await (endpoint or super().__call__)(scope, receive, send)


@dataclass(frozen=True)
class Endpoint:
    """One route as an ASGI application: errors in OpenAI's shape, whatever happens."""

    path: str
    parts: Parts
    handle: Handle

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        exchange.facts.endpoint = self.path
        self.parts.observer.begin(exchange)
        parts = self.parts
        parts.in_flight += 1
        try:
            if parts.in_flight > parts.config.settings.max_requests:
                raise _too_many(parts.config.settings.max_requests)
            if self.path != _OPEN:
                _identify(exchange, parts)
            await self.handle(exchange, parts)
        except ClientGoneError:
            exchange.facts.outcome = _CANCELLED
        except ApiError as error:
            await exchange.refuse(error)
        except Exception:
            _LOG.exception("%s %s failed", exchange.id, self.path)
            await exchange.refuse(errors.internal())
        finally:
            parts.in_flight -= 1
            parts.observer.end(exchange)


@dataclass(frozen=True)
class Probe:
    """A route for operators: not counted, not logged, and open while `max_requests` are busy."""

    parts: Parts
    handle: Handle

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        try:
            await self.handle(exchange, self.parts)
        except ApiError as error:
            await exchange.refuse(error)


async def _metrics(exchange: Exchange, parts: Parts) -> None:
    kind = (b"content-type", metrics.CONTENT_TYPE.encode("ascii"))
    await exchange.start(200, (kind,))
    await exchange.finish(parts.observer.metrics.page())


def _identify(exchange: Exchange, parts: Parts) -> None:
    tenant = parts.keys.tenant_of(exchange.scope["headers"])
    if tenant is None:
        raise stranger()
    exchange.tenant = tenant
    exchange.facts.tenant = tenant.name or None


async def _chat(exchange: Exchange, parts: Parts) -> None:
    request = await _read(exchange, parts, ChatRequest, chat.UNSUPPORTED)
    target = await _target(exchange, parts, request.model, _TEXT)
    text = parts.config.texts.get(target.model, TextModel())
    use = request.use(target, text)
    choices = ChatChoices(
        request.asked(target, use),
        include_usage=request.include_usage,
        use=use,
        reasoning=text.reasoning,
        vocabulary=_vocabulary(parts, target) if request.logprobs else None,
        top_logprobs=request.top_logprobs or 0,
    )
    await _respond(exchange, parts, request, choices)


async def _completions(exchange: Exchange, parts: Parts) -> None:
    request = await _read(exchange, parts, CompletionRequest, completions.UNSUPPORTED)
    target = await _target(exchange, parts, request.model, _TEXT)
    choices = CompletionChoices(
        request.asked(target),
        include_usage=request.include_usage,
        echo=bool(request.echo),
        vocabulary=None if request.logprobs is None else _vocabulary(parts, target),
        top_logprobs=request.logprobs or 0,
    )
    await _respond(exchange, parts, request, choices)


def _vocabulary(parts: Parts, target: Target) -> Vocabulary:
    """By the tokenizer that the server has, else by the checkpoint's. Raises ApiError."""
    text = parts.config.texts.get(target.model, TextModel())
    return vocabulary_of(parts.servers.counter.tokenizer(target.model) or text.tokenizer)


async def _embeddings(exchange: Exchange, parts: Parts) -> None:
    request = await _read(exchange, parts, EmbeddingRequest, embeddings.UNSUPPORTED)
    target = await _target(exchange, parts, request.model, "embedding")
    async with exchange.connected():
        await embeddings.answer(exchange, request, target, parts.rows)


async def _rerank(exchange: Exchange, parts: Parts) -> None:
    request = await _read(exchange, parts, RerankRequest, rerank.UNSUPPORTED)
    target = await _target(exchange, parts, request.model, "rerank")
    with_texts = exchange.facts.endpoint == "/v1/rerank"
    async with exchange.connected():
        await rerank.answer(exchange, request, target, parts.rows, with_texts=with_texts)


async def _target(exchange: Exchange, parts: Parts, name: str, task: str) -> Target:
    """The model, which has to be of this task. Raises ApiError."""
    target = parts.models.target(name)
    exchange.facts.model, exchange.facts.adapter = target.model, target.adapter
    await parts.models.check(target, task)
    exchange.observed.admitted()
    return target


async def _models(exchange: Exchange, parts: Parts) -> None:
    await parts.models.listing(exchange)


async def _model(exchange: Exchange, parts: Parts) -> None:
    await parts.models.one(exchange)


async def _live(exchange: Exchange, parts: Parts) -> None:
    await parts.health.live(exchange)


async def _ready(exchange: Exchange, parts: Parts) -> None:
    await parts.health.ready(exchange)


async def _openapi(exchange: Exchange, _: Parts) -> None:
    await exchange.answer_json(document(OPERATIONS))


OPERATIONS: Sequence[Operation] = (
    Operation("POST", "/v1/chat/completions", "Answer a conversation", ChatRequest, events=True),
    Operation("POST", "/v1/completions", "Continue a text", CompletionRequest, events=True),
    Operation("POST", "/v1/embeddings", "Texts to vectors", EmbeddingRequest),
    Operation("POST", "/v1/rerank", "Rank documents by a query", RerankRequest),
    Operation("POST", "/v2/rerank", "Rank documents, without their texts", RerankRequest),
    Operation("GET", "/v1/models", "The models that are ready, and their aliases"),
    Operation("GET", "/v1/models/{name:path}", "One model"),
    Operation("GET", "/health/live", "Whether this process runs"),
    Operation("GET", "/health/ready", "Whether a model answers"),
)
_ROUTES: Sequence[tuple[str, str, Handle]] = (
    ("POST", "/v1/chat/completions", _chat),
    ("POST", "/v1/completions", _completions),
    ("POST", "/v1/embeddings", _embeddings),
    ("POST", "/v1/rerank", _rerank),
    ("POST", "/v2/rerank", _rerank),
    ("GET", "/openapi.json", _openapi),
    ("GET", "/v1/models", _models),
    ("GET", "/v1/models/{name:path}", _model),
)
_PROBES: Sequence[tuple[str, Handle]] = (
    ("/health/live", _live),
    ("/health/ready", _ready),
    ("/metrics", _metrics),
)


async def _read(exchange: Exchange, parts: Parts, kind: Any, unsupported: Any) -> Any:
    settings = parts.config.settings
    body = await read_body(
        exchange, most_bytes=settings.max_body_bytes, seconds=settings.body_timeout_seconds
    )
    return parse(kind, body, unsupported)


async def _respond(exchange: Exchange, parts: Parts, request: TextFields, choices: Choices) -> None:
    exchange.facts.stream = bool(request.stream)
    async with exchange.connected():
        if request.stream:
            await choices.stream(exchange, parts.answers)
        else:
            await choices.answer(exchange, parts.answers)


def _too_many(most: int) -> ApiError:
    return ApiError(
        429,
        f"{most} requests are in flight, as many as may be. Try again soon.",
        type=errors.SERVER,
        code="server_overloaded",
        headers=((b"retry-after", b"1"),),
    )


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Starlette's own: no such route, no such method."""
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"{request.method} is not for {request.url.path}"
    else:
        text = f"there is no {request.url.path}: GET /openapi.json describes what there is"
    told = ApiError(error.status_code, text, code="not_found")
    headers = {key.decode(): value.decode() for key, value in JSON} | dict(error.headers or {})
    return Response(told.body, status_code=error.status_code, headers=headers)
