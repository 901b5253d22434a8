# SPDX-License-Identifier: Apache-2.0
"""`embed`, `classify` and `rerank` of both clients, against a server that plays Triton."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.fakes.task_server import BAD, LIMIT, MAX_ROWS, TaskServer, task_server, vector
from tritonctl.errors import (
    HostError,
    ItemsRejectedError,
    ModelFailedError,
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    UsageError,
)
from tritonctl.frontend.upstream import StreamingClient
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.delivery import Delivery
from tritonctl.protocol.task_usage import TASK_USAGE
from tritonctl.protocol.tasks import TASKS, Entity

pytestmark = pytest.mark.timed

TEXTS = [f"{number} " * (1 + number * 7 % 23) for number in range(100)]
Call = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[TaskServer]:
    """One that answers at once."""
    with task_server() as server:
        yield server


def _sync(url: str, method: str, *arguments: Any, **options: Any) -> Any:
    with TritonClient(url) as client:
        return getattr(client, method)(*arguments, **options)


def _awaited(kind: type[AsyncTritonClient]) -> Call:
    def call(url: str, method: str, *arguments: Any, **options: Any) -> Any:
        async def run() -> Any:
            async with kind(url) as client:
                return await getattr(client, method)(*arguments, **options)

        return asyncio.run(run())

    return call


_async = _awaited(AsyncTritonClient)
every = pytest.mark.parametrize(
    "call", [_sync, _async, _awaited(StreamingClient)], ids=["sync", "async", "frontend's"]
)


@every
def test_each_text_gets_its_vector(server: TaskServer, call: Call) -> None:
    """In the order of the texts, though they travel sorted by length, in full requests."""
    given = call(server.url, "embed", "encoder", TEXTS)
    assert [one.vector.tolist() for one in given] == [vector(text.encode()) for text in TEXTS]
    assert given[0].vector.dtype == np.float32
    assert [one.num_input_tokens for one in given] == [len(text) for text in TEXTS]
    sizes = [len(asked["text_input"]) for asked in server.requests]
    assert sorted(sizes) == [4] + [MAX_ROWS] * 12
    lengths = [[len(row[0]) for row in asked["text_input"]] for asked in server.requests]
    spread = [max(each) - min(each) for each in lengths]
    assert max(spread) < max(map(len, TEXTS)) / 4


@every
def test_several_requests_are_in_flight(server: TaskServer, call: Call) -> None:
    """As many as `in_flight`, not more."""
    server.before = lambda *_: time.sleep(0.02)
    call(server.url, "embed", "encoder", TEXTS, delivery=Delivery(in_flight=3))
    assert server.most_at_once == 3


@every
def test_options_go_with_every_row(server: TaskServer, call: Call) -> None:
    """Left out, the model chooses."""
    call(server.url, "embed", "encoder", ["a", "bb"])
    options = {"prompt_name": "query", "dimensions": 2, "truncate": False}
    given = call(server.url, "embed", "encoder", ["a", "bb"], **options)
    plain, asked = server.requests
    assert set(plain) == {"text_input"}
    assert asked["prompt_name"].tolist() == [[b"query"], [b"query"]]
    assert asked["truncate"].tolist() == [[False], [False]]
    assert asked["dimensions"].dtype == np.int32
    assert [len(one.vector) for one in given] == [2, 2]


@every
def test_a_cut_text_says_so(server: TaskServer, call: Call) -> None:
    """`truncated` is each text's own."""
    given = call(server.url, "embed", "encoder", ["short", "x" * (LIMIT + 1)])
    assert [one.truncated for one in given] == [False, True]


@every
def test_classify(server: TaskServer, call: Call) -> None:
    """Labels best first, of texts and of pairs."""
    first, second = call(server.url, "classify", "classifier", ["ab", "abc"], ["c", ""])
    assert first.labels == ("odd", "even", "neither")
    assert first.scores == (0.75, 0.25, 0.0)
    assert second.labels[0] == "odd"
    [best] = call(server.url, "classify", "classifier", ["ab"], top_k=1)
    assert (best.labels, best.scores) == (("even",), (0.75,))


@every
def test_pairs_that_are_too_few(server: TaskServer, call: Call) -> None:
    """One for each text, or none."""
    with pytest.raises(UsageError, match="2 texts have 1 text_pairs"):
        call(server.url, "classify", "classifier", ["a", "b"], ["c"])


@every
def test_classify_tokens(server: TaskServer, call: Call) -> None:
    """Entities with their places."""
    [given] = call(server.url, "classify_tokens", "names", ["Ada"])
    assert given.entities == (Entity("N", 0.5, 0, 3),)


