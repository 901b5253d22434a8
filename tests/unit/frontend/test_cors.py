# SPDX-License-Identifier: Apache-2.0
"""`frontend.cors_origins`: web pages of other origins, as a browser asks for them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.unit.frontend.conftest import CHAT, MODEL, served
from tritonctl.project.frontend import Frontend

PAGE = "https://chat.example.org"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
ALLOWED = "access-control-allow-origin"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "one"}]}


@pytest.mark.parametrize("origins", [[PAGE, "http://localhost:5173"], ["*"]])
def test_a_page_of_an_allowed_origin(origins: list[str]) -> None:
    """Its preflight, answers, streams and errors; it may read the request's id and its budgets."""
    expected = "*" if origins == ["*"] else PAGE
    with served(cors_origins=origins) as frontend:
        preflight = frontend.http.options(CHAT, headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers[ALLOWED] == expected
        assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
        for fields in ({}, {"stream": True}, {"temperature": 9}):
            answer = frontend.http.post(CHAT, json=BODY | fields, headers={"origin": PAGE})
            assert answer.status_code == (400 if "temperature" in fields else 200)
            assert answer.headers[ALLOWED] == expected
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in answer.headers
        missing = frontend.http.get("/v1/nothing", headers={"origin": PAGE})
        assert (missing.status_code, missing.headers[ALLOWED]) == (404, expected)


def test_a_page_of_another_origin() -> None:
    """Its browser keeps the answer from it; clients that are no browsers are not affected."""
    with served(cors_origins=[PAGE]) as frontend:
        preflight = frontend.http.options(CHAT, headers=PREFLIGHT | {"origin": "https://evil.test"})
        assert preflight.status_code == 400
        assert ALLOWED not in preflight.headers
        answer = frontend.http.post(CHAT, json=BODY, headers={"origin": "https://evil.test"})
        assert ALLOWED not in answer.headers
        assert frontend.chat().status_code == 200


def test_without_the_setting() -> None:
    """No page may, and preflights are refused as before."""
    with served() as frontend:
        assert frontend.http.options(CHAT, headers=PREFLIGHT).status_code == 405
        answer = frontend.http.post(CHAT, json=BODY, headers={"origin": PAGE})
        assert ALLOWED not in answer.headers


@pytest.mark.parametrize("path", ["/metrics", "/health/ready"])
def test_pages_get_nothing_for_operators(path: str) -> None:
    """Even with `*`."""
    with served(cors_origins=["*"]) as frontend:
        assert ALLOWED not in frontend.http.get(path, headers={"origin": PAGE}).headers


@pytest.mark.parametrize("origin", ["https://a.example/", "a.example", "https://*.example", ""])
def test_what_is_no_origin(origin: str) -> None:
    """A path or a pattern would match nothing."""
    with pytest.raises(ValidationError):
        Frontend(cors_origins=[origin])
