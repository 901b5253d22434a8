# SPDX-License-Identifier: Apache-2.0
"""A library alone, no server: the vectors that all must give, and the same closed loop.

Usage: alone.py onnxruntime|sentence_transformers answers CASES_FILE | ... load JOB_FILE | ... file
LINES_FILE, in an environment that has it. `answers` completes the cases in the file; `load` prints
the meter's result as JSON, of the batch that was fastest when each was tried; `file` what it takes
to encode all lines, in the batch that was fastest on some.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meter import Meter
from text_engine import Texts, read_settings

BATCHES = (1, 2, 4, 8, 16, 32)
TRIAL = 0.2  # of a measurement's time
TRIAL_LINES = 128
Case = dict[str, Any]
Encode = Callable[[Sequence[str], int], Any]  # texts, rows of a batch: vectors


def onnxruntime_alone() -> Encode:
    """Sorted by length, batch by batch, as sentence-transformers does it."""
    texts = Texts(read_settings())

    def encode(given: Sequence[str], size: int) -> list[Any]:
        order = sorted(range(len(given)), key=lambda at: -len(given[at]))
        vectors: list[Any] = [None] * len(given)
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            for at, vector in zip(batch, texts.encode([given[at] for at in batch]), strict=True):
                vectors[at] = vector
        return vectors

    return encode


def sentence_transformers_alone() -> Encode:
    """The library itself, on PyTorch."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer

    settings = read_settings()
    model = SentenceTransformer(settings["checkpoint"], device="cpu")

    def encode(given: Sequence[str], size: int) -> Any:
        return model.encode(list(given), batch_size=size, show_progress_bar=False)

    return encode


LIBRARIES = {
    "onnxruntime": onnxruntime_alone,
    "sentence_transformers": sentence_transformers_alone,
}


def load(encode: Encode, job: dict[str, Any], cases: list[Case]) -> dict[str, float]:
    """`streams` texts at hand at any time, in the best batch of up to that."""
    order = itertools.cycle(cases)
    sizes = [size for size in BATCHES if size <= job["streams"]]
    if len(sizes) > 1:
        trial = {**job, "warm_up": 0.0, "seconds": TRIAL * job["seconds"]}
        sizes.sort(key=lambda size: -run(encode, trial, order, size)["rate"])
    return run(encode, job, order, sizes[0]) | {"batch": sizes[0]}


def run(encode: Encode, job: dict[str, Any], order: Iterator[Case], size: int) -> dict[str, float]:
    """One measurement, of the batches that began within it, to the end of the last one."""
    meter = Meter(job)
    deadline, meter.ends = meter.ends, math.inf
    while (began := time.perf_counter()) < deadline:
        meter.tick()
        some = [next(order) for _ in range(job["streams"])]
        vectors = encode([case["content"] for case in some], size)
        if began >= meter.starts:
            for case, vector in zip(some, vectors, strict=True):
                right = near(vector, case)
                meter.count(began, time.perf_counter(), case["tokens"], right=right)
    meter.ends = time.perf_counter()
    meter.tick()
    return meter.result()


def whole(encode: Encode, lines: Sequence[str]) -> dict[str, float]:
    """Seconds and CPU seconds for all lines."""
    some = lines[:TRIAL_LINES]
    encode(some, BATCHES[-1])
    size = min(BATCHES, key=lambda size: seconds(encode, some, size))
    cpu = time.process_time()
    took = seconds(encode, lines, size)
    return {"seconds": took, "cpu": time.process_time() - cpu, "batch": size}


def seconds(encode: Encode, texts: Sequence[str], size: int) -> float:
    """Of the clock."""
    began = time.monotonic()
    encode(texts, size)
    return time.monotonic() - began


def near(got: Any, case: Case) -> bool:
    """Within the case's least cosine."""
    lengths = np.linalg.norm(got) * np.linalg.norm(case["vector"])
    return bool(np.dot(got, case["vector"]) >= case["least_cosine"] * lengths)


def main() -> None:
    """Answer, or load."""
    library, mode, name = sys.argv[1:]
    file = Path(name)
    encode = LIBRARIES[library]()
    if mode == "file":
        print(json.dumps(whole(encode, file.read_text(encoding="utf-8").splitlines())))
        return
    record = json.loads(file.read_text(encoding="utf-8"))
    if mode == "answers":
        for case in record:
            case["vector"] = [float(number) for number in encode([case["content"]], 1)[0]]
        file.write_text(json.dumps(record), encoding="utf-8")
        return
    cases = json.loads(Path(record["cases"]).read_text(encoding="utf-8"))
    random.Random(record["seed"]).shuffle(cases)
    print(json.dumps(load(encode, record, cases)))


if __name__ == "__main__":
    main()
