# SPDX-License-Identifier: Apache-2.0
"""Makes inputs of a graph from texts, sample files or random numbers. Needs numpy."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.request_types import RequestedCalibration
from onnxlib.graph import OnnxGraph, OnnxTensor
from taskcompile.task import POOLING_MASK, TEXT_INPUTS
from taskproof.feeds import NUMPY_TYPES, Feed

# Sizes of random feeds: one row, several rows, odd lengths. They expose a graph with fixed sizes.
_RANDOM_BATCHES = (1, 3, 2)
_RANDOM_SIZES = (16, 7, 24)


def read_texts(path: Path, max_texts: int | None) -> list[str]:
    """Return the texts of a file: lines of .txt, or `text_input` or `text` of lines of .jsonl.

    Raises:
        BuildError: the file is unreadable, has a malformed line or no texts.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{path}: the texts cannot be read: {error}", remedy="Give a UTF-8 text file."
        ) from error
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    chosen = itertools.islice(numbered, max_texts)
    as_json = path.suffix == ".jsonl"
    texts = [_parse_text(f"{path}:{n}", line) if as_json else line.strip() for n, line in chosen]
    if not texts:
        raise BuildError(f"{path}: holds no texts", remedy="Write one text per line.")
    return texts


def _parse_text(location: str, line: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"{location}: is not valid JSON: {error.msg} (column {error.colno})"
        raise BuildError(problem, remedy='Write the line as {"text_input": "..."}.') from error
    text = (entry.get("text_input") or entry.get("text")) if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text:
        raise BuildError(
            f"{location}: needs a text_input", remedy='Write the line as {"text_input": "..."}.'
        )
    return text


def encode_texts(tokenizer: Any, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
    """Return the token ids of each text, cut to `max_tokens` tokens."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=max_tokens)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def takes_text(graph: OnnxGraph) -> bool:
    """Whether the graph has the inputs of an encoder, so that it takes texts."""
    names = {tensor.name for tensor in graph.inputs}
    shaped = all(len(tensor.shape or ()) == len(("batch", "sequence")) for tensor in graph.inputs)
    return "input_ids" in names and names <= {*TEXT_INPUTS, POOLING_MASK} and shaped


def sample_feeds(calibration: RequestedCalibration, graph: OnnxGraph) -> list[Feed]:
    """Return the .npz samples of a folder as feeds: arrays by input, batch dimension first.

    Raises:
        BuildError: there are no samples, or one does not fit the graph.
    """
    files = sorted(calibration.data.glob("*.npz"))[: calibration.samples]
    if not files:
        raise BuildError(
            f"{calibration.data}: holds no .npz samples",
            remedy="Save each sample with numpy.savez(FILE, **arrays), arrays named as the inputs.",
        )
    return [_load_sample(file, graph) for file in files]


def _load_sample(file: Path, graph: OnnxGraph) -> Feed:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            feed = {name: _as_texts(arrays[name]) for name in arrays.files}
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{file}: cannot be read: {error}", remedy="Save it again with numpy.savez."
        ) from error
    for tensor in graph.inputs:
        array = feed.get(tensor.name)
        has_type = array is not None and array.dtype == NUMPY_TYPES.get(
            tensor.element_type, "object"
        )
        if array is None or not has_type or not _shape_fits(array.shape, tensor):
            description = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise BuildError(
                f"{file}: has {description} for the input {tensor.name}, which takes "
                f"{tensor.element_type}{list(tensor.shape or ())}",
                remedy="Save arrays of the graph's types and shapes, batch dimension first.",
            )
    return {tensor.name: feed[tensor.name] for tensor in graph.inputs}


def _as_texts(array: Any) -> Any:
    """Return texts, which numpy saves without pickle as `U` only, as ONNX Runtime takes them."""
    return array.astype(object) if array.dtype.kind == "U" else array


def _shape_fits(shape: tuple[int, ...], tensor: OnnxTensor) -> bool:
    expected = tensor.shape or ()
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(
        not isinstance(size, int) or actual == size for actual, size in pairs
    )


def random_rows(*, seed: int, vocab_size: int, max_tokens: int) -> list[list[int]]:
    """Return seeded rows of token ids, of different lengths."""
    generator = np.random.default_rng(seed)
    lengths = [min(size, max_tokens) for size in (1, 16, 7, 24, 3, 40)]
    return [generator.integers(0, vocab_size, length).tolist() for length in lengths]


def random_feeds(
    graph: OnnxGraph, *, seed: int, sizes: dict[str, int], batched: bool = True
) -> list[Feed]:
    """Return seeded feeds of several sizes. `sizes` fixes variable dimensions by name.

    `batched`: the first dimension is the batch. Floats are normally distributed. Whole numbers are
    0 or 1, valid as masks and table rows.
    """
    generator = np.random.default_rng(seed)
    feeds = []
    for batch, size in zip(_RANDOM_BATCHES, _RANDOM_SIZES, strict=True):
        first = [batch] if batched else []
        shapes = {t.name: (*first, *_sizes(t, size, sizes, len(first))) for t in graph.inputs}
        feeds.append({t.name: _random(t, generator, shapes[t.name]) for t in graph.inputs})
    return feeds


def _sizes(tensor: OnnxTensor, size: int, sizes_by_name: dict[str, int], first: int) -> list[int]:
    """Return the dimensions from index `first`. Unnamed variable ones get `size`."""
    dimensions = (tensor.shape or ())[first:]
    return [d if isinstance(d, int) else sizes_by_name.get(d or "", size) for d in dimensions]


def _random(tensor: OnnxTensor, generator: Any, shape: tuple[int, ...]) -> Any:
    if tensor.element_type == "STRING":
        return np.array([f"text {n}" for n in range(int(np.prod(shape)))], object).reshape(shape)
    kind = np.dtype(NUMPY_TYPES[tensor.element_type])
    if kind.kind == "f":
        return np.asarray(generator.standard_normal(shape), dtype=kind)  # a scalar is no array yet
    return np.asarray(generator.integers(0, 2, shape), dtype=kind)
