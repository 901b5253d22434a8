# SPDX-License-Identifier: Apache-2.0
"""A stand-in for TensorRT 10.14's Python module, for machines without a GPU.

Only what the builder uses, with the parameters, results and refusals that the module's own
documentation states; everything else is an AttributeError. A "graph" is JSON: inputs and outputs
as [name, type, shape], `quantised` as types of Q layers. An ONNX file is one, too, where onnx and
ONNX Runtime are, which runs it (onnx_plan.py).
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

__version__ = "10.14.1.48"


class DataType(enum.Enum):
    """tensorrt.DataType."""

    FLOAT, HALF, INT8, INT32, INT64, BOOL, FP8 = range(7)


class LayerType(enum.Enum):
    """tensorrt.LayerType."""

    ACTIVATION, QUANTIZE, DEQUANTIZE = range(3)


class BuilderFlag(enum.Enum):
    """tensorrt.BuilderFlag."""

    FP16, INT8, FP8, TF32, VERSION_COMPATIBLE = range(5)


class HardwareCompatibilityLevel(enum.Enum):
    """tensorrt.HardwareCompatibilityLevel."""

    NONE, AMPERE_PLUS, SAME_COMPUTE_CAPABILITY = range(3)


class MemoryPoolType(enum.Enum):
    """tensorrt.MemoryPoolType."""

    WORKSPACE = 0


class NetworkDefinitionCreationFlag(enum.IntEnum):
    """tensorrt.NetworkDefinitionCreationFlag."""

    STRONGLY_TYPED = 1


class TensorIOMode(enum.Enum):
    """tensorrt.TensorIOMode."""

    NONE, INPUT, OUTPUT = range(3)


class ILogger:
    """tensorrt.ILogger: to be subclassed."""

    class Severity(enum.Enum):
        """tensorrt.ILogger.Severity."""

        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    made = False

    def __init__(self) -> None:
        self.made = True


class Logger(ILogger):
    """tensorrt.Logger."""

    WARNING = ILogger.Severity.WARNING

    def __init__(self, min_severity: ILogger.Severity) -> None:
        super().__init__()
        self.min_severity = min_severity


class IProgressMonitor:
    """tensorrt.IProgressMonitor: to be subclassed."""

    def __init__(self) -> None:
        self.made = True


class IInt8MinMaxCalibrator:
    """tensorrt.IInt8MinMaxCalibrator: to be subclassed."""

    made = False

    def __init__(self) -> None:
        self.made = True


def nptype(data_type: DataType) -> type:
    """NumPy's type."""
    types = {"FLOAT": np.float32, "HALF": np.float16, "BOOL": np.bool_, "INT64": np.int64}
    return types[data_type.name]


def init_libnvinfer_plugins(logger: ILogger, namespace: str) -> bool:
    """Like TensorRT's; a logger whose base was not initialised would crash the process."""
    assert logger.made
    assert namespace == ""
    return True


class _Tensor:
    def __init__(self, name: str, data_type: str, shape: list[int]) -> None:
        self.name, self.dtype, self.shape = name, DataType[data_type], shape


class _Layer:
    def __init__(self, kind: LayerType, data_type: str) -> None:
        self.type, self._tensor = kind, _Tensor("", data_type, [])

    def get_output(self, index: int) -> _Tensor:
        """The layer's output."""
        assert index == 0
        return self._tensor


class _Network:
    def __init__(self, strongly_typed: bool) -> None:
        self.strongly_typed = strongly_typed
        self.content: dict[str, Any] = {}

    @property
    def num_inputs(self) -> int:
        """How many."""
        return len(self.content["inputs"])

    @property
    def num_outputs(self) -> int:
        """How many."""
        return len(self.content["outputs"])

    @property
    def num_layers(self) -> int:
        """An activation, and the Q layers."""
        return 1 + len(self.content.get("quantised", []))

    def get_input(self, index: int) -> _Tensor:
        """An input."""
        return _Tensor(*self.content["inputs"][index])

    def get_output(self, index: int) -> _Tensor:
        """An output."""
        return _Tensor(*self.content["outputs"][index])

    def get_layer(self, index: int) -> _Layer:
        """A layer."""
        if index == 0:
            return _Layer(LayerType.ACTIVATION, "FLOAT")
        return _Layer(LayerType.QUANTIZE, self.content["quantised"][index - 1])


