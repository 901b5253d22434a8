# SPDX-License-Identifier: Apache-2.0
"""A server that takes a stream and says nothing more, as clients of the frontend see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.testclient import TestClient

from tests.fakes.task_server import task_server
from tests.unit.frontend.conftest import COMPLETIONS, MODEL, events
from tests.unit.frontend.test_router import hang
from tests.unit.protocol.test_resuming import WORDS, Replica, serving
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.frontend import Frontend

BODY = {"model": MODEL, "prompt": "72", "max_tokens": 9}


@contextmanager
def frontend(*servers: str) -> Iterator[TestClient]:
    """The application, which waits 0.3 s for these."""
    settings = Frontend(silence_seconds=0.3)
    config = FrontendConfig(servers=servers, models=(MODEL, "encoder"), settings=settings)
    with TestClient(build_app(config), raise_server_exceptions=False) as http:
        yield http


def test_the_last_server_falls_silent() -> None:
    """503 where nothing was answered yet; else the stream ends with the same error, unfinished."""
    with serving(Replica(2, hang)) as urls, frontend(*urls) as http:
        whole = http.post(COMPLETIONS, json=BODY)
        assert whole.status_code == 503
        assert whole.json()["error"]["code"] == "server_unavailable"
        *chunks, error = events(http.post(COMPLETIONS, json=BODY | {"stream": True}))
    assert "".join(each["choices"][0]["text"] for each in chunks) == "".join(WORDS[:2])
    assert error["error"]["code"] == "server_unavailable"
    assert "127.0.0.1" not in error["error"]["message"]


def test_another_server_completes_the_answer() -> None:
    """The client sees nothing of it."""
    with serving(Replica(2, hang), Replica(1, hang), Replica()) as urls, frontend(*urls) as http:
        for _ in range(3):
            *chunks, end = events(http.post(COMPLETIONS, json=BODY | {"stream": True}))
            assert end == "[DONE]"
            assert "".join(each["choices"][0]["text"] for each in chunks) == "".join(WORDS)


def test_no_vectors_come() -> None:
    """503 after that time."""
    with task_server() as triton, frontend(triton.url) as http:
        triton.before = lambda _, context: hang(context)
        answer = http.post("/v1/embeddings", json={"model": "encoder", "input": "x"})
    assert answer.status_code == 503
