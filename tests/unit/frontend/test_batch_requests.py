# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings and /v1/rerank, over a gRPC server that plays Triton with known answers."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from starlette.testclient import TestClient

from tests.fakes.task_server import LIMIT, TaskServer, task_server, vector
from tests.otlp_receiver import otlp_receiver
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.frontend import Frontend
from tritonctl.project.server import Tenant, Tracing

MODELS = ("encoder", "reranker", "speller")
Http = TestClient


@pytest.fixture
def triton() -> Iterator[TaskServer]:
    """A server with an encoder, a reranker and a model for text."""
    with task_server() as actor:
        yield actor


@pytest.fixture
def http(triton: TaskServer) -> Iterator[Http]:
    """The application over it."""
    config = FrontendConfig(servers=(triton.url,), models=MODELS)
    with TestClient(build_app(config), raise_server_exceptions=False) as client:
        yield client


def embed(http: Http, given: Any, **fields: Any) -> Any:
    """The response to texts."""
    return http.post("/v1/embeddings", json={"model": "encoder", "input": given} | fields)


def rank(http: Http, documents: list[Any], path: str = "/v1/rerank", **fields: Any) -> Any:
    """The response to documents, by how often they have an a."""
    body = {"model": "reranker", "query": "a", "documents": documents}
    return http.post(path, json=body | fields)


def test_vectors(http: Http) -> None:
    """More texts than a request of the model's takes, in their order, all tokens counted."""
    texts = ["x" * length for length in range(1, 21)]
    answer = embed(http, texts).json()
    assert answer["object"] == "list"
    assert [one["index"] for one in answer["data"]] == list(range(20))
    assert [one["embedding"] for one in answer["data"]] == [vector(t.encode()) for t in texts]
    assert answer["usage"] == {"prompt_tokens": 210, "total_tokens": 210}
    assert answer["model"] == "encoder"


def test_one_vector_in_base64(http: Http) -> None:
    """What OpenAI's client asks for unless told otherwise."""
    (one,) = embed(http, "hé", encoding_format="base64").json()["data"]
    numbers = struct.unpack("<3f", base64.b64decode(one["embedding"]))
    assert list(numbers) == vector("hé".encode())


def test_numbers_are_exact(http: Http, triton: TaskServer) -> None:
    """Every 32-bit number comes back as itself."""
    triton.factor = 0.1
    (one,) = embed(http, "x").json()["data"]
    (last,) = struct.unpack("<f", struct.pack("<f", 0.1 * ord("x")))
    assert struct.pack("<f", one["embedding"][2]) == struct.pack("<f", last)


def test_dimensions(http: Http) -> None:
    """The first so many."""
    (one,) = embed(http, "xy", dimensions=2).json()["data"]
    assert one["embedding"] == vector(b"xy")[:2]


def test_a_long_text_is_cut_only_when_asked(http: Http, triton: TaskServer) -> None:
    """And its vector says so; the model is told either way."""
    long = "x" * (LIMIT + 1)
    (one,) = embed(http, long, truncate=True).json()["data"]
    assert one["truncated"] is True
    embed(http, "short")
    assert [bool(asked["truncate"][0, 0]) for asked in triton.requests] == [True, False]


def test_token_ids(http: Http, triton: TaskServer) -> None:
    """They are another tokenizer's: refused, with what to do."""
    for ids in ([1, 2], [[1], [2]]):
        answer = embed(http, ids)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "input")
        assert "check_embedding_ctx_length=False" in error["message"]
    assert triton.requests == []


@pytest.mark.parametrize("given", ["", "text"])
def test_a_bad_text(http: Http, given: str) -> None:
    """The field has the item's index."""
    answer = embed(http, [given, "BAD", "x"])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "input[1]"), error


