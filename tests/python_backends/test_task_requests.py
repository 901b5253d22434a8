# SPDX-License-Identifier: Apache-2.0
"""A request's tensors through a task's steps, one by one or inside the engine: the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tasklib.graph_task import GraphTask, GraphWork
from tasklib.last_steps import EntitiesStep, LabelsStep, MatryoshkaStep
from tasklib.task_file import EmbeddingInfo, TaskDefinition, TextSettings
from tasklib.text_requests import TextRequests
from textlib.errors import EngineFailedError, ModelConfigurationError, RequestError
from textlib.triton.parameters import ModelParameters
from tokenizers import Tokenizer, processors

from tests import sample_tokenizers

TEXT = TextSettings(16, 0, ("input_ids", "attention_mask"))
EMBEDDING = TaskDefinition("embedding", TEXT, embedding=EmbeddingInfo(3, normalized=True))
RERANK = TaskDefinition("rerank", TextSettings(16, 0, ("input_ids", "token_type_ids"), pair=True))
TOKENS = TaskDefinition("token_classification", TEXT, labels=["O", "X"])
CLASSES = TaskDefinition("classification", TEXT, labels=["bad", "good"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a WordPiece tokenizer with [CLS] and [SEP]."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer.from_file(str(sample_tokenizers.word_piece(folder)))
    ids = made.get_vocab()
    made.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    return sample_tokenizers.save(made, folder).parent


def request(*texts: str, **others: list[Any]) -> dict[str, NDArray[Any]]:
    """Columns of one request, texts as UTF-8."""
    columns = {"text_input": [text.encode() for text in texts], **others}
    return {
        name: np.array(values, dtype=object if isinstance(values[0], bytes) else None).reshape(
            -1, 1
        )
        for name, values in columns.items()
    }


def parameters(**values: str) -> ModelParameters:
    """Of a config.pbtxt."""
    return ModelParameters("m", values)


def test_requests_are_encoded_together_and_padded_apart(tokenizer: Path) -> None:
    """Each to its own longest text."""
    texts = TextRequests(tokenizer, EMBEDDING)

    first, second = texts.encode([request("play", "play play play"), request("play " * 30)])

    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["input_ids"].shape == (2, 5)
    assert first["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert first["num_input_tokens"].tolist() == [[3], [5]]
    assert first["truncated"].tolist() == [[False], [False]]
    assert second["input_ids"].shape == (1, 16)
    assert second["truncated"].tolist() == [[True]]
    assert first["num_input_tokens"].dtype == np.int32
    assert first["truncated"].dtype == np.bool_


@pytest.mark.parametrize(("words", "length"), [(1, 8), (6, 8), (7, 16), (30, 16)])
def test_lengths_are_rounded_up_where_only_equal_ones_join(
    tokenizer: Path, words: int, length: int
) -> None:
    """Never beyond what the model reads."""
    [encoded] = TextRequests(tokenizer, EMBEDDING, multiple=8).encode([request("play " * words)])

    assert isinstance(encoded, dict)
    assert encoded["input_ids"].shape == (1, length)
    assert encoded["num_input_tokens"].tolist() == [[min(words + 2, 16)]]


def test_a_bad_text_fails_its_request_alone(tokenizer: Path) -> None:
    """With its tensor and its index."""
    bad = request("play", "play")
    bad["text_input"][1, 0] = b"\xff"
    empty = {"text_input": np.zeros((0, 1), dtype=object)}
    odd = request("play", "play", truncate=[True])

    answers = TextRequests(tokenizer, EMBEDDING).encode([bad, request("play"), empty, {}, odd])

    assert isinstance(answers[1], dict)
    assert [str(one).split(":")[0] for one in answers if isinstance(one, RequestError)] == [
        "text_input[1] is not valid UTF-8",
        "text_input has no items, expected one text or more.",
        "text_input has no items, expected one text or more.",
        "text_input has 2 items, another tensor has a different number.",
    ]


def test_the_query_comes_first(tokenizer: Path) -> None:
    """Its errors are called by its name, the document's by text_input."""
    texts = TextRequests(tokenizer, RERANK)
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    pair = library.encode("play", "player plays")

    [encoded] = texts.encode([request("player plays", query=[b"play"])])
    [bad] = texts.encode([request("player", query=[b"\xff"])])

    assert isinstance(encoded, dict)
    assert encoded["input_ids"].tolist() == [pair.ids]
    assert encoded["token_type_ids"].tolist() == [pair.type_ids]
    assert str(bad).startswith("query[0] is not valid UTF-8")


def test_offsets_only_for_token_classification(tokenizer: Path) -> None:
    """Padded with -1."""
    [with_offsets] = TextRequests(tokenizer, TOKENS).encode([request("play", "play play")])
    [without] = TextRequests(tokenizer, CLASSES).encode([request("play")])

    assert isinstance(with_offsets, dict)
    assert with_offsets["offsets"].tolist() == [
        [[-1, -1], [0, 4], [-1, -1], [-1, -1]],
        [[-1, -1], [0, 4], [5, 9], [-1, -1]],
    ]
    assert isinstance(without, dict)
    assert "offsets" not in without


