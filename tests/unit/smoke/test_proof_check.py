# SPDX-License-Identifier: Apache-2.0
"""`smoke` against the answers that a build's proof has kept, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tritonctl.project.schema import Project
from tritonctl.protocol.tensors import infer_request, infer_response
from tritonctl.smoke.model_under_test import ModelUnderTest
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.proof_check import Cases, cases_of, reference_check
from tritonctl.smoke.recording_client import RecordedAnswer, RecordingClient

# What the model answers to a text: its outputs without the batch dimension.
Model = Callable[[str], Mapping[str, Sequence[Any]]]

BOUNDS = {"cosine": 0.99999, "score": 0.0001, "label": 1.0, "entities": 1.0}
VECTORS = {"one": [1.0, 0.0], "two": [0.6, 0.8], "three": [0.0, 1.0]}
SCORES = {"good": [0.9, 0.1], "bad": [0.3, 0.7], "so so": [0.5, 0.5]}
LABELS = ["good", "bad"]


class ScriptedClient:
    """Answers each request with what `model` says of each of its texts."""

    seconds = 1.0

    def __init__(self, model: Model) -> None:
        self.model = model
        self.sizes: list[int] = []

    def send_all(self, *requests: Any, stream: bool) -> list[RecordedAnswer]:
        """As RecordingClient does."""
        assert not stream
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> RecordedAnswer:
        texts = [text.decode() for text in _texts(request)]
        self.sizes.append(len(texts))
        try:
            rows = [self.model(text) for text in texts]
        except ValueError as error:
            return RecordedAnswer(error=str(error))
        arrays = {name: _array([row[name] for row in rows]) for name in rows[0]}
        made = infer_request("m", arrays, ())
        response = service_pb2.ModelInferResponse(raw_output_contents=made.raw_input_contents)
        for tensor in made.inputs:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        return RecordedAnswer([response], finals=1)


def _texts(request: Any) -> list[bytes]:
    response = service_pb2.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return [bytes(text) for text in infer_response(response)["text_input"].reshape(-1)]


def _array(rows: Sequence[Sequence[Any]]) -> Any:
    if isinstance(rows[0][0], str):
        return np.array([[text.encode() for text in row] for row in rows], dtype=object)
    kind = {float: np.float32, int: np.int32, bool: np.bool_}[type(rows[0][0])]
    return np.array(rows, dtype=kind)


def checked(
    model: Model, cases: Mapping[str, Mapping[str, Any]], *, batch: int = 4, **bounds: float
) -> tuple[SmokeOutcome, ScriptedClient]:
    """The outcome for a model, where the reference answered as `cases` says."""
    client = ScriptedClient(model)
    outputs = [
        {"name": name, "data_type": "TYPE_FP32", "dims": ["-1"]}
        for name in next(iter(cases.values()))
    ]
    texts = [{"name": "text_input", "data_type": "TYPE_STRING", "dims": ["1"]}]
    config = {"name": "m", "max_batch_size": batch, "input": texts, "output": outputs}
    subject = ModelUnderTest(
        "m", {"m": config}, cast("RecordingClient", client), "again", decoupled=False
    )
    listed = [{"input": {"text_input": text}, "expected": cases[text]} for text in cases]
    return reference_check(subject, Cases("the library 1.0", BOUNDS | bounds, listed)), client


def embedded(text: str) -> dict[str, Any]:
    """As the reference: a vector and the count of its tokens."""
    return {"embedding": VECTORS[text], "num_input_tokens": [len(text)], "truncated": [False]}


EMBEDDINGS: dict[str, dict[str, Any]] = {
    text: {"embedding": VECTORS[text], "num_input_tokens": len(text), "truncated": False}
    for text in VECTORS
}


def test_the_same_vectors_pass() -> None:
    """Each alone, then all together; the vector's length is not the cosine's affair."""
    outcome, client = checked(embedded, EMBEDDINGS)
    assert outcome.status == "pass", outcome.detail
    assert outcome.detail == "3 answers equal to the library 1.0's, alone and in batches"
    assert client.sizes == [1, 1, 1, 3]


def test_a_model_without_batches_is_asked_one_by_one() -> None:
    """Triton would refuse a batch of it."""
    outcome, client = checked(embedded, EMBEDDINGS, batch=1)
    assert outcome.status == "pass"
    assert client.sizes == [1, 1, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"embedding": [0.8, 0.6]}, "'two': cosine 0.960000, at least 0.99999"),
        ({"embedding": [1.0, 2.0, 3.0]}, "'two': cosine 0.000000"),
        ({"num_input_tokens": [4]}, "'two': num_input_tokens 4, not 3"),
        ({"truncated": [True]}, "'two': truncated True, not False"),
    ],
)
def test_another_answer_fails(change: dict[str, Any], words: str) -> None:
    """With the text, what came and what was wanted; and the request, to ask it again."""
    outcome, _ = checked(
        lambda text: embedded(text) | (change if text == "two" else {}), EMBEDDINGS, batch=1
    )
    assert outcome.status == "fail"
    assert words in outcome.detail
    assert "two" in json.dumps(outcome.request)


def test_a_vector_that_depends_on_its_neighbours_fails() -> None:
    """Padding that is not masked shows in the batch alone."""
    seen: list[str] = []

    def model(text: str) -> dict[str, Any]:
        seen.append(text)
        together = len(seen) > len(VECTORS)
        return embedded(text) | ({"embedding": [0.7, 0.7]} if together and text == "one" else {})

    outcome, _ = checked(model, EMBEDDINGS)
    assert outcome.status == "fail"
    assert "'one': cosine 0.70" in outcome.detail


def test_an_error_fails_with_its_words() -> None:
    """As the server says them."""

    def model(text: str) -> dict[str, Any]:
        raise ValueError("out of memory")

    outcome, _ = checked(model, EMBEDDINGS)
    assert (outcome.status, outcome.detail) == ("fail", "a request of 1: out of memory")


def classified(text: str) -> dict[str, Any]:
    """As the reference: best first."""
    pairs = sorted(zip(SCORES[text], LABELS, strict=True), key=lambda pair: -pair[0])
    return {"label": [label for _, label in pairs], "score": [score for score, _ in pairs]}


CLASSES = {text: classified(text) for text in SCORES}


def test_the_same_labels_pass() -> None:
    """Labels with equal scores may come in any order."""

    def model(text: str) -> dict[str, Any]:
        answer = classified(text)
        return answer | ({"label": ["bad", "good"]} if text == "so so" else {})

    assert checked(model, CLASSES)[0].status == "pass"


def test_labels_that_are_swapped_fail() -> None:
    """The scores are right then; a bound below 1 allows some answers, not half of them."""

    def model(text: str) -> dict[str, Any]:
        answer = classified(text)
        return answer | {"label": answer["label"][::-1]}

    outcome, _ = checked(model, CLASSES, label=0.9)
    assert outcome.status == "fail"
    assert "'good': label bad, not good" in outcome.detail


def test_a_bound_allows_some_other_labels() -> None:
    """As the proof itself does for int8."""

    def model(text: str) -> dict[str, Any]:
        answer = classified(text)
        return answer | ({"label": ["bad", "good"]} if text == "good" else {})

    assert checked(model, CLASSES)[0].status == "fail"
    assert checked(model, CLASSES, label=0.6)[0].status == "pass"


def test_other_scores_fail() -> None:
    """Softmax for sigmoid keeps the order."""
    outcome, _ = checked(
        lambda text: classified(text) | {"score": [0.69, 0.31]}, CLASSES, score=0.01
    )
    assert outcome.status == "fail"
    assert "a score differs by" in outcome.detail


def test_entities() -> None:
    """Label and place; the score is not kept."""
    entity = {"label": "PER", "start": 0, "end": 3}
    cases = {"Ada lives": {"entities": [entity]}}
    right = json.dumps([entity | {"score": 0.9}])
    moved = json.dumps([entity | {"score": 0.9, "end": 4}])
    assert checked(lambda _: {"entities": [right]}, cases)[0].status == "pass"
    outcome, _ = checked(lambda _: {"entities": [moved]}, cases)
    assert "entities [('PER', 0, 4)], not [('PER', 0, 3)]" in outcome.detail


def test_an_output_that_is_missing_fails() -> None:
    """A model of another task has been put in its place."""
    outcome, _ = checked(lambda _: {"other": [1.0]}, EMBEDDINGS)
    assert (outcome.status, "no output embedding" in outcome.detail) == ("fail", True)


def test_a_proof_that_cannot_be_read_is_said() -> None:
    """Not built here: the check is skipped with its reason. The task tensors has no proof."""
    model = {"checkpoint": "gone", "engine": {"builder": "onnxruntime", "precision": "fp32"}}
    tasks = {"m": model | {"task": "embedding"}, "t": model | {"task": "tensors"}}
    project = Project.at(Path("nowhere"), {"schema": "tritonctl/v1", "models": tasks})
    reason = cases_of(project, "m")
    assert isinstance(reason, str)
    assert "gone" in reason
    assert cases_of(project, "t") is None
    assert cases_of(project, "foreign") is None
    assert cases_of(None, "m") is None