class _Error:
    def __init__(self, words: str, operator: str = "", node: str = "") -> None:
        self._words, self._operator, self._node = words, operator, node

    def node_operator(self) -> str:
        """Empty where it is about no node."""
        return self._operator

    def node_name(self) -> str:
        """As the graph has it."""
        return self._node

    def desc(self) -> str:
        """The parser's words."""
        return self._words


# The first field of an ONNX file: ir_version.
_PROTOBUF = b"\x08"


class OnnxParser:
    """tensorrt.OnnxParser."""

    def __init__(self, network: _Network, logger: ILogger) -> None:
        assert logger.made
        self._network, self._errors = network, list[_Error]()

    def parse_from_file(self, model: str) -> bool:
        """False and errors for what is no graph."""
        try:
            self._network.content = self._parsed(Path(model))
        except ValueError as error:
            self._errors = [_Error(f"Failed to parse ONNX model: {error}")]
        for at, operator in enumerate(self._network.content.get("foreign", [])):
            self._errors.append(_Error("Plugin not found", operator, str(at)))
        return not self._errors

    def _parsed(self, file: Path) -> dict[str, Any]:
        raw = file.read_bytes()
        if raw.startswith(_PROTOBUF):
            import onnx_plan

            content: dict[str, Any] = onnx_plan.description(file)
        else:
            content = json.loads(raw)
        return content

    @property
    def num_errors(self) -> int:
        """How many."""
        return len(self._errors)

    def get_error(self, index: int) -> _Error:
        """An error."""
        return self._errors[index]


class _Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(
        self,
        input: str,  # noqa: A002 - TensorRT's name
        min: tuple[int, ...],  # noqa: A002
        opt: tuple[int, ...],
        max: tuple[int, ...],  # noqa: A002
    ) -> None:
        """ValueError for shapes of different lengths, or that fall."""
        if not len(min) == len(opt) == len(max):
            raise ValueError("inconsistent")
        if any(not 0 <= a <= b <= c for a, b, c in zip(min, opt, max, strict=True)):
            raise ValueError("inconsistent")
        self.shapes[input] = (min, opt, max)


class _Cache:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def serialize(self) -> bytes:
        """IHostMemory has the buffer protocol, as bytes do."""
        return self.content + b"times;"


class _Config:
    def __init__(self) -> None:
        self.flags = {BuilderFlag.TF32}
        self.profiles: list[_Profile] = []
        self.cache: _Cache | None = None
        self.workspace = 0
        self.builder_optimization_level = 3
        self.progress_monitor: IProgressMonitor | None = None
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        self.int8_calibrator: Any = None
        self.calibration: _Profile | None = None

    def set_calibration_profile(self, profile: _Profile) -> bool:
        """False if it is not valid."""
        self.calibration = profile
        return bool(profile.shapes)

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        """Bytes."""
        assert pool is MemoryPoolType.WORKSPACE
        self.workspace = pool_size

    def set_flag(self, flag: BuilderFlag) -> None:
        """On."""
        self.flags.add(BuilderFlag(flag))

    def clear_flag(self, flag: BuilderFlag) -> None:
        """Off."""
        self.flags.discard(BuilderFlag(flag))

    def add_optimization_profile(self, profile: _Profile) -> int:
        """Its number; -1 if it is not valid."""
        if not profile.shapes:
            return -1
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache: bytes) -> _Cache:
        """From bytes, none for an empty one."""
        return _Cache(bytes(serialized_timing_cache))

    def set_timing_cache(self, cache: _Cache, ignore_mismatch: bool) -> bool:
        """False for one of another device."""
        self.cache = cache
        return ignore_mismatch or not cache.content.startswith(b"other device")

    def get_timing_cache(self) -> _Cache | None:
        """The cache that was set."""
        return self.cache


