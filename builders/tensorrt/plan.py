# SPDX-License-Identifier: Apache-2.0
"""Runs a plan, for its proof. Importing this imports tensorrt and numpy."""

from typing import Any

import numpy as np
import tensorrt as trt

from buildlib.problems import BuildError
from cuda_driver import Buffer, Device
from profiles import Profile

Feed = dict[str, Any]
_DEFAULT_STREAM = 0


class RunningPlan:
    """A plan on the first GPU: its inputs by name, NumPy arrays, to its only output.

    A run takes the first profile that holds its rows; more rows than one holds are several runs.

    `logger`: the compiler's, which is the process's.

    Raises:
        BuildError: the GPU has no memory for it.
    """

    def __init__(self, plan: bytes, profiles: list[Profile], logger: Any) -> None:
        self._logger = logger
        self._context: Any
        self._runtime = trt.Runtime(logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        loaded = self._engine is not None
        self._context = self._engine.create_execution_context() if loaded else None
        if self._context is None:
            raise self._not_run("it cannot be loaded")
        self._profiles = profiles
        self._device = Device()
        names = [self._engine.get_tensor_name(at) for at in range(self._engine.num_io_tensors)]
        self._inputs = [name for name in names if self._mode(name) == trt.TensorIOMode.INPUT]
        [self._output] = [name for name in names if name not in self._inputs]
        self._buffers = {name: Buffer(self._device) for name in names}

    def _mode(self, name: str) -> Any:
        return self._engine.get_tensor_mode(name)

    def __call__(self, feed: Feed) -> Any:
        """The output of every row. Raises BuildError where TensorRT does not run."""
        rows = len(feed[self._inputs[0]])
        most = min(shapes.max[0] for one in self._profiles for shapes in one.values())
        parts = [
            self._run({name: feed[name][at : at + most] for name in self._inputs})
            for at in range(0, rows, most)
        ]
        return np.concatenate(parts)

    def _run(self, feed: Feed) -> Any:
        number = self._profile(feed)
        if not self._context.set_optimization_profile_async(number, _DEFAULT_STREAM):
            raise self._not_run(f"it refuses profile {number}")
        self._device.wait()
        for name, array in feed.items():
            wanted = trt.nptype(self._engine.get_tensor_dtype(name))
            given = np.ascontiguousarray(array, dtype=wanted)
            if not self._context.set_input_shape(name, given.shape):
                raise self._not_run(f"it refuses the shape {list(given.shape)} of {name}")
            self._context.set_tensor_address(name, self._buffers[name].holding(given))
        shape = tuple(self._context.get_tensor_shape(self._output))
        kind = trt.nptype(self._engine.get_tensor_dtype(self._output))
        made = np.empty(shape, dtype=kind)
        buffer = self._buffers[self._output]
        self._context.set_tensor_address(self._output, buffer.room_for(made))
        if not self._context.execute_async_v3(_DEFAULT_STREAM):
            raise self._not_run("its execution failed")
        self._device.wait()
        buffer.read(made)
        return made.astype(np.float32)

    def _profile(self, feed: Feed) -> int:
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
            remedy="Widen engine.options.profiles, or remove it: the profiles then follow from the "
            "limits.",
        )

    def _not_run(self, reason: str) -> BuildError:
        return BuildError(
            f"TensorRT did not run the plan: {reason}: {self._logger.reason()}",
            remedy="See build.log. If the GPU's memory is short, nvidia-smi lists who has it.",
        )
