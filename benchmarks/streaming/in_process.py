# SPDX-License-Identifier: Apache-2.0
"""Runs an OpenVINO engine without a server: a closed loop of requests, tokens per second.

Usage: in_process.py SETTINGS_FILE, in the server's environment. Prints tokens_per_second and the
number of requests that fit into `seconds`. No prompt comes twice: none is in the prefix cache.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from tokenizers import Tokenizer


def main() -> None:
    """Run the load that the settings describe."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    pipeline = load(settings)
    tokenizer = Tokenizer.from_file(settings["tokenizer"])
    prompts = cycle(encoding.ids for encoding in tokenizer.encode_batch(settings["prompts"]))
    concurrency = settings["concurrency"]
    load_once(pipeline, prompts, settings, concurrency)  # warm
    rounds = settings["seconds"] / timed(pipeline, prompts, settings, concurrency)[0]
    requests = concurrency * max(2, round(rounds))
    seconds, tokens = timed(pipeline, prompts, settings, requests)
    answer = {"tokens_per_second": tokens / seconds, "requests": requests}
    sys.stdout.write(json.dumps(answer) + "\n")


def timed(
    pipeline: Any, prompts: Iterator[list[int]], settings: dict[str, Any], requests: int
) -> tuple[float, int]:
    """Seconds and tokens of a number of requests."""
    started = time.perf_counter()
    tokens = load_once(pipeline, prompts, settings, requests)
    return time.perf_counter() - started, tokens


def load(settings: dict[str, Any]) -> Any:
    """The pipeline, with the scheduler of the rendered config.pbtxt."""
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in settings["scheduler"].items():
        setattr(scheduler, name, value)
    return openvino_genai.ContinuousBatchingPipeline(
        Path(settings["engine"]),
        scheduler_config=scheduler,
        device="CPU",
        properties=settings["properties"],
    )


def load_once(
    pipeline: Any, prompts: Iterator[list[int]], settings: dict[str, Any], requests: int
) -> int:
    """Run requests, `concurrency` at a time; return the number of tokens."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = settings["tokens"]
    config.ignore_eos = True
    begun = tokens = 0
    running: dict[int, Any] = {}
    while begun < requests or running:
        while len(running) < settings["concurrency"] and begun < requests:
            ids = np.array([next(prompts)], dtype=np.int64)
            running[begun] = pipeline.add_request(begun, openvino.Tensor(ids), config)
            begun += 1
        pipeline.step()
        tokens += sum(map(read, running.values()))
        finished = openvino_genai.GenerationStatus.FINISHED
        running = {key: h for key, h in running.items() if h.get_status() != finished}
    return tokens


def read(handle: Any) -> int:
    """The number of new tokens of a request."""
    made = 0
    while handle.can_read():
        made += sum(len(output.generated_ids) for output in handle.read().values())
    return made


if __name__ == "__main__":
    main()
