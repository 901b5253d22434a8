# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: its routes, endpoints, and the state that they share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tritonctl.frontend import chat, completions, embeddings, errors, metrics, rerank
from tritonctl.frontend.answers import TextGenerator
from tritonctl.frontend.batch_requests import BatchRunner
from tritonctl.frontend.bodies import BodyParser, read_body
from tritonctl.frontend.budgets.from_config import budgets_of, keys_of
from tritonctl.frontend.budgets.headers import invalid_api_key
from tritonctl.frontend.budgets.keys import KeyFile
from tritonctl.frontend.chat import ChatRequest
from tritonctl.frontend.completions import CompletionRequest
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.cors import with_cors
from tritonctl.frontend.draining import Draining
from tritonctl.frontend.embeddings import EmbeddingRequest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.health import HealthEndpoints
from tritonctl.frontend.http_request import (
    CLOSE,
    JSON,
    ClientGoneError,
    HttpRequest,
    Message,
    Receive,
    Send,
)
from tritonctl.frontend.models import Models, RequestTarget
from tritonctl.frontend.openapi import Operation, document
from tritonctl.frontend.rerank import RerankRequest
from tritonctl.frontend.responses import answer as responses
from tritonctl.frontend.responses.request import UNSUPPORTED as OF_RESPONSES
from tritonctl.frontend.responses.request import ResponsesRequest
from tritonctl.frontend.telemetry import Telemetry
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.unread_bodies import UnreadBodies
from tritonctl.frontend.upstream import ClientFactory, TritonServers

_LOG = logging.getLogger("tritonctl.frontend")
_CANCELLED = "cancelled"
_TEXT_TASK = "text_generation"
_OPENAPI_PATH = "/openapi.json"  # like the probes it needs no key
Handler = Callable[[HttpRequest, "AppState"], Awaitable[None]]


