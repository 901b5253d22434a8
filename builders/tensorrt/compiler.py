# SPDX-License-Identifier: Apache-2.0
"""Compiles ONNX to a plan with TensorRT's Python API (10.x and 11).

Importing this module imports tensorrt.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorrt as trt

from buildlib.problems import BuildError
from buildlib.program import print_line
from network import NARROW, Network, NetworkTensor
from options import TensorrtOptions
from profiles import Profile
from rules import STRONGLY_TYPED_FROM, version_numbers

_FLAGS = {"fp16": ("FP16",), "int8": ("INT8", "FP16"), "fp8": ("FP8", "FP16")}
_MIB = 1 << 20
_MAX_ERRORS = 5


class _Logger(trt.ILogger):  # type: ignore[misc]  # tensorrt has no types here
    """Logs TensorRT's messages and keeps its errors and warnings.

    Use one per process: TensorRT keeps the first logger that it gets.
    """

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._errors: list[str] = []
        self._warnings: list[str] = []

    def reason(self) -> str:
        """Return the last errors, else the last warnings. An unusable GPU is only a warning."""
        return _join_last(self._errors or self._warnings)

    def log(self, severity: Any, message: str) -> None:
        """Log one message. Verbose ones are dropped: they would fill megabytes."""
        if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
            self._errors.append(message)
        elif severity == trt.ILogger.Severity.WARNING:
            self._warnings.append(message)
        if severity != trt.ILogger.Severity.VERBOSE:
            print_line(f"[{severity.name}] {message}")


class _Progress(trt.IProgressMonitor):  # type: ignore[misc]  # tensorrt has no types here
    """Logs the start of each build phase."""

    def __init__(self) -> None:
        trt.IProgressMonitor.__init__(self)

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """Log the start of an outer phase."""
        if parent_phase is None:
            print_line(f"{phase_name} ({num_steps} steps)")

    def phase_finish(self, phase_name: str) -> None:
        """Do nothing at the end of a phase."""

    def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002 - TensorRT's
        """Continue the build."""
        return True


@dataclass
class Compiler:
    """A parsed graph with the TensorRT objects that it depends on."""

    logger: _Logger
    builder: Any
    network: Any
    description: Network

    @property
    def version(self) -> str:
        """The version of TensorRT."""
        return str(trt.__version__)

    @classmethod
    def parse(cls, model: Path, *, strongly_typed: bool) -> "Compiler":
        """Read an ONNX file.

        Raises:
            BuildError: TensorRT cannot use the GPU or parse the file. The problem quotes it.
        """
        logger = _Logger()
        trt.init_libnvinfer_plugins(logger, "")
        builder = _create_builder(logger)
        flags = 0
        if strongly_typed:
            flags |= 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(flags)
        parser = trt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(model)):
            raise BuildError(
                f"{model}: TensorRT {trt.__version__} cannot parse it: {_parser_errors(parser)}",
                remedy="Export it with operators that TensorRT has (its ONNX operator matrix), or "
                "serve it with the onnxruntime builder.",
            )
        return cls(logger, builder, network, _describe_network(network))

    def plan(
        self,
        precision: str,
        options: TensorrtOptions,
        profiles: list[Profile],
        *,
        calibrator: Any = None,
        timing_cache: bytes = b"",
    ) -> tuple[bytes, bytes]:
        """Return the plan and the timing cache.

        Raises:
            BuildError: TensorRT finds no plan. The problem quotes its last errors.
        """
        config = self._builder_config(precision, options)
        for profile in profiles:
            self._add_profile(config, profile)
        if calibrator is not None:
            self._calibrate(config, calibrator)
        cache = config.create_timing_cache(timing_cache)
        if not config.set_timing_cache(cache, False):
            raise BuildError(
                "the timing cache is of another GPU or another TensorRT",
                remedy="Remove engine.options.timing_cache: this build makes a new one.",
            )
        plan = self.builder.build_serialized_network(self.network, config)
        if plan is None:
            raise BuildError(
                f"TensorRT made no plan: {self.logger.reason()}",
                remedy="See build.log. To use less memory, lower opt and max in the profiles or "
                "engine.options.workspace_mib.",
            )
        return bytes(plan), bytes(config.get_timing_cache().serialize())

    def _builder_config(self, precision: str, options: TensorrtOptions) -> Any:
        config = self.builder.create_builder_config()
        workspace = options.workspace_mib * _MIB
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
        config.builder_optimization_level = options.builder_optimization_level
        config.progress_monitor = _Progress()
        if not options.strongly_typed and version_numbers(trt.__version__)[0] < STRONGLY_TYPED_FROM:
            for name in _FLAGS.get(precision, ()):
                config.set_flag(getattr(trt.BuilderFlag, name))
        if not options.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if options.version_compatible:
            config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatibility.upper())
        config.hardware_compatibility_level = level
        return config

    def _calibrate(self, config: Any, calibrator: Any) -> None:
        """Set the calibrator and a profile with the shape of its samples."""
        profile = self.builder.create_optimization_profile()
        for name, shape in calibrator.shapes.items():
            profile.set_shape(name, shape, shape, shape)
        if not config.set_calibration_profile(profile):
            raise BuildError(
                "TensorRT refuses the shapes of the calibration samples: " + self.logger.reason(),
                remedy="Save samples of shapes that the graph takes, batch dimension first.",
            )
        config.int8_calibrator = calibrator

    def _add_profile(self, config: Any, profile: Profile) -> None:
        optimization_profile = self.builder.create_optimization_profile()
        for name, shapes in profile.items():
            optimization_profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
        if config.add_optimization_profile(optimization_profile) < 0:
            raise BuildError(
                f"TensorRT refuses the optimisation profile {profile}: {self.logger.reason()}",
                remedy="Correct engine.options.profiles.",
            )

    def inspect(self, plan: bytes) -> Network:
        """Load a plan like a server and return its inputs and outputs.

        Raises:
            BuildError: the plan does not load.
        """
        runtime = trt.Runtime(self.logger)
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BuildError(
                f"TensorRT cannot load the plan that it has just made: {self.logger.reason()}",
                remedy="See build.log, and report it to NVIDIA.",
            )
        names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
        tensors = {
            name: NetworkTensor(
                name, engine.get_tensor_dtype(name).name, tuple(engine.get_tensor_shape(name))
            )
            for name in names
        }
        input_names = [n for n in names if engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        outputs = [tensors[name] for name in names if name not in input_names]
        return Network(tuple(tensors[name] for name in input_names), tuple(outputs))


def _create_builder(logger: _Logger) -> Any:
    try:
        return trt.Builder(logger)
    except TypeError as error:  # the binding raises it without a builder
        raise BuildError(
            f"TensorRT cannot use the GPU: {logger.reason()}",
            remedy="Type nvidia-smi. CUDA error 2: the GPU's memory is full; 35: the driver is too "
            "old for this TensorRT; 100: the GPU is hidden (CUDA_VISIBLE_DEVICES).",
        ) from error


def _parser_errors(parser: Any) -> str:
    """Return the parser's errors, one per operator with its first node."""
    messages: dict[tuple[str, str], str] = {}
    for at in range(parser.num_errors):
        error = parser.get_error(at)
        operator, description = error.node_operator(), error.desc()
        location = f"{operator} (node {error.node_name()}): " if operator else ""
        messages.setdefault((operator, description), f"{location}{description}")
    return _join_last(messages.values())


