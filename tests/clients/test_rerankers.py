# SPDX-License-Identifier: Apache-2.0
"""Cohere's SDK and LiteLLM's `rerank`, unmodified, against the frontend's process.

The server behind it plays Triton: its scores are known, and no engine has to be built.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.environments import client_python
from tests.clients.frontend_process import frontend
from tests.clients.test_clients import PROGRAMS
from tests.fakes.task_server import task_server
from tritonctl.frontend.config import FrontendConfig

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

CLIENTS = ("cohere, v2", "cohere, v1", "litellm, cohere", "litellm, jina_ai")
# By how often a document has the query, "a".
DOCUMENTS = ["b", "aaa", "aa"]
BEST = [[1, 3.0], [2, 2.0]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the frontend, before a reranker."""
    with task_server() as triton:
        config = FrontendConfig(servers=(triton.url,), models=("reranker",))
        with frontend(config, tmp_path_factory.mktemp("frontend")) as address:
            yield address


def asked(url: str, model: str) -> dict[str, Any]:
    """What each client says of the documents."""
    command = [str(client_python("rerank")), str(PROGRAMS / "rerank_libraries.py"), url, model, "a"]
    done = subprocess.run(
        [*command, *DOCUMENTS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_the_best_two(url: str) -> None:
    """The server's scores, best first, with the documents' own indices."""
    assert asked(url, "reranker") == dict.fromkeys(CLIENTS, BEST)


def test_an_unknown_model_is_the_clients_own_error(url: str) -> None:
    """404, with the message."""
    said = asked(url, "nobody")
    assert said.keys() == set(CLIENTS)
    for name, problem in said.items():
        assert isinstance(problem, str), name
        assert problem.startswith("NotFoundError"), f"{name}: {problem}"
        assert "`nobody` does not exist" in problem, name