@dataclass
class AppState:
    """State shared by all endpoints. `open` creates it in the application's event loop."""

    config: FrontendConfig
    connect: ClientFactory | None = None
    draining: Draining = field(default_factory=Draining)
    in_flight: int = field(default=0, init=False)

    async def open(self) -> None:
        """Create the parts and connect to the servers."""
        self.telemetry = Telemetry.from_config(self.config)
        self.body_parser = BodyParser()
        self.unread_bodies = UnreadBodies(self.config.settings.max_requests)
        self.keys = keys_of(self.config)
        metrics_key_file = self.config.settings.metrics_key_file
        self.metrics_key = None if metrics_key_file is None else KeyFile(metrics_key_file)
        self.budgets = budgets_of(self.config)
        self.budgets.start()
        self.servers = TritonServers(self.config, self.connect)
        await self.servers.open()
        self.models = Models(self.config, self.servers.router)
        self.batch_runner = BatchRunner(self.servers, self.budgets)
        self.generator = TextGenerator(self.servers, self.budgets)
        self.health = HealthEndpoints(self.config, self.servers.router, self.draining)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request, whose body has been read, in the block. Raises ApiError 429."""
        self.refuse_if_full()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def refuse_if_full(self) -> None:
        """Raise ApiError 429 if the maximum number of requests is in flight."""
        if self.in_flight >= self.config.settings.max_requests:
            raise _too_many(self.config.settings.max_requests)

    async def close(self) -> None:
        """Settle budgets, close connections, send the last spans."""
        await self.budgets.close()
        await self.servers.close()
        await self.telemetry.close()


def build_app(
    config: FrontendConfig,
    *,
    connect: ClientFactory | None = None,
    draining: Draining | None = None,
) -> Starlette:
    """Build the application.

    `connect`: creates the client of a server; tests replace it. `draining`: set by the process
    that decides when the frontend ends.
    """
    state = AppState(config, connect, draining or Draining())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await state.open()
        try:
            yield
        finally:
            await state.close()

    endpoints = {
        (method, path): ApiEndpoint(path, state, handle) for method, path, handle in _ROUTES
    }
    routes = [
        Route(path, endpoint, methods=[method]) for (method, path), endpoint in endpoints.items()
    ]
    routes += [Route(path, Probe(state, handle), methods=["GET"]) for path, handle in _PROBES]
    return _Application(
        endpoints,
        config.settings.cors_origins,
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )


class _Application(Starlette):
    """Starlette with a shortcut past its middleware.

    endpoints: by method and path. Only other requests pass Starlette's layers.
    """

    def __init__(
        self,
        endpoints: Mapping[tuple[str, str], ApiEndpoint],
        cors_origins: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # A redirect would name http:// behind a gateway's TLS, and clients would send keys there.
        self.router.redirect_slashes = False
        self._endpoints = endpoints
        self._for_pages = with_cors(self._answer, cors_origins)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or handle a lifespan event."""
        # Web pages get nothing that is for operators.
        is_probe = scope.get("path") in _PROBE_PATHS
        await (self._answer if is_probe else self._for_pages)(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        endpoint = None
        if scope["type"] == "http":
            endpoint = self._endpoints.get((scope["method"], scope["path"]))
        await (endpoint or super().__call__)(scope, receive, send)


@dataclass(frozen=True)
class ApiEndpoint:
    """One route as an ASGI application. Every error has OpenAI's shape."""

    path: str
    state: AppState
    handle: Handler

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = HttpRequest(scope, receive, send)
        request.record.endpoint = self.path
        request.telemetry = self.state.telemetry.start_request(
            request.scope, request.id, request.record
        )
        state = self.state
        try:
            if self.path != _OPENAPI_PATH:
                _authenticate(request, state)
            if scope["method"] == "POST":
                request.body = await _read_body(request, state)
            with state.admit():
                await self.handle(request, state)
        except ClientGoneError:
            request.record.outcome = _CANCELLED
        except ApiError as error:
            await request.refuse(error)
        except Exception:
            _LOG.exception("%s %s failed", request.id, self.path)
            await request.refuse(errors.internal_error())
        finally:
            state.telemetry.record_finished_request(request.telemetry)


@dataclass(frozen=True)
class Probe:
    """A route for operators: not counted, not logged, and not limited by `max_requests`."""

    state: AppState
    handle: Handler

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = HttpRequest(scope, receive, send)
        try:
            await self.handle(request, self.state)
        except ApiError as error:
            await request.refuse(error)


async def _metrics(request: HttpRequest, state: AppState) -> None:
    key = state.metrics_key
    if key is not None and not key.is_in(request.scope["headers"]):
        raise invalid_api_key()
    kind = (b"content-type", metrics.CONTENT_TYPE.encode("ascii"))
    await request.start(200, (kind,))
    await request.finish(state.telemetry.metrics.page())


def _authenticate(request: HttpRequest, state: AppState) -> None:
    tenant = state.keys.tenant_of(request.scope["headers"])
    if tenant is None:
        raise invalid_api_key()
    request.tenant = tenant
    request.client_address = state.keys.client_address(request.scope)
    request.record.tenant = tenant.name or None


async def _chat(request: HttpRequest, state: AppState) -> None:
    body = await _parse_body(request, state, ChatRequest, chat.UNSUPPORTED)
    target = await _resolve_target(request, state, body.model, _TEXT_TASK)
    text = state.config.texts.get(target.model, TextModel())
    await chat.answer(request, body, target, text, state.generator)


async def _responses(request: HttpRequest, state: AppState) -> None:
    body = await _parse_body(request, state, ResponsesRequest, OF_RESPONSES)
    target = await _resolve_target(request, state, body.model, _TEXT_TASK)
    text = state.config.texts.get(target.model, TextModel())
    await responses.answer(request, body, target, text, state.generator)


async def _completions(request: HttpRequest, state: AppState) -> None:
    body = await _parse_body(request, state, CompletionRequest, completions.UNSUPPORTED)
    target = await _resolve_target(request, state, body.model, _TEXT_TASK)
    text = state.config.texts.get(target.model, TextModel())
    await completions.answer(request, body, target, text, state.generator)


async def _embeddings(request: HttpRequest, state: AppState) -> None:
    body = await _parse_body(request, state, EmbeddingRequest, embeddings.UNSUPPORTED)
    target = await _resolve_target(request, state, body.model, "embedding")
    body.check_dimensions(target, is_matryoshka=state.config.matryoshka.get(target.model))
    async with request.cancel_on_disconnect():
        await embeddings.answer(request, body, target, state.batch_runner)


async def _rerank(request: HttpRequest, state: AppState) -> None:
    body = await _parse_body(request, state, RerankRequest, rerank.UNSUPPORTED)
    target = await _resolve_target(request, state, body.model, "rerank")
    with_texts = request.record.endpoint == "/v1/rerank"
    async with request.cancel_on_disconnect():
        await rerank.answer(request, body, target, state.batch_runner, with_texts=with_texts)


async def _resolve_target(
    request: HttpRequest, state: AppState, name: str, task: str
) -> RequestTarget:
    """Resolve the requested model. Raises ApiError if it is not of this task."""
    target = state.models.target(name)
    request.record.model, request.record.adapter = target.model, target.adapter
    await state.models.check(target, task)
    request.telemetry.mark_admitted()
    return target


async def _models(request: HttpRequest, state: AppState) -> None:
    await state.models.list_models(request)


async def _model(request: HttpRequest, state: AppState) -> None:
    await state.models.show_model(request)


async def _live(request: HttpRequest, state: AppState) -> None:
    await state.health.live(request)


async def _ready(request: HttpRequest, state: AppState) -> None:
    await state.health.ready(request)


async def _openapi(request: HttpRequest, _: AppState) -> None:
    await request.answer_json(document(OPERATIONS))


OPERATIONS: Sequence[Operation] = (
    Operation("POST", "/v1/chat/completions", "Answer a conversation", ChatRequest, events=True),
    Operation("POST", "/v1/responses", "Answer items with items", ResponsesRequest, events=True),
    Operation("POST", "/v1/completions", "Continue a text", CompletionRequest, events=True),
    Operation("POST", "/v1/embeddings", "Texts to vectors", EmbeddingRequest),
    Operation("POST", "/v1/rerank", "Rank documents by a query", RerankRequest),
    Operation("POST", "/v2/rerank", "Rank documents, without their texts", RerankRequest),
    Operation("GET", "/v1/models", "The models that are ready, and their aliases"),
    Operation("GET", "/v1/models/{name:path}", "One model"),
    Operation("GET", "/health/live", "Whether this process runs"),
    Operation("GET", "/health/ready", "Whether a model answers"),
)
_ROUTES: Sequence[tuple[str, str, Handler]] = (
    ("POST", "/v1/chat/completions", _chat),
    ("POST", "/v1/responses", _responses),
    ("POST", "/v1/completions", _completions),
    ("POST", "/v1/embeddings", _embeddings),
    ("POST", "/v1/rerank", _rerank),
    ("POST", "/v2/rerank", _rerank),
    ("GET", "/openapi.json", _openapi),
    ("GET", "/v1/models", _models),
    ("GET", "/v1/models/{name:path}", _model),
)
_PROBES: Sequence[tuple[str, Handler]] = (
    ("/health/live", _live),
    ("/health/ready", _ready),
    ("/metrics", _metrics),
)


_PROBE_PATHS = frozenset(path for path, _ in _PROBES)
_PATHS = frozenset(path for path, *_ in (*(route[1:] for route in _ROUTES), *_PROBES))


async def _read_body(request: HttpRequest, state: AppState) -> bytes:
    if request.header(b"expect") is not None:
        state.refuse_if_full()
    settings = state.config.settings
    return await read_body(
        request,
        state.unread_bodies,
        max_bytes=settings.max_body_bytes,
        seconds=settings.body_timeout_seconds,
    )


async def _parse_body(
    request: HttpRequest, state: AppState, body_type: Any, unsupported: Any
) -> Any:
    return await state.body_parser.parse(body_type, request.body, unsupported)


def _too_many(max_requests: int) -> ApiError:
    return ApiError(
        429,
        f"{max_requests} requests are in flight, which is the maximum. Try again soon.",
        type=errors.SERVER,
        code="server_overloaded",
        headers=((b"retry-after", b"1"),),
    )


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answer an unknown route or method."""
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"{request.url.path} does not support {request.method}"
    else:
        path = f"{request.url.path:.200}"
        remedy = "GET /openapi.json lists the endpoints"
        if path.endswith("/") and path.rstrip("/") in _PATHS:
            remedy = f"send to {path.rstrip('/')}"
        text = f"{path} does not exist: {remedy}"
    api_error = ApiError(error.status_code, text, code="not_found")
    closing = CLOSE if "expect" in request.headers else ()
    headers = {key.decode(): value.decode() for key, value in (*JSON, *closing)}
    headers |= error.headers or {}
    return Response(api_error.body, status_code=error.status_code, headers=headers)