def test_settings_of_a_whole_request() -> None:
    """top_k and dimensions make the answer's shape: all items have the same."""
    scores = np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32)
    labels = LabelsStep(CLASSES)

    assert labels.answer({"top_k": np.array([[1], [1]])}, scores)["label"].tolist() == [
        [b"good"],
        [b"bad"],
    ]
    with pytest.raises(RequestError, match=r"top_k has the values \[1, 2\]"):
        labels.check({"top_k": np.array([[1], [2]])})
    with pytest.raises(RequestError, match="top_k is 0"):
        labels.check({"top_k": np.array([[0]])})
    with pytest.raises(RequestError, match="dimensions is 4, expected 1 to 3"):
        MatryoshkaStep(EMBEDDING).check({"dimensions": np.array([[4]])})
    with pytest.raises(ModelConfigurationError, match="embedding has no `labels`"):
        LabelsStep(EMBEDDING)
    with pytest.raises(ModelConfigurationError, match="classification has no `embedding`"):
        MatryoshkaStep(CLASSES)


def _answer(task: GraphTask, sent: dict[str, NDArray[Any]], output: Any) -> dict[str, Any]:
    [work] = task.prepare_all([sent])
    assert isinstance(work, GraphWork), work
    return work.answer({task.outputs[0]: output})


def test_an_engine_that_is_the_whole_model_answers_like_its_steps(tokenizer: Path) -> None:
    """Entities need the text, and offsets that only the tokenizer knows."""
    texts = request("player plays 日本", "play")
    [encoded] = TextRequests(tokenizer, TOKENS).encode([texts])
    assert isinstance(encoded, dict)
    scores = np.zeros((*encoded["input_ids"].shape, 2), dtype=np.float32)
    scores[:, :, 1] = 1
    apart = EntitiesStep(TOKENS).answer({**texts, **encoded}, scores)["entities"]
    known = parameters(inline_encoder_tokenizer="true", inline_entities="true")

    whole = GraphTask(TOKENS, tokenizer, known, TEXT.inputs, ["token_scores"])
    answer = _answer(whole, texts, scores)

    assert answer["entities"].tolist() == apart.tolist()
    assert [one["text"] for one in json.loads(apart[0, 0])] == ["player plays 日本"]
    assert answer["num_input_tokens"].tolist() == encoded["num_input_tokens"].tolist()
    [bad] = whole.prepare_all([{"text_input": np.array([[b"\xff"]], dtype=object)}])
    assert str(bad).startswith("text_input[0] is not valid UTF-8")


def test_an_engine_that_does_the_last_step(tokenizer: Path) -> None:
    """Its requests bring the graph's inputs and that step's own."""
    engine = GraphTask(
        CLASSES, tokenizer, parameters(inline_labels="true"), TEXT.inputs, ["scores"]
    )
    ids = {"input_ids": np.ones((1, 3)), "attention_mask": np.ones((1, 3))}

    answer = _answer(engine, {**ids, "top_k": np.array([[1]])}, np.array([[0.3, 0.7]]))

    assert answer["label"].tolist() == [[b"good"]]
    [refused] = engine.prepare_all([{**ids, "top_k": np.array([[0]])}])
    assert str(refused) == "top_k is 0, expected 1 or more."
    [missing] = engine.prepare_all([{"input_ids": ids["input_ids"]}])
    assert str(missing) == "attention_mask is missing: the graph reads it."


def test_what_a_request_brings_outlives_its_memory(tokenizer: Path) -> None:
    """Triton takes it back before the graph has run."""
    engine = GraphTask(
        EMBEDDING, tokenizer, parameters(inline_matryoshka="true"), TEXT.inputs, ["embedding"]
    )
    dimensions = np.array([[2]])
    ids = {"input_ids": np.ones((1, 3)), "attention_mask": np.ones((1, 3))}
    [work] = engine.prepare_all([{**ids, "dimensions": dimensions}])
    assert isinstance(work, GraphWork)
    dimensions[:] = 77

    answer = work.answer({"embedding": np.array([[0.6, 0.0, 0.8]], dtype=np.float32)})

    np.testing.assert_allclose(answer["embedding"], [[1, 0]])


def test_a_graph_that_answers_with_nan_is_no_answer(tokenizer: Path) -> None:
    """Also where no step follows."""
    plain = GraphTask(RERANK, tokenizer, parameters(), ["input_ids"], ["score"])

    with pytest.raises(EngineFailedError, match="score are not finite"):
        _answer(plain, {"input_ids": np.ones((1, 3))}, np.array([[np.nan]]))
