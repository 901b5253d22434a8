# SPDX-License-Identifier: Apache-2.0
"""Tenants at the API: their keys, what is reserved and given back, what they are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import FakeEnsemble, chunks_of
from tests.unit.frontend.conftest import CHAT, COMPLETIONS, MODEL
from tritonctl.errors import ServerError
from tritonctl.frontend.app import _ROUTES as ROUTES
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig, secret_files
from tritonctl.project.schema import Project
from tritonctl.project.server import Tenant

KEYS = {"alice": "a" * 32, "bob": "b" * 32}
SECRET = "s" * 32


@contextmanager
def serving(
    folder: Path, ensemble: FakeEnsemble | None = None, **limits: Any
) -> Iterator[TestClient]:
    """With Alice, who has these limits, and Bob, who has none; the client sends Alice's key."""
    for name, key in {**KEYS, "gateway": SECRET}.items():
        (folder / name).write_text(f"{key}\n", encoding="utf-8")
    config = FrontendConfig(
        servers=("127.0.0.1:1",),
        models=(MODEL,),
        tenants={
            "alice": Tenant(api_key_file=folder / "alice", **limits),
            "bob": Tenant(api_key_file=folder / "bob"),
        },
        gateway_secret_file=folder / "gateway",
    )
    app = build_app(config, connect=(ensemble or FakeEnsemble()).connect)
    with TestClient(app, headers={"x-api-key": KEYS["alice"]}) as http:
        yield http


def complete(http: TestClient, headers: Mapping[str, str] | None = None, **fields: Any) -> Any:
    """A prompt of two words, which is 71 tokens at most, and four tokens of an answer."""
    body = {"model": MODEL, "prompt": "one two", "max_tokens": 4} | fields
    return http.post(COMPLETIONS, json=body, headers=headers)


def remaining(response: Any) -> int:
    """Tokens, as the client is told."""
    return int(response.headers["x-ratelimit-remaining-tokens"])


def test_a_stranger(tmp_path: Path) -> None:
    """401 in OpenAI's shape for everything but probes and the description, whatever is sent."""
    ensemble = FakeEnsemble()
    with serving(tmp_path, ensemble) as http:
        for method, path, _ in ROUTES:
            response = http.request(method, path, headers={"x-api-key": "x"})
            assert (response.status_code == 401) is (path != "/openapi.json"), path
        for headers in ({"x-api-key": "x"}, {"x-api-key": "", "x-tritonctl-tenant": "bob"}):
            for response in (complete(http, headers), http.get("/v1/models", headers=headers)):
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
        assert http.get("/health/live", headers={"x-api-key": "x"}).status_code == 200
    assert ensemble.asked == []


def test_the_gateway_s_word_for_a_tenant(tmp_path: Path) -> None:
    """Beside its secret: Bob has no limits, which no header tells."""
    with serving(tmp_path, requests_per_minute=5) as http:
        said = {"x-tritonctl-tenant": "bob", "x-tritonctl-gateway": SECRET}
        assert "x-ratelimit-limit-requests" not in complete(http, said).headers
        claimed = complete(http, {"x-tritonctl-tenant": "bob", "x-tritonctl-gateway": "guess"})
        assert claimed.headers["x-ratelimit-remaining-requests"] == "4"


def test_reserved_and_given_back(tmp_path: Path) -> None:
    """The prompt's bound and max_tokens while it lasts, what `usage` says afterwards."""
    with serving(tmp_path, tokens_per_minute=1000) as http:
        assert remaining(complete(http)) == 1000 - 75
        assert remaining(complete(http, n=2, stream=True)) == 1000 - 6 - 150
        assert remaining(complete(http, prompt=["one", "two"])) == 1000 - 6 - 10 - 2 * 71


def test_over_budget(tmp_path: Path) -> None:
    """429 as OpenAI's, and the model is not asked."""
    ensemble = FakeEnsemble()
    with serving(tmp_path, ensemble, tokens_per_minute=78) as http:
        assert complete(http).status_code == 200
        refused = complete(http)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "tokens"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 59 < int(refused.headers["retry-after"]) <= 61
        assert (refused.headers["x-ratelimit-limit-tokens"], remaining(refused)) == ("78", 72)
        never = complete(http, max_tokens=8)
        assert (never.status_code, never.headers["x-should-retry"]) == (429, "false")
    assert len(ensemble.asked) == 1


