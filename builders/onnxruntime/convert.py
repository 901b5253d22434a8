# SPDX-License-Identifier: Apache-2.0
"""From a plain ONNX graph to the one that is served: optimise, convert, quantise, save.

Importing this module imports onnx and onnxruntime.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.transformers.float16 import convert_float_to_float16

from onnxlib.reader import write_model
from options import Options
from taskproof.feeds import Feed

_CPU = ["CPUExecutionProvider"]
_LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    # Not ORT_ENABLE_ALL: its layouts are for the CPU that builds, not for the one that serves.
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
# Where the weights are. Quantised sums and activations cost accuracy and save nothing here.
_OPERATORS = ["MatMul", "Gemm", "Conv", "Gather"]
_DYNAMIC_OPERATORS = ["MatMul", "Gemm", "Gather"]
# What TensorRT takes of Q/DQ: zero points of 0, signed activations, biases as they are; a table of
# embeddings in int8 would save nothing where it is read.
_COMPILED_OPERATORS = ["MatMul", "Gemm", "Conv"]
# ONNX Runtime's convolutions in int8 give int8; its matrix products give fp32 as fast.
_EXACT_OUTPUTS = ["MatMul", "Gemm"]
_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
# Protobuf ends at 2 GiB; the graph itself needs some room.
_INSIDE_BYTES = 1_800_000_000
_ERRORS_ONLY = 3


def session(model: Path, *, optimise: bool = True, threads: int = 0) -> Any:
    """Return a session on this machine's CPU; without `optimise`, the graph as it is written.

    `threads`: of a run, the caller's among them; 0: one for each core.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    if not optimise:
        options.graph_optimization_level = _LEVELS["disabled"]
    return onnxruntime.InferenceSession(model, options, providers=_CPU)


def convert(
    source: Path, work: Path, target: Path, *, precision: str, options: Options, feeds: list[Feed]
) -> None:
    """Write `target` from the fp32 graph in `source`, in the precision asked for.

    `work` is a folder for what lies in between, `feeds` what static calibration measures ranges on.
    """
    made = work / "optimised.onnx"
    optimise(source, made, _level(precision, options))
    if precision == "fp16":
        optimised, made = made, work / "fp16.onnx"
        write_model(_fp16(optimised, options), made, external=True)
    elif precision == "int8":
        optimised, made = made, work / "int8.onnx"
        _quantise(optimised, made, options, feeds)
    model = onnx.load(made)
    inside = model.ByteSize() < _INSIDE_BYTES and not options.external_data
    write_model(model, target, external=not inside)


def _level(precision: str, options: Options) -> str:
    # A fused operator has no Q/DQ form: static quantisation wants the standard ones.
    static = precision == "int8" and options.calibration == "static"
    if static and options.graph_optimization_level == "extended":
        return "basic"
    return options.graph_optimization_level


def optimise(source: Path, target: Path, level: str) -> None:
    """Write `source` with what ONNX Runtime folds and fuses at `level`, weights beside it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.graph_optimization_level = _LEVELS[level]
    options.optimized_model_filepath = str(target)
    key = "session.optimized_model_external_initializers_file_name"
    options.add_session_config_entry(key, f"{target.name}.data")
    onnxruntime.InferenceSession(source, options, providers=_CPU)


def _fp16(source: Path, options: Options) -> Any:
    return convert_float_to_float16(
        onnx.load(source),
        keep_io_types=options.keep_io_types,
        # It works on one message in memory, where large graphs do not fit.
        disable_shape_infer=_is_large(source),
    )


def _forget_shapes_of_weights(file: Path) -> None:
    """Remove the second copy of weights' shapes, which ONNX Runtime saves.

    quantize_dynamic transposes the weight of a Gemm, and fails when the copy then differs.
    """
    model = onnx.load(file, load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    onnx.save(model, file)


def _quantise(source: Path, target: Path, options: Options, feeds: list[Feed]) -> None:
    shared: dict[str, Any] = {
        "per_channel": options.per_channel,
        "reduce_range": options.reduce_range,
        "weight_type": QuantType.QInt8,
        "use_external_data_format": _is_large(source),
        # Attention's products of two activations stay in fp32.
        "extra_options": {"MatMulConstBOnly": True},
    }
    if options.calibration == "dynamic":
        _forget_shapes_of_weights(source)
        quantize_dynamic(source, target, op_types_to_quantize=_DYNAMIC_OPERATORS, **shared)
        return
    operators = _COMPILED_OPERATORS if options.compiled else _OPERATORS
    shared["extra_options"] |= _SYMMETRIC if options.compiled else {}
    # Else what they give is cut where the calibration's ended, above all the graph's own answer.
    exact = operators if options.compiled else _EXACT_OUTPUTS
    shared["extra_options"]["OpTypesToExcludeOutputQuantization"] = exact
    quantize_static(
        source,
        target,
        _Feeds(feeds),
        nodes_to_exclude=_products_of_activations(source),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8 if options.compiled else QuantType.QUInt8,
        op_types_to_quantize=operators,
        calibrate_method=_METHODS[options.calibration_method],
        **shared,
    )


def _products_of_activations(file: Path) -> list[str]:
    """Names of the matrix products without constant weights; `MatMulConstBOnly` is of dynamic int8.

    Attention's: a softmax in int8 keeps 127 steps of its few large values, none of its small ones.
    """
    graph = onnx.load(file, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    products = (node for node in graph.node if node.op_type == "MatMul")
    return [node.name for node in products if constants.isdisjoint(node.input)]


class _Feeds(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Calibration data, one feed at a time."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._rest = iter(feeds)

    def get_next(self) -> Feed | None:
        """The next feed, or None."""
        return next(self._rest, None)


def _is_large(model: Path) -> bool:
    files = model.parent.glob(f"{model.name}*")
    return sum(file.stat().st_size for file in files) > _INSIDE_BYTES


def run(engine: Any, feed: Feed) -> list[Any]:
    """Return all outputs of a session as arrays; texts as arrays of objects."""
    return [np.asarray(output) for output in engine.run(None, _fitted(engine, feed))]


def _fitted(engine: Any, feed: Feed) -> Feed:
    """The feed of an fp32 graph for one whose inputs are fp16."""
    halves = {tensor.name for tensor in engine.get_inputs() if tensor.type == "tensor(float16)"}
    return {name: a.astype("float16") if name in halves else a for name, a in feed.items()}
