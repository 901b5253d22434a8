# SPDX-License-Identifier: Apache-2.0
"""Texts through the steps of a real Triton: each gets its own answer; only bad ones an error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.servers import Handle, wait_until
from tests.task_models import (
    JUDGED,
    KEPT,
    LABELS,
    MAX_ROWS,
    MAX_TOKENS,
    SLOW,
    SLOW_QUEUE,
    TASKS,
    WHOLE,
    WIDTH,
    Reference,
    texts,
)
from tritonctl.errors import RequestRejectedError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.metrics import scrape
from tritonctl.protocol.tensors import infer_request
from tritonctl.runtimes.reload import reload
from tritonctl.runtimes.server_state import Server

pytestmark = [pytest.mark.engine, pytest.mark.server]

Answer = dict[str, Any]
CLOSE = 1e-5
CLIENTS = 16


@pytest.fixture
def client(tasks_server: Server) -> Iterator[TritonClient]:
    """Of the server."""
    with TritonClient(tasks_server.grpc_url) as client:
        yield client


@pytest.fixture(scope="module")
def reference(tasks_handle: Handle) -> Reference:
    """What is right."""
    return Reference.of(tasks_handle.project)


def columns(given: dict[str, list[Any]]) -> dict[str, Any]:
    """Texts as bytes, numbers as INT32, one item a row."""
    made = {}
    for name, values in given.items():
        if isinstance(values[0], str | bytes):
            raw = [one.encode() if isinstance(one, str) else one for one in values]
            made[name] = np.array(raw, dtype=object).reshape(-1, 1)
        else:
            kind = np.bool_ if isinstance(values[0], bool) else np.int32
            made[name] = np.array(values, dtype=kind).reshape(-1, 1)
    return made


def ask(client: TritonClient, model: str, **given: list[Any]) -> Answer:
    """One request over gRPC."""
    return client.infer(model, columns(given), timeout=60)


def post(server: Server, path: str, body: Any) -> Any:
    """What the server answers over HTTP; its text where that is an error."""
    address = urlsplit(server.http_url)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=60)
    with closing(connection):
        connection.request("POST", f"/v2/models/{path}", json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
    return json.loads(text) if response.status == HTTPStatus.OK else text


@pytest.mark.path
@pytest.mark.parametrize("model", ["embedding", WHOLE])
def test_embeddings_of_texts_that_meet(
    client: TritonClient, reference: Reference, model: str
) -> None:
    """Many clients, requests of several lengths: each vector is that of its text alone."""
    wanted = texts(64)
    requests = [wanted[start : start + 1 + start % 5] for start in range(60)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda some: ask(client, model, text_input=some), requests))
    for request, answer in zip(requests, answers, strict=True):
        vectors = np.stack([reference.embedding(text) for text in request])
        np.testing.assert_allclose(answer["embedding"], vectors, atol=CLOSE)
        counts = [[reference.tokens(text)] for text in request]
        assert answer["num_input_tokens"].tolist() == counts
        assert {one for [one] in counts} <= set(range(2, MAX_TOKENS + 1))


def test_answers_from_the_cache(
    tasks_server: Server, tasks_handle: Handle, client: TritonClient, reference: Reference
) -> None:
    """Right for every text, prompt, dimension and choice of outputs; a reload begins anew."""

    def hits() -> float:
        return scrape(tasks_server.metrics_url).total("nv_cache_num_hits")

    def ask_everything() -> None:
        some = texts(4)
        for output in ("num_input_tokens", "embedding", "truncated"):
            answer = client.infer(KEPT, columns({"text_input": some}), [output], timeout=60)
            assert list(answer) == [output]
        vectors = ask(client, KEPT, text_input=some)["embedding"]
        np.testing.assert_allclose(vectors, [reference.embedding(t) for t in some], atol=CLOSE)
        prompted = ask(client, KEPT, text_input=["play"], prompt_name=["query"])["embedding"][0]
        np.testing.assert_allclose(prompted, reference.embedding("find : play"), atol=CLOSE)
        assert ask(client, KEPT, text_input=["play"], dimensions=[4])["embedding"].shape == (1, 4)
        assert ask(client, KEPT, text_input=["play"])["embedding"].shape == (1, WIDTH)

    before = hits()
    ask_everything()
    wait_until(lambda: hits() - before == 3, "the outputs of one request, from the cache")
    setting = f"models.{KEPT}.serving.dynamic_batching.max_queue_delay_microseconds=1"
    done = reload(load_project(tasks_handle.project.root, overrides=[setting]), KEPT, Silent())
    assert done.loaded == (f"{KEPT}_tokenizer", f"{KEPT}_engine", f"{KEPT}_cached", KEPT)
    again = hits()
    ask_everything()
    wait_until(lambda: hits() - again == 3, "nothing of the version before")
    index = tasks_handle.project.repository
    [version] = {each.name for name in done.loaded for each in (index / name).glob("*/")}
    assert int(version) > 1


def test_two_engines_between_steps_of_the_projects_own(
    client: TritonClient, reference: Reference
) -> None:
    """Nested, in batches, many at once; a text that the first step refuses fails alone."""
    wanted = [text for text in texts(40) if text]
    requests = [wanted[start : start + 1 + start % 5] for start in range(30)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        spaced = [[f"  {text} \n" for text in some] for some in requests]
        answers = list(pool.map(lambda some: ask(client, JUDGED, text_input=some), spaced))
        refused = pool.submit(ask, client, JUDGED, text_input=["x", " "])
        with pytest.raises(RequestRejectedError, match="text is empty"):
            refused.result()
    for request, answer in zip(requests, answers, strict=True):
        vectors = np.stack([reference.embedding(text) for text in request])
        np.testing.assert_allclose(answer["embedding"], vectors, atol=CLOSE)
        for text, labels in zip(request, answer["label"], strict=True):
            right = reference.scores(text)
            best = sorted(right, key=lambda one: -right[one])
            assert [label.decode() for label in labels] == [one.upper() for one in best]


def test_truncation_is_visible(client: TritonClient) -> None:
    """In every answer; a client that refuses truncation gets the counts in the error."""
    given = ["play", "play " * 200]
    answer = ask(client, "embedding", text_input=given)
    assert answer["truncated"].tolist() == [[False], [True]]
    assert answer["num_input_tokens"].tolist() == [[3], [MAX_TOKENS]]
    with pytest.raises(RequestRejectedError, match=r"text_input\[1\] has 202 tokens, the model re"):
        ask(client, "embedding", text_input=given, truncate=[False, False])
    answer = ask(client, "embedding", text_input=given, truncate=[False, True])
    assert answer["truncated"].tolist() == [[False], [True]]


@pytest.mark.parametrize("model", ["embedding", WHOLE])
def test_prompts_and_dimensions(client: TritonClient, reference: Reference, model: str) -> None:
    """A named prompt stands before the text; a shorter vector has length 1 again."""
    plain = ask(client, model, text_input=["play"])["embedding"][0]
    asked = ask(client, model, text_input=["play"], prompt_name=["query"])["embedding"][0]
    np.testing.assert_allclose(plain, reference.embedding("play"), atol=CLOSE)
    np.testing.assert_allclose(asked, reference.embedding("find : play"), atol=CLOSE)
    short = ask(client, model, text_input=["play"] * 2, dimensions=[4, 4])["embedding"]
    np.testing.assert_allclose(short, [plain[:4] / np.linalg.norm(plain[:4])] * 2, atol=CLOSE)
    with pytest.raises(RequestRejectedError, match="dimensions is 17, expected 1 to 16"):
        ask(client, model, text_input=["play"], dimensions=[17])


def test_labels_with_scores(client: TritonClient, reference: Reference) -> None:
    """Best first, all or some."""
    given = texts(8)
    answer = ask(client, "classification", text_input=given)
    for text, labels, scores in zip(given, answer["label"], answer["score"], strict=True):
        right = reference.scores(text)
        assert [label.decode() for label in labels] == sorted(right, key=lambda one: -right[one])
        np.testing.assert_allclose(scores, sorted(right.values(), reverse=True), atol=CLOSE)
    best = ask(client, "classification", text_input=given, top_k=[1] * 8)
    np.testing.assert_array_equal(best["label"], answer["label"][:, :1])
    assert {label.decode() for label in best["label"][:, 0]} <= {*LABELS}
    with pytest.raises(RequestRejectedError, match="top_k is 0, expected 1 or more"):
        ask(client, "classification", text_input=["play"], top_k=[0])


def test_rerank_knows_query_from_document(client: TritonClient, reference: Reference) -> None:
    """One request ranks many; query and document are no synonyms."""
    documents = texts(7)[1:]
    answer = ask(client, "rerank", query=["player x"] * 6, text_input=documents)
    right = [[reference.relevance("player x", text)] for text in documents]
    np.testing.assert_allclose(answer["score"], right, atol=CLOSE)
    np.testing.assert_allclose(1 / (1 + np.exp(-answer["logit"])), right, atol=CLOSE)
    turned = ask(client, "rerank", query=documents[:1], text_input=["player x"])
    assert abs(turned["score"][0, 0] - right[0][0]) > 10 * CLOSE


def test_entities_are_parts_of_the_text(client: TritonClient, reference: Reference) -> None:
    """Their places are characters; what they join are tokens of one kind."""
    given = ["player 日本 x play", "", "👍🏽 un believable play 日"]
    answer = ask(client, "token_classification", text_input=given)
    for text, [found] in zip(given, answer["entities"], strict=True):
        spans = [(one["start"], one["end"]) for one in json.loads(found)]
        tagged = [(start, end) for tag, start, end in reference.tags(text) if tag != "O"]
        assert all(any(a <= start and end <= b for a, b in spans) for start, end in tagged)
        assert {edge for span in spans for edge in span} <= {e for span in tagged for e in span}
        assert [one["text"] for one in json.loads(found)] == [text[a:b] for a, b in spans]


@pytest.mark.parametrize("model", ["embedding", WHOLE])
def test_a_bad_text_fails_its_request_alone(
    client: TritonClient, reference: Reference, model: str
) -> None:
    """Among others that arrive with it; it says which one, and why."""
    bad = {
        b"\xff": r"text_input\[1\] is not valid UTF-8: byte 0xff at offset 0",
        b"x" * 10_000_000: r"text_input\[1\] has 10000000 characters, and 1000000 of them hold",
    }
    good = texts(12)[1:]

    def answer(given: bytes | str) -> Answer | str:
        try:
            return ask(client, model, text_input=["play", given])
        except RequestRejectedError as error:
            return error.problem

    with ThreadPoolExecutor(CLIENTS) as pool:
        refused = pool.map(answer, bad)
        answers = list(pool.map(answer, good))
        for pattern, problem in zip(bad.values(), refused, strict=True):
            assert isinstance(problem, str)
            assert re.search(pattern, problem)
    for text, one in zip(good, answers, strict=True):
        assert isinstance(one, dict)
        np.testing.assert_allclose(one["embedding"][1], reference.embedding(text), atol=CLOSE)


def test_nothing_and_too_much_are_refused(tasks_server: Server, client: TritonClient) -> None:
    """Over gRPC and HTTP."""
    for model in (*TASKS, WHOLE):
        empty = {"text_input": np.zeros((0, 1), dtype=object)}
        if model == "rerank":
            empty |= {"query": np.zeros((0, 1), dtype=object)}
        with pytest.raises(RequestRejectedError, match=r"expected 1 string elements .* got 0"):
            client.infer(model, empty)
    many = ["play"] * (MAX_ROWS + 1)
    with pytest.raises(RequestRejectedError, match=f"batch-size must be <= {MAX_ROWS}"):
        ask(client, "embedding", text_input=many)
    nothing = {"name": "text_input", "shape": [0, 1], "datatype": "BYTES", "data": []}
    assert "got 0" in post(tasks_server, "embedding/infer", {"inputs": [nothing]})


def test_an_empty_text_is_a_text(client: TritonClient, reference: Reference) -> None:
    """As the reference library has it: special tokens alone. Its neighbours do not change."""
    answer = ask(client, "embedding", text_input=["", "play"])
    assert answer["num_input_tokens"].tolist() == [[2], [reference.tokens("play")]]
    vectors = np.stack([reference.embedding(text) for text in ("", "play")])
    np.testing.assert_allclose(answer["embedding"], vectors, atol=CLOSE)


def test_shapes_that_do_not_go_together(client: TritonClient, reference: Reference) -> None:
    """Two items of one input and three of another; two texts for one item; other types."""
    given = columns({"text_input": ["play", "play"], "top_k": [1, 1, 1]})
    with pytest.raises(RequestRejectedError, match="batch"):
        client.infer("classification", given)
    with pytest.raises(RequestRejectedError, match="shape"):
        client.infer("embedding", {"text_input": columns({"a": ["play", "play"]})["a"].T})
    with pytest.raises(RequestRejectedError, match=r"TYPE_STRING|data-type|datatype"):
        client.infer("embedding", columns({"text_input": [1]}))
    answer = ask(client, "embedding", text_input=["play"])
    np.testing.assert_allclose(answer["embedding"][0], reference.embedding("play"), atol=CLOSE)


def test_over_http(tasks_server: Server, reference: Reference) -> None:
    """Triton's tensors in JSON, and `generate` with plain values."""
    given = ["play", "player 日本"]
    tensor = {"name": "text_input", "shape": [2, 1], "datatype": "BYTES", "data": given}
    answer = post(tasks_server, "embedding/infer", {"inputs": [tensor]})
    outputs = {one["name"]: one for one in answer["outputs"]}
    vectors = np.array(outputs["embedding"]["data"]).reshape(2, -1)
    right = np.stack([reference.embedding(text) for text in given])
    np.testing.assert_allclose(vectors, right, atol=CLOSE)
    best = post(tasks_server, "classification/generate", {"text_input": "play", "top_k": 1})
    scores = reference.scores("play")
    assert best["label"] == max(scores, key=lambda one: scores[one])
    assert best["num_input_tokens"] == 3
    assert "top_k is 0" in post(
        tasks_server, "classification/generate", {"text_input": "play", "top_k": 0}
    )


def test_overload_is_refused_and_who_leaves_harms_nobody(tasks_server: Server) -> None:
    """One place in the engine and a short queue: the next one may come back later."""
    request = infer_request(SLOW, columns({"text_input": ["play"]}), ())
    with grpc.insecure_channel(tasks_server.grpc_url) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        sent = [infer.future(request, timeout=60) for _ in range(SLOW_QUEUE + 7)]
        outcomes = [one.exception() for one in sent]
        refused = [one for one in outcomes if one is not None]
        assert len(sent) - len(refused) >= 1 + SLOW_QUEUE
        assert {one.code() for one in refused} == {grpc.StatusCode.UNAVAILABLE}
        assert "the engine's queue is full: 2 requests wait for a run" in refused[0].details()

        *others, last = [infer.future(request, timeout=60) for _ in range(1 + SLOW_QUEUE)]
        last.cancel()
        assert [one.exception() for one in others] == [None, None]
    wait_until(lambda: "queue_full" in _reasons(tasks_server), "it is counted")


def _reasons(server: Server) -> set[str]:
    """Why requests to the slow model failed."""
    found = scrape(server.metrics_url).samples("tritonctl_errors_total", model=SLOW)
    return {sample.labels["reason"] for sample in found if sample.value}
