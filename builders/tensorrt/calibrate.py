# SPDX-License-Identifier: Apache-2.0
"""Measures int8 ranges on samples with TensorRT's calibrators (10.x, removed in 11).

Importing this module imports tensorrt and numpy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

from buildlib.problems import BuildError
from cuda_driver import CudaBuffer, CudaDevice
from network import Network

_CLASSES = {"minmax": "IInt8MinMaxCalibrator", "entropy": "IInt8EntropyCalibrator2"}


def create_calibrator(kind: str, files: Sequence[Path], network: Network, cache: Path) -> Any:
    """Return a calibrator that feeds the samples in `files` and writes its ranges to `cache`."""
    base = getattr(trt, _CLASSES[kind])
    sizes = _shapes(files, network)

    class _Calibrator(base):  # type: ignore[misc, valid-type]  # tensorrt has no types here
        # TensorRT reads this many values of each input, whatever the sample's size.
        shapes = sizes

        def __init__(self) -> None:
            base.__init__(self)
            self._rest = iter(files)
            device = CudaDevice()
            # TensorRT reads from GPU memory, so a sample stays there until the next one.
            self._buffers = {name: CudaBuffer(device) for name in _names(network)}

        def get_batch_size(self) -> int:
            return next(iter(sizes.values()))[0]

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            file = next(self._rest, None)
            if file is None:
                return None
            arrays = dict(zip(_names(network), read_sample(file, network), strict=True))
            return [self._buffers[name].write(arrays[name]) for name in names]

        def read_calibration_cache(self) -> bytes | None:
            return None

        def write_calibration_cache(self, content: Any) -> None:
            cache.write_bytes(bytes(content))

    return _Calibrator()


def _shapes(files: Sequence[Path], network: Network) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input.

    Raises:
        BuildError: samples differ in shape.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        for name, array in zip(_names(network), read_sample(file, network), strict=True):
            if shapes.setdefault(name, array.shape) != array.shape:
                raise BuildError(
                    f"{file}: {name} has the shape {list(array.shape)}, and {files[0].name} has "
                    f"{list(shapes[name])}: calibration needs one shape",
                    remedy="Save all samples with the same shapes.",
                )
    return shapes


def _names(network: Network) -> list[str]:
    return [tensor.name for tensor in network.inputs]


def read_sample(file: Path, network: Network) -> list[Any]:
    """Return the arrays of a sample in the order of the inputs.

    Raises:
        BuildError: an array is missing or has another type.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            sample = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{file}: cannot be read: {error}", remedy="Save it again with numpy.savez."
        ) from error
    for tensor in network.inputs:
        expected_type = trt.nptype(getattr(trt.DataType, tensor.data_type))
        array = sample.get(tensor.name)
        if array is None or array.dtype != expected_type or array.ndim != len(tensor.shape):
            description = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise BuildError(
                f"{file}: has {description} for the input {tensor.name}, which takes "
                f"{np.dtype(expected_type).name}{list(tensor.shape)}",
                remedy="Save arrays of the graph's types and shapes, batch dimension first.",
            )
    return [np.ascontiguousarray(sample[name]) for name in _names(network)]