def test_an_answer_of_unknown_length(tmp_path: Path) -> None:
    """Nothing can be reserved: the field is named."""
    with serving(tmp_path, tokens_per_minute=1000) as http:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "one"}]}
        refused = http.post(CHAT, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_a_request_that_fails(tmp_path: Path) -> None:
    """Before its first token it costs nothing, later what came."""
    failure = ServerError("gone", remedy="")
    ensemble = FakeEnsemble(script=[failure])
    with serving(tmp_path, ensemble, tokens_per_minute=1000) as http:
        assert complete(http).status_code == 503
        ensemble.script = [*chunks_of(["a", "b"], "", prompt_tokens=5), failure]
        assert complete(http).status_code == 503
        ensemble.script = None
        assert remaining(complete(http)) == 1000 - 7 - 75


def test_a_stream_that_goes_on_elsewhere(tmp_path: Path) -> None:
    """Each token counts once: what the second server was told of the first one's is not its own."""
    chunks = chunks_of(["a", "b", "c", "d"], prompt_tokens=5)
    resumed = [*chunks[:2], *(replace(chunk, resumes=1) for chunk in chunks[2:])]
    with serving(tmp_path, FakeEnsemble(script=resumed), tokens_per_minute=1000) as http:
        before = remaining(complete(http))
        assert remaining(complete(http)) == before - 9


def test_requests_in_flight(tmp_path: Path) -> None:
    """One at a time; the next comes in when it has ended."""
    ensemble = FakeEnsemble(script=[0.5, *chunks_of(["a"])])
    with serving(tmp_path, ensemble, concurrency=1) as http:
        first = threading.Thread(target=complete, args=(http,))
        first.start()
        while not ensemble.open:
            pass
        refused = complete(http)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        first.join()
        assert complete(http).status_code == 200


@pytest.mark.parametrize("priority", [None, 2])
def test_priority(tmp_path: Path, priority: int | None) -> None:
    """Triton's own."""
    ensemble = FakeEnsemble()
    with serving(tmp_path, ensemble, priority=priority) as http:
        messages = [{"role": "user", "content": "one"}]
        http.post(CHAT, json={"model": MODEL, "messages": messages})
    assert ensemble.asked[0].more["queueing"].priority == priority


@pytest.mark.parametrize("guided", [True, False])
def test_guides_name_their_tenant(tmp_path: Path, guided: bool) -> None:
    """The engine shares the time that guides cost by tenant; other requests do not name theirs."""
    ensemble = FakeEnsemble()
    schema = {"name": "n", "schema": {"type": "object"}}
    guide = {"response_format": {"type": "json_schema", "json_schema": schema}}
    with serving(tmp_path, ensemble) as http:
        messages = [{"role": "user", "content": "one"}]
        body = {"model": MODEL, "messages": messages, **(guide if guided else {})}
        http.post(CHAT, json=body)
    assert ensemble.asked[0].more["queueing"].tenant == ("alice" if guided else None)


def test_what_a_project_says(tmp_path: Path) -> None:
    """The gateway's table; paths as the process sees them, in a container, too; no secret."""
    (tmp_path / "alice.key").write_text(SECRET)
    model = {"checkpoint": "unused", "engine": {"builder": "unused", "precision": "fp32"}}
    tenants = {"alice": {"api_key_file": "alice.key", "tokens_per_minute": 9, "priority": 1}}
    ledger = {"redis": "redis://r:6379/0", "password_file": "redis.password"}
    project = Project.at(
        tmp_path,
        {
            "schema": "tritonctl/v1",
            "models": {"m": model},
            "gateway": {"tenants": tenants, "frontend_secret_file": "secret"},
            "frontend": {"ledger": ledger},
        },
    )
    assert secret_files(project) == {
        "gateway_api_key_alice": tmp_path / "alice.key",
        "gateway_frontend_secret": tmp_path / "secret",
        "frontend_redis_password": tmp_path / "redis.password",
    }
    here = FrontendConfig.of(project, ["127.0.0.1:8001"])
    here.write(tmp_path / "frontend.json")
    assert SECRET not in (tmp_path / "frontend.json").read_text()
    assert FrontendConfig.read(tmp_path / "frontend.json") == here
    assert here.tenants["alice"].api_key_file == tmp_path / "alice.key"
    placed = FrontendConfig.of(project, ["triton:8001"], folder=Path("/run/secrets"))
    assert placed.tenants["alice"].api_key_file == Path("/run/secrets/gateway_api_key_alice")
    assert placed.gateway_secret_file == Path("/run/secrets/gateway_frontend_secret")
    assert placed.settings.ledger is not None
    assert placed.settings.ledger.password_file == Path("/run/secrets/frontend_redis_password")


@pytest.mark.parametrize("url", ["http://r", "redis://:secret@r/0", "redis://u:secret@r/0"])
def test_a_ledger_that_cannot_be(tmp_path: Path, url: str) -> None:
    """Another scheme; a password where everybody reads it."""
    with pytest.raises(ValueError, match="redis"):
        FrontendConfig.model_validate(
            {"servers": ["x:1"], "models": ["m"], "settings": {"ledger": {"redis": url}}}
        )
