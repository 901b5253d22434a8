# SPDX-License-Identifier: Apache-2.0
"""What is fed to a graph: texts, samples from files, or random numbers. Needs numpy."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from buildlib.problems import BuildError
from buildlib.request import Calibration
from onnxlib.graph import OnnxGraph, OnnxTensor
from taskcompile.task import POOLING_MASK, TEXT_INPUTS
from taskproof.feeds import NUMPY, Feed

# Sizes of random feeds: one alone, a few, odd lengths; a graph exported for one size shows here.
_RANDOM_BATCHES = (1, 3, 2)
_RANDOM_SIZES = (16, 7, 24)


def read_texts(path: Path, most: int | None) -> list[str]:
    """Return the texts of a file: lines of .txt, `text_input` or `text` of the lines of .jsonl.

    Raises:
        BuildError: it cannot be read, a line is malformed, or it holds no texts.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{path}: the texts cannot be read: {error}", remedy="Give a UTF-8 text file."
        ) from error
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    chosen = itertools.islice(numbered, most)
    as_json = path.suffix == ".jsonl"
    texts = [_text(f"{path}:{n}", line) if as_json else line.strip() for n, line in chosen]
    if not texts:
        raise BuildError(f"{path}: holds no texts", remedy="Write one text per line.")
    return texts


def _text(where: str, line: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"{where}: is not valid JSON: {error.msg} (column {error.colno})"
        raise BuildError(problem, remedy='Write the line as {"text_input": "..."}.') from error
    text = (entry.get("text_input") or entry.get("text")) if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text:
        raise BuildError(
            f"{where}: needs a text_input", remedy='Write the line as {"text_input": "..."}.'
        )
    return text


def encode(tokenizer: Any, texts: Sequence[str], *, longest: int) -> list[list[int]]:
    """Return the token ids of each text, cut to `longest` tokens."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=longest)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def takes_text(graph: OnnxGraph) -> bool:
    """Whether the inputs are those of an encoder, so that texts can be fed."""
    names = {tensor.name for tensor in graph.inputs}
    shaped = all(len(tensor.shape or ()) == len(("batch", "sequence")) for tensor in graph.inputs)
    return "input_ids" in names and names <= {*TEXT_INPUTS, POOLING_MASK} and shaped


def sample_feeds(calibration: Calibration, graph: OnnxGraph) -> list[Feed]:
    """Return the .npz samples of a folder, each one feed: arrays by input, batch dimension first.

    Raises:
        BuildError: none exist, or one does not fit the graph.
    """
    files = sorted(calibration.data.glob("*.npz"))[: calibration.samples]
    if not files:
        raise BuildError(
            f"{calibration.data}: holds no .npz samples",
            remedy="Save each sample with numpy.savez(FILE, **arrays), arrays named as the inputs.",
        )
    return [_sample(file, graph) for file in files]


def _sample(file: Path, graph: OnnxGraph) -> Feed:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            feed = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{file}: cannot be read: {error}", remedy="Save it again with numpy.savez."
        ) from error
    for tensor in graph.inputs:
        array = feed.get(tensor.name)
        fits = array is not None and array.dtype == NUMPY.get(tensor.element_type, "object")
        if array is None or not fits or not _shape_fits(array.shape, tensor):
            given = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise BuildError(
                f"{file}: has {given} for the input {tensor.name}, which takes "
                f"{tensor.element_type}{list(tensor.shape or ())}",
                remedy="Save arrays of the graph's types and shapes, batch dimension first.",
            )
    return {tensor.name: feed[tensor.name] for tensor in graph.inputs}


def _shape_fits(shape: tuple[int, ...], tensor: OnnxTensor) -> bool:
    wanted = tensor.shape or ()
    pairs = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(
        not isinstance(size, int) or have == size for have, size in pairs
    )


def random_rows(*, seed: int, vocab_size: int, longest: int) -> list[list[int]]:
    """Return seeded rows of token ids, of different lengths."""
    generator = np.random.default_rng(seed)
    lengths = [min(size, longest) for size in (1, 16, 7, 24, 3, 40)]
    return [generator.integers(0, vocab_size, length).tolist() for length in lengths]


def random_feeds(graph: OnnxGraph, *, seed: int, sizes: dict[str, int]) -> list[Feed]:
    """Return seeded feeds of several batch sizes; `sizes` fixes variable dimensions by name.

    Floats are normal; whole numbers are 0 or 1, which are valid as masks and as rows of any table.
    """
    generator = np.random.default_rng(seed)
    return [
        {t.name: _random(t, generator, (batch, *_sizes(t, size, sizes))) for t in graph.inputs}
        for batch, size in zip(_RANDOM_BATCHES, _RANDOM_SIZES, strict=True)
    ]


def _sizes(tensor: OnnxTensor, size: int, named: dict[str, int]) -> list[int]:
    """The dimensions behind the batch; a variable one gets `size` unless it is named."""
    dimensions = (tensor.shape or ())[1:]
    return [d if isinstance(d, int) else named.get(d or "", size) for d in dimensions]


def _random(tensor: OnnxTensor, generator: Any, shape: tuple[int, ...]) -> Any:
    if tensor.element_type == "STRING":
        return np.array([f"text {n}" for n in range(int(np.prod(shape)))], object).reshape(shape)
    kind = np.dtype(NUMPY[tensor.element_type])
    if kind.kind == "f":
        return generator.standard_normal(shape).astype(kind)
    return generator.integers(0, 2, shape).astype(kind)
