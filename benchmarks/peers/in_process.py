# SPDX-License-Identifier: Apache-2.0
"""The engine alone, no server: the answers that all must give, and the same closed loop.

Usage: in_process.py text|encoder answers CASES_FILE | text|encoder load JOB_FILE, in the engine's
environment. `answers` completes the cases in the file; `load` prints the meter's result as JSON.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from tokenizers import Tokenizer

from engine import Encoder, greedy, load_pipeline, read, read_settings
from meter import Meter

BATCHES = (1, 2, 4, 8, 16, 32)
Case = dict[str, Any]


class Loop:
    """Requests in the pipeline, stepped and read by one thread."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._pipeline = load_pipeline(settings)
        self._config = greedy(settings, settings["max_tokens"])
        self._numbers = itertools.count()
        self.running: dict[int, tuple[Any, Case, list[int], list[float]]] = {}

    def begin(self, case: Case) -> None:
        """Add a request; times has when it began and when its first token came."""
        number = next(self._numbers)
        ids = openvino.Tensor(np.array([case["ids"]], dtype=np.int64))
        times = [time.perf_counter()]
        handle = self._pipeline.add_request(number, ids, self._config)
        self.running[number] = handle, case, [], times

    def step(self) -> list[tuple[Case, list[int], list[float]]]:
        """Advance all; the requests that ended."""
        self._pipeline.step()
        ended = []
        for number, (handle, case, made, times) in list(self.running.items()):
            made.extend(read(handle))
            if made and len(times) == 1:
                times.append(time.perf_counter())
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                del self.running[number]
                ended.append((case, made, times))
        return ended


def text_answers(settings: dict[str, Any], cases: list[Case]) -> None:
    """Prompt ids, text, answer ids and their number, each prompt alone in the engine."""
    tokenizer, loop = Tokenizer.from_file(settings["tokenizer"]), Loop(settings)
    for case in cases:
        case["ids"] = tokenizer.encode(case["prompt"]).ids
        loop.begin(case)
        while loop.running:
            for _, made, _ in loop.step():
                case |= {"made": made, "tokens": len(made), "text": tokenizer.decode(made)}


def text_load(settings: dict[str, Any], job: dict[str, Any], cases: list[Case]) -> dict[str, float]:
    """`streams` requests in the engine at any time."""
    loop, order = Loop(settings), itertools.cycle(cases)
    meter = Meter(job)
    while (now := time.perf_counter()) < meter.ends or loop.running:
        while now < meter.ends and len(loop.running) < job["streams"]:
            loop.begin(next(order))
        for case, made, (began, first) in loop.step():
            meter.count(began, first, len(made), right=made == case["made"])
        meter.tick()
    meter.tick()
    return meter.result()


def encoder_answers(settings: dict[str, Any], cases: list[Case]) -> None:
    """The embedding of each row, alone in the graph."""
    encoder = Encoder(settings)
    for case in cases:
        case |= {"vector": encoder.encode([case["row"]])[0].tolist(), "tokens": len(case["row"])}


def encoder_load(
    settings: dict[str, Any], job: dict[str, Any], cases: list[Case]
) -> dict[str, float]:
    """`streams` rows at once, at the best batch up to that: each is tried, the best counts."""
    encoder, results = Encoder(settings), []
    for size in (size for size in BATCHES if size <= job["streams"]):
        meter, order = Meter(job), itertools.cycle(cases)
        while time.perf_counter() < meter.ends:
            began = time.perf_counter()
            rows = [next(order) for _ in range(job["streams"])]
            for start in range(0, len(rows), size):
                batch = rows[start : start + size]
                vectors = encoder.encode([case["row"] for case in batch])
                for case, vector in zip(batch, vectors, strict=True):
                    right = np.allclose(vector, case["vector"], atol=1e-3)
                    meter.count(began, time.perf_counter(), case["tokens"], right=bool(right))
            meter.tick()
        meter.tick()
        results.append(meter.result() | {"batch": size})
    return max(results, key=lambda result: result["rate"])


def main() -> None:
    """Answer, or load."""
    subject, mode, name = sys.argv[1:]
    settings, file = read_settings(), Path(name)
    record = json.loads(file.read_text(encoding="utf-8"))
    if mode == "answers":
        (text_answers if subject == "text" else encoder_answers)(settings, record)
        file.write_text(json.dumps(record), encoding="utf-8")
        return
    cases = json.loads(Path(record["cases"]).read_text(encoding="utf-8"))
    random.Random(record["seed"]).shuffle(cases)
    load = text_load if subject == "text" else encoder_load
    print(json.dumps(load(settings, record, cases)))


if __name__ == "__main__":
    main()
