# SPDX-License-Identifier: Apache-2.0
"""What all servers of this benchmark serve: one OpenVINO engine, one ONNX graph.

Settings come from the file that PEERS_SETTINGS names: run.py takes them from tritonctl's own build.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MOST_PAUSE_SECONDS = 0.005
INTERVAL = "PEERS_STREAM_INTERVAL"  # seconds; what `serving.stream_interval_ms` is in ours

Rows = Sequence[Sequence[int]]


def read_settings() -> dict[str, Any]:
    """What run.py wrote for this process."""
    settings: dict[str, Any] = json.loads(Path(os.environ["PEERS_SETTINGS"]).read_text("utf-8"))
    return settings


def load_pipeline(settings: dict[str, Any]) -> Any:
    """The engine under the scheduler that `tritonctl render` writes for it."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    for name, value in settings["scheduler"].items():
        setattr(scheduler, name, value)
    return openvino_genai.ContinuousBatchingPipeline(
        Path(settings["engine"]),
        scheduler_config=scheduler,
        device="CPU",
        properties=settings["properties"],
    )


def greedy(settings: dict[str, Any], max_tokens: int) -> Any:
    """Greedy decoding until one of the model's ends."""
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = max_tokens
    config.eos_token_id = settings["eos_token_ids"][0]
    config.stop_token_ids = set(settings["eos_token_ids"])
    config.do_sample = False
    return config


@dataclass
class _Request:
    """A stream: its prompt until it begins, its handle then, and its reader's queue.

    The queue gets lists of ids, None at the end. left: the client has gone.
    """

    ids: list[int]
    max_tokens: int
    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[list[int] | None] = field(default_factory=asyncio.Queue)
    handle: Any = None
    left: bool = False


class TextEngine:
    """One thread steps the pipeline; coroutines of any event loop read the text."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import openvino
        import openvino_genai
        from tokenizers import Tokenizer

        self._openvino = openvino
        self._going = openvino_genai.GenerationStatus.RUNNING
        self._settings = settings
        self._tokenizer = Tokenizer.from_file(settings["tokenizer"])
        self._pipeline = load_pipeline(settings)
        self._numbers = itertools.count()
        self._arrived: list[_Request] = []
        self._wake = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    async def stream(self, prompt: str, max_tokens: int) -> AsyncIterator[str]:
        """The answer, piece by piece; a reader that stops frees its place in the engine."""
        from tokenizers.decoders import DecodeStream

        ids = self._tokenizer.encode(prompt).ids
        request = _Request(ids, max_tokens, asyncio.get_running_loop())
        with self._wake:
            self._arrived.append(request)
            self._wake.notify()
        decoder, ended = DecodeStream(skip_special_tokens=True), False
        wait, interval = 0.0, float(os.environ.get(INTERVAL, "0"))
        try:
            while not ended:
                made, ended = await gathered(request.queue, wait)
                wait = interval  # the first token goes at once
                pieces = [decoder.step(self._tokenizer, token) for token in made]
                if text := "".join(filter(None, pieces)):
                    yield text
        finally:
            request.left = True

    def _run(self) -> None:
        running: list[_Request] = []
        while True:
            with self._wake:
                while not (self._arrived or running):
                    self._wake.wait()
                arrived, self._arrived = self._arrived, []
            for request in arrived:
                self._begin(request)
            running += arrived
            self._pipeline.step()
            self._deliver(running)
            running = [request for request in running if request.handle is not None]

    def _begin(self, request: _Request) -> None:
        ids = self._openvino.Tensor(np.array([request.ids], dtype=np.int64))
        config = greedy(self._settings, request.max_tokens)
        request.handle = self._pipeline.add_request(next(self._numbers), ids, config)

    def _deliver(self, running: list[_Request]) -> None:
        """Hand out a step's tokens: one wake-up of each event loop, not one per stream.

        A step holds the interpreter lock throughout: the loop has it until all readers had a turn.
        """
        ready: dict[asyncio.AbstractEventLoop, list[tuple[_Request, list[int] | None]]] = {}
        for request in running:
            items: list[list[int] | None] = []
            if made := read(request.handle):
                items.append(made)
            if request.left or request.handle.get_status() != self._going:
                request.handle.cancel()
                request.handle = None
                items.append(None)
            ready.setdefault(request.loop, []).extend((request, item) for item in items)
        for loop, all_items in ready.items():
            done = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(_hand_out, all_items, done)
                done.wait(MOST_PAUSE_SECONDS)


async def gathered(
    queue: asyncio.Queue[list[int] | None], seconds: float
) -> tuple[list[int], bool]:
    """The next ids and what else comes within so many seconds from now; True if they end there."""
    made, until = list[int](), time.monotonic() + seconds
    while not made or time.monotonic() < until:
        try:
            async with asyncio.timeout(until - time.monotonic() if made else None):
                item = await queue.get()
        except TimeoutError:
            break
        if item is None:
            return made, True
        made += item
    return made, False


def _hand_out(items: list[tuple[_Request, list[int] | None]], done: threading.Event) -> None:
    for request, item in items:
        request.queue.put_nowait(item)
    asyncio.get_running_loop().call_soon(done.set)  # behind the readers


def read(handle: Any) -> list[int]:
    """The new tokens of a request."""
    made: list[int] = []
    while handle.can_read():
        for output in handle.read().values():
            made += output.generated_ids
    return made


class Encoder:
    """The ONNX graph; rows of different lengths are padded to the longest."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings["threads"]
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            settings["graph"], options, providers=["CPUExecutionProvider"]
        )
        self._output = settings["output"]

    def encode(self, rows: Rows) -> np.ndarray[Any, Any]:
        """One embedding a row."""
        (answer,) = self._session.run([self._output], padded(rows))
        return np.asarray(answer)


def padded(rows: Rows) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs of a BERT-like graph."""
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