@every
def test_rerank(server: TaskServer, call: Call) -> None:
    """Best first; the index is the text's own, and equals stay in their order."""
    texts = ["none", "an ant and an ant", "an ant", "nothing"]
    given = call(server.url, "rerank", "reranker", "an", texts)
    assert [(one.index, one.score) for one in given] == [(1, 5.0), (2, 2.0), (0, 0.0), (3, 0.0)]


@every
def test_rerank_of_saturated_scores(server: TaskServer, call: Call) -> None:
    """All 1.0: the logits of a model that has them rank; they are in the result, too."""
    texts = ["an ant", "nothing", "an ant and an ant"]
    given = call(server.url, "rerank", "logits", "an", texts)
    assert [one.index for one in given] == [2, 0, 1]
    assert {one.score for one in given} == {1.0}
    assert [one.logit for one in given] == [25.0, 22.0, 20.0]


@every
def test_images(server: TaskServer, call: Call, tmp_path: Path) -> None:
    """By path or by content; they have no tokens."""
    file = tmp_path / "a.png"
    file.write_bytes(b"\x89PNG")
    first, second = call(server.url, "classify_images", "vision", [file, b"\x89PN"])
    assert (first.labels[0], second.labels[0]) == ("even", "odd")
    assert first.num_input_tokens is None
    [one] = call(server.url, "embed_images", "tower", [str(file)])
    assert one.vector.tolist() == vector(b"\x89PNG")
    with pytest.raises(HostError, match=r"nowhere\.png cannot be read"):
        call(server.url, "embed_images", "tower", ["nowhere.png"])


@every
def test_no_items(server: TaskServer, call: Call) -> None:
    """None in, none out; nothing is asked."""
    assert call(server.url, "embed", "encoder", []) == []
    assert server.requests == []


@every
@pytest.mark.parametrize("vague", [False, True])
def test_bad_items_are_named_and_the_others_are_kept(
    server: TaskServer, call: Call, vague: bool
) -> None:
    """A request is taken apart until the rows to blame are alone, at once where they are named."""
    server.vague, texts = vague, list(TEXTS)
    for index in (7, 60):
        texts[index] += BAD.decode()
    with pytest.raises(ItemsRejectedError) as caught:
        call(server.url, "embed", "encoder", texts)
    error = caught.value
    what = "this text" if vague else "text_input"
    assert error.problem.startswith(f"item 7 of 100: Triton refused the request: {what} is bad")
    most = len(TEXTS) // MAX_ROWS + 1 + 2 * (6 if vague else 2)
    assert len(server.requests) <= most
    assert error.problem.endswith("; 1 more: 60")
    assert list(error.errors) == [7, 60]
    assert isinstance(error.errors[7], RequestRejectedError)
    results: Any = error.results
    assert [number for number, one in enumerate(results) if one is None] == [7, 60]
    assert results[8].vector.tolist() == vector(texts[8].encode())


@every
def test_an_answer_that_is_no_number(server: TaskServer, call: Call) -> None:
    """It would be kept silently: it is an error of this item."""
    with pytest.raises(
        ItemsRejectedError, match="item 1 of 2: encoder answers with embeddings that"
    ):
        call(server.url, "embed", "encoder", ["a", "NAN"])


@every
def test_a_full_queue_is_asked_again(server: TaskServer, call: Call) -> None:
    """With pauses; every text has its answer in the end."""
    refused: list[int] = []

    def busy(asked: Any, context: Any) -> None:
        if len(server.requests) % 3 == 1:
            refused.append(1)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")

    server.before = busy
    given = call(server.url, "embed", "encoder", TEXTS)
    assert len(refused) >= 5
    assert [one.vector.tolist() for one in given] == [vector(text.encode()) for text in TEXTS]


@every
def test_a_queue_that_stays_full(server: TaskServer, call: Call) -> None:
    """ServerBusyError once the retry time is over."""
    server.before = lambda _, context: context.abort(
        grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"
    )
    began = time.monotonic()
    with pytest.raises(ServerBusyError, match="full queue"):
        call(server.url, "embed", "encoder", TEXTS, delivery=Delivery(retry_seconds=0.3))
    assert time.monotonic() - began >= 0.3


