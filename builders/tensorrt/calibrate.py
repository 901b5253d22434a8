# SPDX-License-Identifier: Apache-2.0
"""int8 ranges from samples, with TensorRT's calibrators (10.x; gone in 11).

Importing this imports tensorrt and numpy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

from buildlib.problems import BuildError
from cuda_driver import Buffer, Device
from network import Network

_CLASSES = {"minmax": "IInt8MinMaxCalibrator", "entropy": "IInt8EntropyCalibrator2"}


def calibrator(kind: str, files: Sequence[Path], network: Network, cache: Path) -> Any:
    """Return a calibrator that feeds the samples in `files` and keeps its ranges in `cache`."""
    base = getattr(trt, _CLASSES[kind])
    sizes = _shapes(files, network)

    class _Calibrator(base):  # type: ignore[misc, valid-type]  # tensorrt has no types here
        # TensorRT reads this many values of each input, whatever a sample holds.
        shapes = sizes

        def __init__(self) -> None:
            base.__init__(self)
            self._rest = iter(files)
            device = Device()
            # A sample lies there until the next one: TensorRT reads from the GPU's memory.
            self._buffers = {name: Buffer(device) for name in _names(network)}

        def get_batch_size(self) -> int:
            return next(iter(sizes.values()))[0]

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            file = next(self._rest, None)
            if file is None:
                return None
            arrays = dict(zip(_names(network), read_sample(file, network), strict=True))
            return [self._buffers[name].holding(arrays[name]) for name in names]

        def read_calibration_cache(self) -> bytes | None:
            return None

        def write_calibration_cache(self, content: Any) -> None:
            cache.write_bytes(bytes(content))

    return _Calibrator()


def _shapes(files: Sequence[Path], network: Network) -> dict[str, tuple[int, ...]]:
    """The shape of each input, in all samples the same.

    Raises:
        BuildError: it is not.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        for name, array in zip(_names(network), read_sample(file, network), strict=True):
            if shapes.setdefault(name, array.shape) != array.shape:
                raise BuildError(
                    f"{file}: {name} has the shape {list(array.shape)}, and {files[0].name} has "
                    f"{list(shapes[name])}: a plan is calibrated with one shape",
                    remedy="Save all samples with the same shapes.",
                )
    return shapes


def _names(network: Network) -> list[str]:
    return [tensor.name for tensor in network.inputs]


def read_sample(file: Path, network: Network) -> list[Any]:
    """Return a sample's arrays in the order of the inputs.

    Raises:
        BuildError: one is missing, or of another type.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            sample = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise BuildError(
            f"{file}: cannot be read: {error}", remedy="Save it again with numpy.savez."
        ) from error
    for tensor in network.inputs:
        wanted = trt.nptype(getattr(trt.DataType, tensor.data_type))
        array = sample.get(tensor.name)
        if array is None or array.dtype != wanted or array.ndim != len(tensor.shape):
            what = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise BuildError(
                f"{file}: has {what} for the input {tensor.name}, which takes "
                f"{np.dtype(wanted).name}{list(tensor.shape)}",
                remedy="Save arrays of the graph's types and shapes, batch dimension first.",
            )
    return [np.ascontiguousarray(sample[name]) for name in _names(network)]
