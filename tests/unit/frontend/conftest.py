# SPDX-License-Identifier: Apache-2.0
"""The frontend's application in this process, over an ensemble that answers by a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import FakeEnsemble
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.frontend import Frontend

MODEL = "speller"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def config_of(*models: str, **settings: Any) -> FrontendConfig:
    """Of one server that is never asked; `settings`: fields of `frontend:`."""
    return FrontendConfig(
        servers=("127.0.0.1:1",), models=models or (MODEL,), settings=Frontend(**settings)
    )


@dataclass
class Served:
    """The application, and the ensemble behind it."""

    http: TestClient
    ensemble: FakeEnsemble

    def chat(self, **fields: Any) -> Any:
        """The response to a conversation."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "one two three"}]}
        return self.http.post(CHAT, json=body | fields)

    def complete(self, **fields: Any) -> Any:
        """The response to a text."""
        return self.http.post(COMPLETIONS, json={"model": MODEL, "prompt": "one two"} | fields)

    def error(self, response: Any) -> dict[str, Any]:
        """OpenAI's error object, which has four fields and nothing beside it."""
        record: dict[str, Any] = response.json()
        assert set(record) == {"error"}
        assert set(record["error"]) == {"message", "type", "param", "code"}
        inner: dict[str, Any] = record["error"]
        return inner


@contextmanager
def served(ensemble: FakeEnsemble | None = None, **settings: Any) -> Iterator[Served]:
    """The application, started."""
    ensemble = ensemble or FakeEnsemble()
    app = build_app(config_of(*ensemble.models, **settings), connect=ensemble.connect)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Served(http, ensemble)


@pytest.fixture
def frontend() -> Iterator[Served]:
    """With one model, `speller`."""
    with served() as one:
        yield one


def events(response: Any) -> list[Any]:
    """The data of server-sent events; the last is `[DONE]`, or an error."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    texts = [block.removeprefix("data: ") for block in blocks]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]
