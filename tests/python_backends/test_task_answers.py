# SPDX-License-Identifier: Apache-2.0
"""A graph's scores and vectors to what a client reads: labels, entities, shorter embeddings."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tasklib.entities import TextEntity, find_entities
from tasklib.item_errors import ItemError
from tasklib.labels import rank_labels
from tasklib.matryoshka import cut_embeddings
from textlib.errors import EngineFailedError

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
TEXT = "Ada Lovelace in São Paulo"
#        Ada    Love   ##lace    in       São       Paulo
SPANS = [(0, 3), (4, 8), (8, 12), (13, 15), (16, 19), (20, 25)]


def floats(*rows: list[float]) -> NDArray[np.float32]:
    """FP32."""
    return np.array(rows, dtype=np.float32)


def scores_for(*tags: str, score: float = 0.75) -> NDArray[np.float32]:
    """A row for each token, in which its tag is the best."""
    rest = (1 - score) / (len(TAGS) - 1)
    return floats(*([score if name == tag else rest for name in TAGS] for tag in tags))


def found(*tags: str) -> list[tuple[str, str]]:
    """Labels and texts for the six tokens of TEXT between two special ones."""
    offsets = np.array([(-1, -1), *SPANS, (-1, -1)], dtype=np.int32)
    scores = scores_for("B-PER", *tags, "I-LOC")  # special tokens count for nothing
    return [(one.label, one.text) for one in find_entities(scores, offsets, TEXT, TAGS)]


def test_labels_best_first() -> None:
    """Of equal scores the model's first label."""
    labels, scores = rank_labels(floats([0.1, 0.7, 0.2], [0.4, 0.2, 0.4]), ["a", "ß", "c"])

    assert labels.tolist() == [["ß".encode(), b"c", b"a"], [b"a", b"c", "ß".encode()]]
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(scores, floats([0.7, 0.2, 0.1], [0.4, 0.4, 0.2]))


@pytest.mark.parametrize(("top_k", "given"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_top_k(top_k: int, given: int) -> None:
    """At most as many as there are."""
    labels, scores = rank_labels(floats([0.1, 0.7, 0.2]), ["a", "b", "c"], top_k)

    assert labels.shape == scores.shape == (1, given)
    assert labels[0, 0] == b"b"


def test_no_labels_are_refused() -> None:
    """0 would be an empty answer."""
    with pytest.raises(ItemError, match="top_k is 0, expected 1 or more"):
        rank_labels(floats([1]), ["a"], 0)


def test_a_graph_with_other_labels_is_refused() -> None:
    """Such as an engine of another checkpoint."""
    with pytest.raises(EngineFailedError, match=r"scores \[1, 2\] for 3 labels"):
        rank_labels(floats([0.1, 0.9]), ["a", "b", "c"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    """In every answer: damaged weights must not look like one."""
    bad = floats([0.5, value])
    with pytest.raises(EngineFailedError, match="scores are not finite"):
        rank_labels(bad, ["a", "b"])
    with pytest.raises(EngineFailedError, match="embeddings are not finite"):
        cut_embeddings(bad)
    with pytest.raises(EngineFailedError, match="token_scores are not finite"):
        find_entities(bad, np.zeros((1, 2), dtype=np.int32), "x", ["O", "B-X"])


def test_entities_as_the_reference_joins_them() -> None:
    """A tag goes on until another one comes or `B-` begins anew."""
    assert found("B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC") == [
        ("PER", "Ada Lovelace"),
        ("LOC", "São Paulo"),
    ]
    assert found("B-PER", "B-PER", "I-PER", "O", "I-LOC", "I-LOC") == [
        ("PER", "Ada"),
        ("PER", "Lovelace"),
        ("LOC", "São Paulo"),
    ]
    assert found("I-PER", "I-LOC", "B-LOC", "I-LOC", "MISC", "MISC") == [
        ("PER", "Ada"),
        ("LOC", "Love"),
        ("LOC", "lace in"),
        ("MISC", "São Paulo"),
    ]
    assert found(*["O"] * 6) == []


def test_an_entitys_score_is_the_mean_of_its_tokens() -> None:
    """Positions are characters; padding behind the tokens counts for nothing."""
    scores = np.concatenate(
        [scores_for("B-LOC", score=0.9), scores_for("I-LOC", score=0.7), scores_for("B-PER")]
    )
    offsets = np.array(SPANS[4:], dtype=np.int32)

    [entity] = find_entities(scores, offsets, TEXT, TAGS)

    assert entity == TextEntity("LOC", pytest.approx(0.8), 16, 25, "São Paulo")  # type: ignore[arg-type]
    assert entity.as_dict() == {
        "label": "LOC",
        "score": entity.score,
        "start": 16,
        "end": 25,
        "text": "São Paulo",
    }


def test_embeddings_are_cut_and_scaled() -> None:
    """To length 1 where the model's vectors have it, else as they are."""
    vectors = floats([0.6, 0.0, 0.8], [0.0, 0.0, 1.0])

    np.testing.assert_allclose(cut_embeddings(vectors, 2), floats([1, 0], [0, 0]))
    np.testing.assert_allclose(
        cut_embeddings(vectors, 2, normalized=False), floats([0.6, 0], [0, 0])
    )
    assert cut_embeddings(vectors) is vectors
    assert cut_embeddings(vectors, 3) is vectors
    assert cut_embeddings(vectors, 2).dtype == np.float32


@pytest.mark.parametrize("dimensions", [0, -1, 4])
def test_dimensions_that_the_vectors_lack(dimensions: int) -> None:
    """Nothing is filled up."""
    with pytest.raises(ItemError, match=f"dimensions is {dimensions}, expected 1 to 3"):
        cut_embeddings(floats([1, 0, 0]), dimensions)