def _join_last(words: Iterable[str]) -> str:
    """Join the last distinct messages."""
    return "; ".join(list(dict.fromkeys(words))[-_MAX_ERRORS:]) or "no reason given"


def _describe_network(network: Any) -> Network:
    inputs = (network.get_input(at) for at in range(network.num_inputs))
    outputs = (network.get_output(at) for at in range(network.num_outputs))
    layers = (network.get_layer(at) for at in range(network.num_layers))
    types = (_quantised_type(layer) for layer in layers)
    quantised = frozenset(name for name in types if name is not None)
    return Network(_tensors(inputs), _tensors(outputs), quantised)


def _quantised_type(layer: Any) -> str | None:
    """Return the narrow type of a Q or DQ layer, or None for other layers.

    Graphs with quantised weights have DQ layers only. A type that TensorRT has not decided yet
    reads FLOAT and becomes INT8.
    """
    if layer.type == trt.LayerType.QUANTIZE:
        tensor = layer.get_output(0)
    elif layer.type == trt.LayerType.DEQUANTIZE:
        tensor = layer.get_input(0)
    else:
        return None
    name = str(tensor.dtype.name)
    return name if name in NARROW else "INT8"


def _tensors(tensors: Iterable[Any]) -> tuple[NetworkTensor, ...]:
    return tuple(NetworkTensor(t.name, t.dtype.name, tuple(t.shape)) for t in tensors)