def test_another_task(http: Http) -> None:
    """The endpoint that fits is named, and nothing is asked."""
    error = embed(http, "x", model="speller").json()["error"]
    assert error["code"] == "model_not_supported"
    assert "/v1/chat/completions" in error["message"]
    body = {"model": "encoder", "messages": [{"role": "user", "content": "x"}]}
    error = http.post("/v1/chat/completions", json=body).json()["error"]
    assert "/v1/embeddings" in error["message"]


def test_a_busy_server(http: Http, triton: TaskServer) -> None:
    """429 at once: the client decides when to ask again."""

    def full(_: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")

    triton.before = full
    answer = embed(http, "x")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert len(triton.requests) == 1


def test_ranks(http: Http) -> None:
    """Best first; the index is the document's own; texts come back unless told otherwise."""
    documents = ["b", "aaa", {"text": "aa"}]
    answer = rank(http, documents, top_n=2).json()
    assert answer["results"] == [
        {"index": 1, "relevance_score": 3.0, "document": {"text": "aaa"}},
        {"index": 2, "relevance_score": 2.0, "document": {"text": "aa"}},
    ]
    assert answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] == 6
    plain = rank(http, documents, path="/v2/rerank", top_n=1).json()
    assert plain["results"] == [{"index": 1, "relevance_score": 3.0}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": [{"title": "x"}]}, "documents[0].title"),
        ({"top_n": 0}, "top_n"),
        ({"max_tokens_per_doc": 9}, "max_tokens_per_doc"),
    ],
)
def test_refused_ranks(http: Http, fields: dict[str, Any], param: str) -> None:
    """400 with the field's name."""
    body = {"model": "reranker", "query": "a", "documents": ["x"]} | fields
    answer = http.post("/v1/rerank", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_priority_and_trace_go_along(triton: TaskServer, tmp_path: Path) -> None:
    """A tenant's priority to Triton's queue; each call in a span below its request's."""
    (tmp_path / "alice").write_text("key")
    tenants = {"alice": Tenant(api_key_file=tmp_path / "alice", priority=2)}
    traces: list[str] = []
    triton.before = lambda _, context: traces.append(
        dict(context.invocation_metadata())["traceparent"]
    )
    with otlp_receiver() as receiver:
        settings = Frontend(tracing=Tracing(endpoint=receiver.endpoint, rate=1))
        config = FrontendConfig(
            servers=(triton.url,), models=MODELS, tenants=tenants, settings=settings
        )
        with TestClient(build_app(config), headers={"x-api-key": "key"}) as client:
            assert embed(client, ["x", "yy"]).status_code == 200
            assert rank(client, ["a"]).status_code == 200
    assert triton.priorities == [2, 2]
    spans = {span.name: span for span in receiver.spans}
    calls = [spans["embeddings encoder"], spans["rerank reranker"]]
    sent = [trace.rpartition("-")[0] for trace in traces]  # without its flags
    assert sent == [f"00-{call.trace}-{call.id}" for call in calls]
    assert [call.parent for call in calls] == [
        spans[f"POST /v1/{path}"].id for path in ("embeddings", "rerank")
    ]


def test_a_server_sets_a_default_priority(http: Http, triton: TaskServer) -> None:
    """Where no tenant has one, nothing is sent."""
    embed(http, "x")
    assert triton.priorities == [None]


def test_tokens_of_a_tenant(triton: TaskServer, tmp_path: Path) -> None:
    """Reserved before they are embedded, bytes and 64 where nobody can count; then as counted."""
    (tmp_path / "alice").write_text("key")
    tenants = {"alice": Tenant(api_key_file=tmp_path / "alice", tokens_per_minute=100)}
    config = FrontendConfig(servers=(triton.url,), models=MODELS, tenants=tenants)
    with TestClient(build_app(config), headers={"x-api-key": "key"}) as client:
        answers = [embed(client, text) for text in ("x" * 10, "x" * 27, "x" * 26)]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    remaining = [answer.headers["x-ratelimit-remaining-tokens"] for answer in answers]
    assert remaining == ["26", "90", "0"]
