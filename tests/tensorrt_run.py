# SPDX-License-Identifier: Apache-2.0
"""Runs a plan once on the GPU; run where TensorRT is.

python tensorrt_run.py MODEL.plan INPUTS.npz OUTPUTS.npz
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

BUILDERS = Path(__file__).resolve().parents[1] / "builders"
sys.path[:0] = [str(BUILDERS / "tensorrt"), str(BUILDERS / "shared")]
cuda_driver = importlib.import_module("cuda_driver")


def main() -> None:
    """Bind every tensor, run, read the outputs back."""
    logger = trt.Logger(trt.Logger.WARNING)
    engine = trt.Runtime(logger).deserialize_cuda_engine(Path(sys.argv[1]).read_bytes())
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    outputs = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]
    device = cuda_driver.Device()
    buffers = {name: cuda_driver.Buffer(device) for name in names}
    with np.load(sys.argv[2]) as arrays:
        for name in set(names) - set(outputs):
            array = np.ascontiguousarray(arrays[name])
            context.set_input_shape(name, array.shape)
            context.set_tensor_address(name, buffers[name].holding(array))
    made: dict[str, Any] = {}
    for name in outputs:
        kind = trt.nptype(engine.get_tensor_dtype(name))
        made[name] = np.empty(tuple(context.get_tensor_shape(name)), dtype=kind)
        context.set_tensor_address(name, buffers[name].room_for(made[name]))
    if not context.execute_async_v3(0):
        raise RuntimeError("TensorRT did not run the plan")
    device.wait()
    for name in outputs:
        buffers[name].read(made[name])
    np.savez(sys.argv[3], **made)


if __name__ == "__main__":
    main()
