# SPDX-License-Identifier: Apache-2.0
"""Bodies that are none, or too much: OpenAI's error shape, and nothing of the server's inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.frontend.conftest import CHAT, COMPLETIONS, Served, served
from tritonctl.errors import RequestRejectedError
from tritonctl.frontend.errors import from_tritonctl_error
from tritonctl.protocol.error_map import from_rpc_error

JSON = {"content-type": "application/json"}
LEAKS = ("Traceback", "tritonctl/", "127.0.0.1", "pydantic", "Error(")


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One application for all bodies."""
    with served(max_body_bytes=100_000) as one:
        yield one


def post(shared: Served, body: bytes, path: str = CHAT, **headers: str) -> Any:
    """The response to a body."""
    return shared.http.post(path, content=body, headers=JSON | headers)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"model": "speller"} x', "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"model": "\xff"}', "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_json"),
        (b"[" * 50_000, "invalid_json"),
        (b"null", "invalid_value"),
        (b"[]", "invalid_value"),
        (b"{}", "missing_required_parameter"),
        (b'{"model": "speller", "messages": {}}', "invalid_value"),
        (b'{"model": "speller", "temperature": NaN}', "invalid_value"),
        (b'{"model": "speller", "n": 1e999}', "invalid_value"),
        (b'{"model": "speller", "n": %s}' % (b"9" * 4000), "invalid_value"),
        (b'{"model": "speller", "n": %s}' % (b"9" * 40), "invalid_value"),
    ],
)
def test_what_is_no_request(shared: Served, body: bytes, code: str) -> None:
    """400 each time."""
    answer = post(shared, body)
    assert answer.status_code == 400, answer.text
    error = shared.error(answer)
    assert error["code"] == code, error
    assert len(answer.content) < 1000
    assert not any(leak in answer.text for leak in LEAKS)


def test_too_many_bytes(shared: Served) -> None:
    """413, whatever they are."""
    assert post(shared, b" " * 100_001).status_code == 413
    assert post(shared, b" " * 3_000_000).status_code == 413


def test_too_many_messages(shared: Served) -> None:
    """10,000 are more than a conversation has; as many as may be are read."""
    message = {"role": "user", "content": "x"}
    with served() as frontend:
        answer = frontend.chat(messages=[message] * 10_000)
        assert answer.status_code == 400
        assert frontend.error(answer)["param"] == "messages"
        assert frontend.chat(messages=[message] * 4096).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"content-type": "text/plain"}, {"content-encoding": "gzip"}, {"content-type": ""}]
)
def test_what_is_not_json(shared: Served, headers: dict[str, str]) -> None:
    """415: a page of another site cannot send a form."""
    body = json.dumps({"model": "speller", "prompt": "x"}).encode()
    answer = shared.http.post(COMPLETIONS, content=body, headers=JSON | headers)
    assert answer.status_code == 415
    assert shared.error(answer)["code"] == "media_type"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner)
    ),
    max_leaves=8,
)
FIELDS = ["messages", "stop", "n", "stream", "stream_options", "seed", "temperature", "prompt", "?"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES),
    path=st.sampled_from([CHAT, COMPLETIONS]),
)
def test_any_json(shared: Served, fields: dict[str, Any], path: str) -> None:
    """An answer or a refusal in the right shape, never a failure."""
    answer = post(shared, json.dumps({"model": "speller"} | fields).encode(), path)
    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 400:
        error = shared.error(answer)
        assert error["message"]
        assert not any(leak in answer.text for leak in LEAKS)


REFUSALS = [
    ("in ensemble 'speller', max_tokens is 0, expected at least 1.", 400, "max_tokens"),
    ("in ensemble 'speller', messages: the checkpoint has no chat template.", 400, "prompt"),
    ("in ensemble 'speller', random_seed is 3", 400, "seed"),
    ("in ensemble 'speller', the prompt has 900 tokens and both together", 400, "prompt"),
    ("in ensemble 'speller', lora_name is 'x'; adapters: y", 404, "model"),
    ("unexpected inference input 'lora_name' for model 'speller'", 400, "model"),
    ("Request for unknown model: 'x' is not found", 503, None),
    ("Traceback (most recent call last): File '/srv/model.py'", 500, None),
    ("in ensemble 'speller', Failed to process: /srv/model.py", 500, None),
]


@pytest.mark.parametrize(("message", "status", "param"), REFUSALS)
def test_refusals_of_triton(message: str, status: int, param: str | None) -> None:
    """What is about the request names its field; what is not, says nothing of the inside."""
    error = RequestRejectedError(f"Triton refused the request: {message}", remedy="")
    told = from_tritonctl_error(error, "prompt")
    assert (told.status, told.param) == (status, param)
    assert "/srv" not in told.message


@pytest.mark.parametrize(
    ("code", "status"),
    [(grpc.StatusCode.INVALID_ARGUMENT, 400), (grpc.StatusCode.INTERNAL, 500)],
)
def test_what_a_step_of_one_s_own_refuses(code: grpc.StatusCode, status: int) -> None:
    """With INVALID_ARG its words are the client's, though no field begins them."""
    call = SimpleNamespace(code=lambda: code, details=lambda: "in ensemble 'x', text is empty")
    told = from_tritonctl_error(from_rpc_error(call, "h:1"), "input[1]")
    assert told.status == status
    if status == 400:
        assert (told.message, told.param) == ("text is empty", "input[1]")
    else:
        assert "empty" not in told.message


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("max_tokens is 0, expected at least 1.", "max_tokens is 0, expected at least 1."),
        ("random_seed is 3", "`seed` is 3"),
        ("guided_decoding_guide is refused: no text.", "`response_format` is refused: no text."),
    ],
)
def test_refusals_have_the_words_of_the_client(message: str, told: str) -> None:
    """A tensor's name is of no use to who sent a field."""
    error = RequestRejectedError(f"Triton refused the request: {message}", remedy="")
    assert from_tritonctl_error(error, "prompt").message == told
