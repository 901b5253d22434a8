# SPDX-License-Identifier: Apache-2.0
"""A request that fits anyhow, to the only server there is, is on its way while it is counted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import WORDS, FakeEnsemble
from tests.unit.frontend.conftest import COMPLETIONS, MODEL, Served, config_of, events, served
from tests.unit.frontend.test_budgets import complete, serving
from tritonctl.errors import ServerBusyError
from tritonctl.frontend.app import build_app
from tritonctl.frontend.async_streams import prefetch_first
from tritonctl.frontend.counting.context import ContextLimits
from tritonctl.frontend.counting.prompts import Count, PromptCounter
from tritonctl.frontend.counting.worker import CountRefusedError

pytestmark = pytest.mark.timed

TEXT = "".join(WORDS)
_TURNS = 200


class Gate:
    """Stands in for PromptCounter.count: ends when `ensemble` was asked, or after a while.

    sent: whether the request was on its way when its count was known, for each that was counted.
    """

    def __init__(self, ensemble: FakeEnsemble, error: Exception | None = None) -> None:
        self.ensemble, self.error = ensemble, error
        self.sent: list[bool] = []

    async def count(self, *_: Any) -> Count:
        """Three tokens."""
        before = len(self.sent)
        for _turn in range(_TURNS):
            if len(self.ensemble.asked) > before:
                break
            await asyncio.sleep(0)
        self.sent.append(len(self.ensemble.asked) > before)
        if self.error is not None:
            raise self.error
        return Count(3, 3)


@pytest.fixture
def gate(frontend: Served, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Of `frontend`, whose model takes 1,000 tokens."""
    return gated(frontend.ensemble, monkeypatch)


def gated(ensemble: FakeEnsemble, monkeypatch: pytest.MonkeyPatch, **error: Any) -> Gate:
    """Counts by a gate from now on."""
    gate = Gate(ensemble, **error)
    monkeypatch.setattr(PromptCounter, "count", gate.count)
    monkeypatch.setattr(PromptCounter, "limits", lambda *_: ContextLimits(1000))
    return gate


def test_it_is_sent_before_its_length_is_known(frontend: Served, gate: Gate) -> None:
    """Streamed or whole, with the same answer and the same counts."""
    answer = frontend.chat(max_tokens=500).json()
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    *chunks, _ = events(frontend.complete(stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert gate.sent == [True, True]
    page = frontend.http.get("/metrics").text
    assert 'placements_total{reason="only",replica="127.0.0.1:1"} 2.0' in page
    # The prompt as it was counted, and what was asked for, not what the guess was.
    assert f'reserved_tokens_total{{model="{MODEL}",tenant="none"}} 522.0' in page


@pytest.mark.parametrize("fields", [{"max_tokens": 1000}, {"n": 2}], ids=["long", "two"])
def test_what_waits_for_its_length(
    frontend: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch, fields: Any
) -> None:
    """An answer that may not fit, and several."""
    monkeypatch.setattr("tests.unit.frontend.test_prefetch._TURNS", 20)
    frontend.complete(**fields)
    assert gate.sent == [False]


def test_of_several_servers_one_is_chosen_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent before."""
    monkeypatch.setattr("tests.unit.frontend.test_prefetch._TURNS", 20)
    ensemble = FakeEnsemble()
    gate = gated(ensemble, monkeypatch)
    config = config_of(MODEL).model_copy(update={"servers": ("127.0.0.1:1", "127.0.0.1:2")})
    with TestClient(build_app(config, connect=ensemble.connect)) as http:
        assert http.post(COMPLETIONS, json={"model": MODEL, "prompt": "one"}).status_code == 200
    assert gate.sent == [False]


def test_a_tenant_with_limits_is_admitted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its limits are; one without any is not."""
    monkeypatch.setattr("tests.unit.frontend.test_prefetch._TURNS", 20)
    ensemble = FakeEnsemble()
    gate = gated(ensemble, monkeypatch)
    with serving(tmp_path, ensemble, concurrency=5) as http:
        complete(http)
        complete(http, {"x-api-key": "b" * 32})
    assert gate.sent == [False, True]


def test_refused_by_its_count_it_is_left(frontend: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the error about the count; the server's call is cancelled."""
    gate = gated(frontend.ensemble, monkeypatch, error=CountRefusedError("messages is empty"))
    frontend.ensemble.script = [30.0]
    assert "messages is empty" in frontend.error(frontend.chat(stream=True))["message"]
    assert gate.sent == [True]
    assert (frontend.ensemble.open, frontend.ensemble.cancelled) == (0, 1)


def test_refused_by_the_server_before_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's word reaches the client all the same."""
    busy = ServerBusyError("UNAVAILABLE: the model has a full queue", remedy="")
    ensemble = FakeEnsemble(script=[busy])
    with served(ensemble) as frontend:
        gate = gated(ensemble, monkeypatch)
        assert frontend.chat().status_code in {429, 503}
    assert gate.sent == [True]


async def _items(count: int, log: list[str]) -> Any:
    try:
        for number in range(count):
            log.append(f"made {number}")
            yield number
            await asyncio.sleep(0)
    finally:
        log.append("closed")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_all_items_come_in_order(count: int) -> None:
    """However many there are; the first is made before anybody asks."""

    async def run() -> list[str]:
        log: list[str] = []
        async with aclosing(_items(count, log)) as items, prefetch_first(items) as chunks:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert log == (["made 0"] if count else ["closed"])
            assert [each async for each in chunks] == list(range(count))
        return log

    assert asyncio.run(run())[-1] == "closed"


def test_an_error_of_nobody_s() -> None:
    """A first item that fails and is never asked for is no matter."""

    async def fails() -> Any:
        raise OSError("nobody reads this")
        yield 0

    async def run() -> None:
        async with prefetch_first(fails()):
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="nobody"):
            async with prefetch_first(fails()) as items:
                await anext(items)

    asyncio.run(run())
