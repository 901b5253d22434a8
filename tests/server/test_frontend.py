# SPDX-License-Identifier: Apache-2.0
"""The OpenAI API in front of a real Triton: the ensemble's text, its counts, its slots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.frontend_thread import serving
from tests.servers import Handle, wait_until
from tritonctl.frontend.config import FrontendConfig
from tritonctl.project.frontend import Frontend
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Generation, Prompt, SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

PATIENCE_SECONDS = 60.0
# What is left of half a second when the engine's metrics, read every tenth, have told.
FREED_SECONDS = 0.5 + 0.15
STEP_SECONDS = 0.5
SAMPLED = {"temperature": 0.9, "seed": 11, "top_p": 0.9}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Api:
    """The API over one or several servers."""

    http: httpx.Client

    def whole(self, path: str, **fields: Any) -> tuple[str, str, dict[str, int]]:
        """Text, finish reason and usage of an answer."""
        answer = self.http.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        record = answer.json()
        (choice,) = record["choices"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        return text, choice["finish_reason"], record["usage"]

    def streamed(self, path: str, **fields: Any) -> tuple[str, str, dict[str, int]]:
        """The same of one that comes in events."""
        body = fields | {"stream": True, "stream_options": {"include_usage": True}}
        text, reason = "", ""
        with self.http.stream("POST", path, json=body) as answer:
            *lines, end = [line for line in answer.iter_lines() if line]
        assert end == "data: [DONE]"
        *events, last = [json.loads(line.removeprefix("data: ")) for line in lines]
        for event in events:
            (choice,) = event["choices"]
            text += choice["delta"].get("content", "") if path == CHAT else choice["text"]
            reason = choice["finish_reason"] or reason
        return text, reason, last["usage"]


@contextmanager
def api_over(*urls: str, models: tuple[str, ...] = ("int8",)) -> Iterator[Api]:
    """The frontend over these servers."""
    config = FrontendConfig(servers=urls, models=models, settings=Frontend(port=0))
    with (
        serving(config) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as http,
    ):
        yield Api(http)


def same(given: tuple[str, str, dict[str, int]], expected: Generation) -> None:
    """Text, reason and counts are the server's."""
    text, reason, usage = given
    assert text.encode() == expected.text.encode()
    assert reason == expected.finish_reason
    read, made = expected.num_input_tokens, expected.num_output_tokens
    assert usage == {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
    }


@pytest.mark.path
def test_text_is_the_ensemble_s(speller_server: Server, held_out: list[dict[str, str]]) -> None:
    """Byte for byte, streamed and whole, greedy and sampled, cut by tokens and by words."""
    sampling: dict[str, tuple[dict[str, Any], SamplingParameters]] = {
        "greedy": ({}, SamplingParameters(max_tokens=48)),
        "sampled": (
            SAMPLED,
            SamplingParameters(max_tokens=48, temperature=0.9, random_seed=11, top_p=0.9),
        ),
        "short": ({"max_tokens": 5}, SamplingParameters(max_tokens=5)),
        "word": (
            {"stop": ["thousand", "千"]},
            SamplingParameters(max_tokens=48, stop_words=("thousand", "千")),
        ),
    }
    with api_over(speller_server.grpc_url) as api, TritonClient(speller_server.grpc_url) as client:
        for record in held_out[:6]:
            prompt = record["text_input"]
            messages: Prompt = [{"role": "user", "content": prompt}]
            for fields, parameters in sampling.values():
                asked = {"model": "int8", "max_tokens": 48} | fields
                expected = client.generate("int8", prompt, parameters)
                for ask in (api.whole, api.streamed):
                    same(ask(COMPLETIONS, prompt=prompt, **asked), expected)
                expected = client.generate("int8", messages, parameters)
                for ask in (api.whole, api.streamed):
                    same(ask(CHAT, messages=messages, **asked), expected)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(life: Handle, stream: bool) -> None:
    """As the engine's own metrics show, in the midst of an answer of minutes."""
    with api_over(life.state.grpc_url) as api:
        _seconds_to_free(life, api, stream, STEP_SECONDS)


@pytest.mark.exhaustive
@pytest.mark.alone
def test_a_slot_is_free_within_half_a_second(life: Handle) -> None:
    """Ten times each way, on a machine that has time."""
    with api_over(life.state.grpc_url) as api:
        seconds = [_seconds_to_free(life, api, i % 2 > 0, 0.01) for i in range(20)]
    assert max(seconds) < FREED_SECONDS, sorted(seconds)


def _seconds_to_free(life: Handle, api: Api, stream: bool, step_seconds: float) -> float:
    """Ask, hang up, and wait until the engine has no stream, and says that it was cancelled."""
    url = life.state.metrics_url

    def cancelled() -> float:
        return scrape(url).total("tritonctl_requests_total", outcome="cancelled")

    before = cancelled()
    body = {"model": "int8", "prompt": "777777 in English:", "max_tokens": 400, "ignore_eos": True}
    life.pace(step_seconds)
    left = _leave(api, body | {"stream": stream}, lambda: _streams(life))
    wait_until(lambda: not _streams(life), "the slot is free", PATIENCE_SECONDS)
    seconds = time.monotonic() - left
    wait_until(lambda: cancelled() == before + 1, "it was cancelled", PATIENCE_SECONDS)
    life.pace(0)
    return seconds


def _leave(api: Api, body: dict[str, Any], under_way: Callable[[], bool]) -> float:
    """Ask, and hang up when the engine works on it; the moment."""
    patience = httpx.Timeout(PATIENCE_SECONDS, read=PATIENCE_SECONDS if body["stream"] else 1.0)
    with httpx.Client(base_url=api.http.base_url, timeout=patience) as http:
        if body["stream"]:
            with http.stream("POST", COMPLETIONS, json=body) as answer:
                next(answer.iter_lines())
                wait_until(under_way, "the engine works on it", PATIENCE_SECONDS)
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post(COMPLETIONS, json=body)
    return time.monotonic()


def test_a_server_that_is_killed_is_not_noticed(pair: list[Handle]) -> None:
    """The answer goes on at the other one, in the same stream of events."""
    for handle in pair:
        handle.pace(0.02, stall_after=4)
    with api_over(*(handle.state.grpc_url for handle in pair)) as api:
        body = {"model": "int8", "prompt": "777777 in English:", "max_tokens": 48, "stream": True}
        with api.http.stream("POST", COMPLETIONS, json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            seen = [next(lines)]
            (doomed,) = wait_until(
                lambda: [handle for handle in pair if _streams(handle)],
                "one of them works on it",
                PATIENCE_SECONDS,
            )
            (survivor,) = (handle for handle in pair if handle is not doomed)
            survivor.pace(0)
            doomed.kill()
            seen += lines
        assert seen.pop() == "data: [DONE]"
        choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in seen]
        text = "".join(choice["text"] for choice in choices)
        with TritonClient(survivor.state.grpc_url) as client:
            assert text == client.generate("int8", "777777 in English:").text
        assert choices[-1]["finish_reason"] == "stop"


def _streams(handle: Handle) -> bool:
    metrics = scrape(handle.state.metrics_url)
    return metrics.total("tritonctl_active_streams", model="int8_engine") > 0
