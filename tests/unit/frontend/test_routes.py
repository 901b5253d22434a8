# SPDX-License-Identifier: Apache-2.0
"""Paths that are nearly those of the API."""

from __future__ import annotations

import pytest

from tests.unit.frontend.conftest import CHAT, COMPLETIONS, Served


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("POST", COMPLETIONS),
        ("POST", "/v1/embeddings"),
        ("POST", "/v2/rerank"),
        ("GET", "/health/live"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
    ],
)
def test_a_trailing_slash(frontend: Served, method: str, path: str) -> None:
    """404 names the right path: a redirect behind TLS would send keys in the clear."""
    answer = frontend.http.request(method, f"{path}/", follow_redirects=False)
    assert answer.status_code == 404
    assert "location" not in answer.headers
    assert frontend.error(answer)["message"] == f"{path}/ does not exist: send to {path}"


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "/v1", "/", "/v1/models/"])
def test_no_path_redirects(frontend: Served, path: str) -> None:
    """Whatever it is."""
    answer = frontend.http.get(f"http://testserver{path}", follow_redirects=False)
    assert answer.status_code == 404
    assert frontend.error(answer)["code"] in {"not_found", "model_not_found"}
