# SPDX-License-Identifier: Apache-2.0
"""Answers while they are read: one that its reader finishes, and readers that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.ensemble_client import WORDS, FakeEnsemble
from tests.unit.frontend.conftest import COMPLETIONS, MODEL, config_of
from tritonctl.errors import ServerError
from tritonctl.frontend.answers import TextGeneration
from tritonctl.frontend.app import AppState
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.protocol.generation import SamplingParameters


async def _unused(*_: object) -> Any:
    raise AssertionError


def request() -> HttpRequest:
    """For texts."""
    scope: dict[str, Any] = {"method": "POST", "path": COMPLETIONS, "headers": [], "client": None}
    return HttpRequest(scope, _unused, _unused)


@asynccontextmanager
async def answering(
    ensemble: FakeEnsemble, http: HttpRequest, answers: int
) -> AsyncIterator[TextGeneration]:
    """So many answers to one prompt of two words."""
    state = AppState(config_of(MODEL), ensemble.connect)
    await state.open()
    try:
        http.telemetry = state.telemetry.start_request(http.scope, http.id, http.record)
        target = RequestTarget(MODEL, MODEL)
        generation = TextGenerationRequest(
            target, ("one two",), SamplingParameters(), answers, "prompt"
        )
        async with state.generator.generate(http, generation) as reading:
            yield reading
    finally:
        await state.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_finished_answer_is_closed_and_no_other(count: int) -> None:
    """Usage and outcome are those of the chunks that were read."""
    ensemble, http = FakeEnsemble(), request()
    texts = [""] * count

    async def work() -> None:
        async with answering(ensemble, http, count) as answers:
            async for index, chunk in answers:
                texts[index] += chunk.text
                if index == 0 and chunk.num_output_tokens == 2:
                    answers.finish(0)
        assert answers.usage.prompt_tokens == 2
        assert answers.usage.completion_tokens == 2 + 4 * (count - 1)

    asyncio.run(work())
    assert texts == ["".join(WORDS[:2])] + ["".join(WORDS)] * (count - 1)
    assert (ensemble.cancelled, ensemble.open) == (1, 0)
    assert (http.record.outcome, http.record.output_tokens) == ("stop", 2 + 4 * (count - 1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_reader_that_fails_leaves_no_stream_open(count: int) -> None:
    """What it had read is recorded, and its error goes on as it is."""
    ensemble, http = FakeEnsemble(), request()

    async def work() -> None:
        async with answering(ensemble, http, count) as answers:
            await anext(aiter(answers))
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(work())
    assert (ensemble.open, ensemble.cancelled) == (0, len(ensemble.asked))
    assert http.record.output_tokens >= 1
    assert http.record.outcome == ""


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_of_a_stream_is_the_client_s_word_for_it(count: int) -> None:
    """One of several ends the others."""
    ensemble, http = FakeEnsemble(script=[ServerError("gone", remedy="")]), request()

    async def work() -> None:
        async with answering(ensemble, http, count) as answers:
            async for _ in answers:
                pass

    with pytest.raises(ApiError) as refused:
        asyncio.run(work())
    assert refused.value.code == "server_unavailable"
    assert ensemble.open == 0
