# SPDX-License-Identifier: Apache-2.0
"""Items a second of one core's time, of ONNX graphs; in an environment with ONNX Runtime.

Usage: rate.py PIXELS < GRAPHS, JSON: a list of files. Prints {"rates": [...]}, in their order.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime

SIZES, TOKENS, RUNS, REPEATS = (1, 8, 32), 64, 2, 5
SPECIAL = 5  # ids below are no words


def rate(graph: str, pixels: int) -> float:
    """The best of all sizes of a run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return max(size / _seconds(session, _feed(session, size, pixels)) for size in SIZES)


def _feed(session: Any, size: int, pixels: int) -> dict[str, Any]:
    source = np.random.default_rng(1)
    feed = {}
    for one in session.get_inputs():
        if one.name == "pixel_values":
            channels, *sides = (n if isinstance(n, int) else pixels for n in one.shape[1:])
            shape = (size, channels, *sides)
            feed[one.name] = source.normal(size=shape).astype(np.float32)
        elif one.name == "input_ids":
            feed[one.name] = source.integers(SPECIAL, 200, (size, TOKENS))
        else:
            mask = np.ones if "mask" in one.name else np.zeros
            feed[one.name] = mask((size, TOKENS), dtype=np.int64)
    return feed


def _seconds(session: Any, feed: dict[str, Any]) -> float:
    """Of a run, the fastest of a few; processor time, as the only thread is this one."""
    session.run(None, feed)
    took = []
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(RUNS):
            session.run(None, feed)
        took.append((time.process_time() - began) / RUNS)
    return min(took)


def main() -> None:
    """Measure each."""
    pixels = int(sys.argv[1])
    print(json.dumps({"rates": [rate(graph, pixels) for graph in json.load(sys.stdin)]}))


if __name__ == "__main__":
    main()
