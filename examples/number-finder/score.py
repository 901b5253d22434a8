# SPDX-License-Identifier: Apache-2.0
"""Score a checkpoint folder: which held-out queries find their own document first, in fp32."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from checkpoint import load
from dataset import held_out_pairs, is_held_out
from writings import LIMIT, WRITINGS, write

SHORT = 64


@dataclass(frozen=True)
class Scores:
    """Queries answered with the right document, as (right, asked)."""

    by_writing: dict[str, tuple[int, int]]
    """Among the documents of all pairs, by the query's writing."""
    bare: tuple[int, int]
    """The same without prompts."""
    short: tuple[int, int]
    """The same with vectors cut to SHORT numbers."""
    everywhere: tuple[int, int]
    """Among all numbers there are, each in one writing."""

    @property
    def total(self) -> tuple[int, int]:
        """Of all writings together."""
        right, asked = zip(*self.by_writing.values(), strict=True)
        return sum(right), sum(asked)


def _vectors(model: SentenceTransformer, texts: list[str], prompt: str | None) -> np.ndarray:
    """Encode ``texts``; FP32, (texts, dimension), rows of length 1."""
    return np.asarray(model.encode(texts, prompt_name=prompt, batch_size=128), np.float32)


def found(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Index of the nearest document by cosine, for every query; (queries,)."""
    return np.concatenate([(q @ documents.T).argmax(1) for q in np.array_split(queries, 10)])


def _cut(vectors: np.ndarray) -> np.ndarray:
    """The first SHORT numbers of each vector, of length 1 again."""
    short = vectors[:, :SHORT]
    return short / np.linalg.norm(short, axis=1, keepdims=True)


def _others() -> list[str]:
    """All numbers that training has seen, the writings in turn."""
    writings = list(WRITINGS)
    others = [number for number in range(LIMIT) if not is_held_out(number)]
    return [write(number, writings[i % len(writings)]) for i, number in enumerate(others)]


def score(model: SentenceTransformer) -> Scores:
    """Score ``model`` on the held-out pairs and print what it misses."""
    pairs = held_out_pairs()
    asked, answers = [p.query for p in pairs], [p.document for p in pairs]
    queries, documents = _vectors(model, asked, "query"), _vectors(model, answers, "document")
    first, own = found(queries, documents), np.arange(len(pairs))
    for index in np.flatnonzero(first != own):
        print(f"  missed: {asked[index]!r} -> {answers[first[index]]!r}, not {answers[index]!r}")
    right = first == own
    by_writing = {}
    for writing in WRITINGS:
        chosen = np.array([p.query_writing == writing for p in pairs])
        by_writing[writing] = (int(right[chosen].sum()), int(chosen.sum()))

    def count(queries: np.ndarray, documents: np.ndarray) -> tuple[int, int]:
        return int((found(queries, documents) == own).sum()), len(pairs)

    others = _vectors(model, _others(), "document")
    return Scores(
        by_writing,
        bare=count(_vectors(model, asked, None), _vectors(model, answers, None)),
        short=count(_cut(queries), _cut(documents)),
        everywhere=count(queries, np.concatenate([documents, others])),
    )


def main() -> None:
    """Score a checkpoint from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    print(score(load(parser.parse_args().checkpoint)))


if __name__ == "__main__":
    main()