@every
def test_a_server_that_comes_back(call: Call) -> None:
    """Requests that broke with it are sent again; nothing is missing or double."""
    with task_server() as first:
        port = int(first.url.rpartition(":")[2])
        stopped, answered = threading.Event(), []

        def dies(*_: Any) -> None:
            if len(first.requests) > 4:
                stopped.set()
                time.sleep(0.5)

        first.before = dies
        caller = threading.Thread(
            target=lambda: answered.append(call(first.url, "embed", "encoder", TEXTS))
        )
        caller.start()
        assert stopped.wait(30)
    with task_server(port=port):
        caller.join(30)
    [given] = answered
    assert [one.vector.tolist() for one in given] == [vector(text.encode()) for text in TEXTS]


def test_requests_that_fail_together_leave_nothing_behind(
    server: TaskServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One error is raised; the others' are no news to anybody."""
    server.before = lambda _, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "no")
    with pytest.raises(ModelFailedError, match="UNIMPLEMENTED"):
        _async(server.url, "embed", "encoder", TEXTS, delivery=Delivery(in_flight=8))
    gc.collect()
    assert "never retrieved" not in caplog.text


@every
def test_a_request_that_takes_too_long(server: TaskServer, call: Call) -> None:
    """`timeout` is each request's."""
    server.before = lambda *_: time.sleep(1)
    with pytest.raises(ServerError, match="did not answer in time"):
        call(server.url, "embed", "encoder", ["a"], delivery=Delivery(timeout=0.1))


@every
def test_an_option_that_the_model_lacks(server: TaskServer, call: Call) -> None:
    """Refused before anything is sent, with what the model takes."""
    with pytest.raises(UsageError, match="names does not support truncate") as caught:
        call(server.url, "classify_tokens", "names", ["a"], truncate=False)
    assert "the model's inputs: text_input" in caught.value.remedy
    with pytest.raises(UsageError, match="dimensions is 0"):
        call(server.url, "embed", "encoder", ["a"], dimensions=0)
    with pytest.raises(UsageError, match="expected a list of texts"):
        call(server.url, "embed", "encoder", "a")
    assert server.requests == []


@every
@pytest.mark.parametrize(
    ("model", "method", "remedy"),
    [
        ("speller", "embed", "tritonctl generate speller PROMPT"),
        ("plain", "embed", "tritonctl infer plain"),
        ("tower", "embed", "tritonctl embed tower --image FILE"),
        ("encoder", "classify", "tritonctl embed encoder FILE"),
        ("reranker", "classify", "tritonctl rerank reranker"),
        ("names", "embed", "tritonctl classify names FILE"),
        ("vision", "classify", "tritonctl classify vision --image FILE"),
        ("classifier", "embed", "tritonctl classify classifier FILE"),
    ],
)
def test_a_model_of_another_task(
    server: TaskServer, call: Call, model: str, method: str, remedy: str
) -> None:
    """Told by its tensors, with what to use instead."""
    with pytest.raises(UsageError, match=rf"{model} .* \(task ") as caught:
        call(server.url, method, model, ["a"])
    assert remedy in caught.value.remedy


@every
def test_a_model_that_is_not_there(server: TaskServer, call: Call) -> None:
    """As everywhere."""
    with pytest.raises(RequestRejectedError, match="unknown model"):
        call(server.url, "embed", "nobody", ["a"])


def test_a_client_asks_once_what_a_model_takes(server: TaskServer) -> None:
    """And anew after a failure: it may be another model then."""
    with TritonClient(server.url) as client:
        client.embed("encoder", ["a"])
        client.embed("encoder", ["b"])
        assert server.looked_at == 1
        with pytest.raises(ItemsRejectedError):
            client.embed("encoder", ["BAD"])
        client.embed("encoder", ["c"])
    assert server.looked_at == 2


def test_calls_at_once_ask_no_more_than_one(server: TaskServer) -> None:
    """What is known of a model stays known while calls are under way."""

    async def calls() -> None:
        async with AsyncTritonClient(server.url) as client:
            await client.embed("encoder", ["a"])
            await asyncio.gather(*(client.embed("encoder", [f"{n}"]) for n in range(8)))

    asyncio.run(calls())
    assert server.looked_at == 1


@pytest.mark.parametrize(
    "numbers",
    [{"in_flight": 0}, {"rows": 0}, {"timeout": -1.0}, {"retry_seconds": float("nan")}],
)
def test_a_delivery_that_would_never_arrive(numbers: dict[str, Any]) -> None:
    """Refused where it is written."""
    with pytest.raises(UsageError, match=f"{next(iter(numbers))} is .*, expected"):
        Delivery(**numbers)


def test_every_task_has_a_way_to_be_asked() -> None:
    """A task without one would raise KeyError instead of its remedy."""
    assert set(TASK_USAGE) == set(TASKS)
    for way in TASK_USAGE.values():
        assert hasattr(TritonClient, way.method)
