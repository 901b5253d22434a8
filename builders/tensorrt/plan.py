# SPDX-License-Identifier: Apache-2.0
"""Runs a plan for its proof. Importing this module imports tensorrt and numpy."""

from typing import Any

import numpy as np
import tensorrt as trt

from buildlib.problems import BuildError
from cuda_driver import CudaBuffer, CudaDevice
from profiles import Profile
from taskproof.feeds import Feed

_DEFAULT_STREAM = 0


class PlanRunner:
    """Runs a plan on the first GPU: maps NumPy arrays by input name to the first output.

    A run uses the first profile that holds its rows. More rows than a profile holds are split.

    `logger`: the compiler's, the only one of the process.

    Raises:
        BuildError: the plan does not load, or the GPU has too little memory.
    """

    def __init__(self, plan: bytes, profiles: list[Profile], logger: Any) -> None:
        self._logger = logger
        self._context: Any
        self._runtime = trt.Runtime(logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        loaded = self._engine is not None
        self._context = self._engine.create_execution_context() if loaded else None
        if self._context is None:
            raise self._run_error("it cannot be loaded")
        self._profiles = profiles
        self._device = CudaDevice()
        names = [self._engine.get_tensor_name(at) for at in range(self._engine.num_io_tensors)]
        self._inputs = [name for name in names if self._mode(name) == trt.TensorIOMode.INPUT]
        self._outputs = [name for name in names if name not in self._inputs]
        self._buffers = {name: CudaBuffer(self._device) for name in names}

    def _mode(self, name: str) -> Any:
        return self._engine.get_tensor_mode(name)

    def __call__(self, feed: Feed) -> Any:
        """Return the output of every row. Raises BuildError if TensorRT fails."""
        rows = len(feed[self._inputs[0]])
        max_rows = min(shapes.max[0] for profile in self._profiles for shapes in profile.values())
        outputs = [
            self._run({name: feed[name][at : at + max_rows] for name in self._inputs})
            for at in range(0, rows, max_rows)
        ]
        return np.concatenate(outputs)

    def _run(self, feed: Feed) -> Any:
        number = self._select_profile(feed)
        if not self._context.set_optimization_profile_async(number, _DEFAULT_STREAM):
            raise self._run_error(f"it refuses profile {number}")
        self._device.synchronize()
        for name, array in feed.items():
            input_type = trt.nptype(self._engine.get_tensor_dtype(name))
            values = np.ascontiguousarray(array, dtype=input_type)
            if not self._context.set_input_shape(name, values.shape):
                raise self._run_error(f"it refuses the shape {list(values.shape)} of {name}")
            self._context.set_tensor_address(name, self._buffers[name].write(values))
        arrays = {name: self._reserve(name) for name in self._outputs}
        if not self._context.execute_async_v3(_DEFAULT_STREAM):
            raise self._run_error("its execution failed")
        self._device.synchronize()
        first = self._outputs[0]
        self._buffers[first].read(arrays[first])
        return arrays[first].astype(np.float32)

    def _reserve(self, name: str) -> Any:
        """Return an array of an output's shape, and give TensorRT a buffer for it."""
        shape = tuple(self._context.get_tensor_shape(name))
        array = np.empty(shape, dtype=trt.nptype(self._engine.get_tensor_dtype(name)))
        self._context.set_tensor_address(name, self._buffers[name].reserve(array))
        return array

    def _select_profile(self, feed: Feed) -> int:
        for number, profile in enumerate(self._profiles):
            pairs = [(feed[name].shape, profile[name]) for name in feed]
            if all(
                low <= size <= high
                for shape, shapes in pairs
                for low, size, high in zip(shapes.min, shape, shapes.max, strict=True)
            ):
                return number
        seen = {name: list(array.shape) for name, array in feed.items()}
        raise BuildError(
            f"no profile of the plan takes {seen}, which the task sends",
            remedy="Widen engine.options.profiles, or remove it to derive the profiles from the "
            "limits.",
        )

    def _run_error(self, reason: str) -> BuildError:
        return BuildError(
            f"TensorRT did not run the plan: {reason}: {self._logger.reason()}",
            remedy="See build.log. If the GPU's memory is short, nvidia-smi lists who has it.",
        )
