# SPDX-License-Identifier: Apache-2.0
"""What a session takes; run in the ONNX Runtime builder's environment.

    python onnx_memory.py MODEL BATCH LENGTH

Writes the peak of the process's resident memory, in bytes, behind two runs of an encoder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main() -> None:
    """Load, run twice, tell the peak. One thread: each has a stack and buffers of its own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    ids = np.ones((int(sys.argv[2]), int(sys.argv[3])), dtype=np.int64)
    # The mask is of ones, the kinds of tokens are of none.
    names = [tensor.name for tensor in session.get_inputs()]
    feed = {name: np.zeros_like(ids) if "type" in name else ids for name in names}
    for _ in range(2):
        session.run(None, feed)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    sys.stdout.write(f"{int(peak) * 1024}\n")


if __name__ == "__main__":
    main()
