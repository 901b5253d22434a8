# SPDX-License-Identifier: Apache-2.0
"""Runs a plan once on the GPU; run where TensorRT and torch are.

python tensorrt_run.py MODEL.plan INPUTS.npz OUTPUTS.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorrt as trt
import torch


def main() -> None:
    """Bind every tensor, run, read the outputs back."""
    logger = trt.Logger(trt.Logger.WARNING)
    engine = trt.Runtime(logger).deserialize_cuda_engine(Path(sys.argv[1]).read_bytes())
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    tensors = {}
    with np.load(sys.argv[2]) as arrays:
        for name in names:
            if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                tensors[name] = torch.from_numpy(arrays[name]).cuda().contiguous()
                context.set_input_shape(name, tuple(tensors[name].shape))
    for name in names:
        if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT:
            kind = trt.nptype(engine.get_tensor_dtype(name))
            empty = np.empty(tuple(context.get_tensor_shape(name)), dtype=kind)
            tensors[name] = torch.from_numpy(empty).cuda()
        context.set_tensor_address(name, tensors[name].data_ptr())
    stream = torch.cuda.Stream()
    if not context.execute_async_v3(stream.cuda_stream):
        raise RuntimeError("TensorRT did not run the plan")
    stream.synchronize()
    outputs = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]
    np.savez(sys.argv[3], **{name: tensors[name].cpu().numpy() for name in outputs})


if __name__ == "__main__":
    main()