class Builder:
    """tensorrt.Builder."""

    def __init__(self, logger: Any) -> None:
        assert logger.made
        self._logger = logger
        if "STAND_IN_NO_CUDA" in os.environ:
            words = "CUDA initialization failure with error: 35"
            self._logger.log(ILogger.Severity.WARNING, words)
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int = 0) -> _Network:
        """Bits by the number of the flag."""
        return _Network(bool(flags & 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)))

    def create_builder_config(self) -> _Config:
        """A configuration."""
        return _Config()

    def create_optimization_profile(self) -> _Profile:
        """An empty profile."""
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes | None:
        """None, and an error in the log, for what TensorRT refuses."""
        precisions = {BuilderFlag.FP16, BuilderFlag.INT8, BuilderFlag.FP8}
        if network.strongly_typed and config.flags & precisions:
            self._logger.log(ILogger.Severity.ERROR, "precision flags on a strongly typed network")
            return None
        if "fails" in network.content:
            self._logger.log(ILogger.Severity.ERROR, network.content["fails"])
            return None
        if config.progress_monitor is not None:
            monitor: Any = config.progress_monitor
            monitor.phase_start("Building Engine", None, 1)
            assert monitor.step_complete("Building Engine", 0) is True
            monitor.phase_finish("Building Engine")
        record = {
            **network.content,
            "calibrated": self._calibrated(network, config),
            "flags": sorted(flag.name for flag in config.flags),
            "strongly_typed": network.strongly_typed,
            "workspace": config.workspace,
            "level": config.builder_optimization_level,
            "hardware": config.hardware_compatibility_level.name,
            "profiles": [profile.shapes for profile in config.profiles],
        }
        return json.dumps(record).encode()

    def _calibrated(self, network: _Network, config: _Config) -> list[Any]:
        """The first value of each input in every batch, as the device would read it."""
        calibrator = config.int8_calibrator
        if calibrator is None:
            return []
        assert calibrator.made
        assert config.calibration is not None
        assert calibrator.read_calibration_cache() is None
        names = [network.get_input(at).name for at in range(network.num_inputs)]
        assert calibrator.get_batch_size() == config.calibration.shapes[names[0]][1][0]
        values = []
        while batch := calibrator.get_batch(names):
            values.append([ctypes.c_float.from_address(batch[0]).value, len(batch)])
        calibrator.write_calibration_cache(memoryview(b"ranges"))
        return values


class _Engine:
    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content
        self._inputs: dict[str, Any] = {t[0]: t for t in content["inputs"]}
        self._outputs: dict[str, Any] = {t[0]: t for t in content["outputs"]}

    @property
    def num_io_tensors(self) -> int:
        """Inputs and outputs."""
        return len(self._inputs) + len(self._outputs)

    def get_tensor_name(self, index: int) -> str:
        """Of an input or output."""
        return [*self._inputs, *self._outputs][index]

    def get_tensor_dtype(self, name: str) -> DataType:
        """By name."""
        return DataType[(self._inputs | self._outputs)[name][1]]

    def get_tensor_shape(self, name: str) -> list[int]:
        """By name."""
        return list((self._inputs | self._outputs)[name][2])

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """By name."""
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def create_execution_context(self) -> Any:
        """Of a plan that was made from an ONNX file."""
        import onnx_plan

        names = [*self._inputs, *self._outputs]
        types = {name: nptype(self.get_tensor_dtype(name)) for name in names}
        return onnx_plan.Context(self._content, types)


class Runtime:
    """tensorrt.Runtime."""

    def __init__(self, logger: ILogger) -> None:
        assert logger.made

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> _Engine | None:
        """None for what cannot be loaded."""
        content = json.loads(serialized_engine)
        return None if content.get("unloadable") else _Engine(content)
