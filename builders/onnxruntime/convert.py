# SPDX-License-Identifier: Apache-2.0
"""Optimises, converts and quantises an fp32 ONNX graph for serving.

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

from buildlib.problems import BuildError
from onnxlib.reader import write_model
from options import OnnxRuntimeOptions
from taskproof.feeds import Feed

_CPU = ["CPUExecutionProvider"]
_LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    # Not ORT_ENABLE_ALL: its layouts fit the building CPU, not the serving one.
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
# The operators with weights. Quantised sums and activations cost accuracy and save nothing here.
_OPERATORS = ["MatMul", "Gemm", "Conv", "Gather"]
_DYNAMIC_OPERATORS = ["MatMul", "Gemm", "Gather"]
# TensorRT accepts Q/DQ with zero points of 0, signed activations and unquantised biases. An
# embedding table in int8 would save nothing there.
_COMPILED_OPERATORS = ["MatMul", "Gemm", "Conv"]
# ONNX Runtime's convolutions in int8 give int8; its matrix products give fp32 as fast.
_EXACT_OUTPUTS = ["MatMul", "Gemm"]
_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}
# Protobuf's limit is 2 GiB, and the graph itself needs some space.
_MAX_EMBEDDED_BYTES = 1_800_000_000
_ERRORS_ONLY = 3
_LOCALE_REMEDY = (
    "Export the graph's StringNormalizer for the locale C (skl2onnx: "
    'options={id(vectorizer): {"locale": "C"}}), or install the locale here and on the server '
    "(locale-gen)."
)


def create_session(model: Path, *, optimise: bool = True, threads: int = 0) -> Any:
    """Return a session on this machine's CPU. Without `optimise` it runs the graph as written.

    `threads`: per run, including the caller's; 0: one per core.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    if not optimise:
        options.graph_optimization_level = _LEVELS["disabled"]
    return onnxruntime.InferenceSession(model, options, providers=_CPU)


def convert(
    source: Path,
    work: Path,
    target: Path,
    *,
    precision: str,
    options: OnnxRuntimeOptions,
    feeds: list[Feed],
) -> None:
    """Write `target` from the fp32 graph in `source`, in the requested precision.

    `work`: a folder for intermediate files. `feeds`: the data of static calibration.
    """
    current = work / "optimised.onnx"
    optimise(source, current, _level(precision, options))
    if precision == "fp16":
        optimised, current = current, work / "fp16.onnx"
        write_model(_fp16(optimised, options), current, external=True)
    elif precision == "int8":
        optimised, current = current, work / "int8.onnx"
        _quantise(optimised, current, options, feeds)
    model = onnx.load(current)
    is_embedded = model.ByteSize() < _MAX_EMBEDDED_BYTES and not options.external_data
    write_model(model, target, external=not is_embedded)


def _level(precision: str, options: OnnxRuntimeOptions) -> str:
    # A fused operator has no Q/DQ form, so static quantisation needs the standard operators.
    static = precision == "int8" and options.calibration == "static"
    if static and options.graph_optimization_level == "extended":
        return "basic"
    return options.graph_optimization_level


def optimise(source: Path, target: Path, level: str) -> None:
    """Write `source`, folded and fused by ONNX Runtime at `level`, with external weights.

    Raises:
        BuildError: ONNX Runtime does not load it.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.graph_optimization_level = _LEVELS[level]
    options.optimized_model_filepath = str(target)
    key = "session.optimized_model_external_initializers_file_name"
    options.add_session_config_entry(key, f"{target.name}.data")
    try:
        onnxruntime.InferenceSession(source, options, providers=_CPU)
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise BuildError(
            f"ONNX Runtime does not load the graph: {error}",
            remedy=_LOCALE_REMEDY
            if "locale" in str(error)
            else "Export it again; the message names the operator.",
        ) from error


def _fp16(source: Path, options: OnnxRuntimeOptions) -> Any:
    return convert_float_to_float16(
        onnx.load(source),
        keep_io_types=options.keep_io_types,
        # Shape inference needs one message in memory, which large graphs exceed.
        disable_shape_infer=_is_large(source),
    )


def _remove_weight_shapes(file: Path) -> None:
    """Remove the second copy of weights' shapes that ONNX Runtime saves.

    quantize_dynamic transposes the weight of a Gemm and fails if the copy then differs.
    """
    model = onnx.load(file, load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    remaining = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(remaining)
    onnx.save(model, file)


def _quantise(source: Path, target: Path, options: OnnxRuntimeOptions, feeds: list[Feed]) -> None:
    shared: dict[str, Any] = {
        "per_channel": options.per_channel,
        "reduce_range": options.reduce_range,
        "weight_type": QuantType.QInt8,
        "use_external_data_format": _is_large(source),
        # Attention's products of two activations stay in fp32.
        "extra_options": {"MatMulConstBOnly": True},
    }
    if options.calibration == "dynamic":
        _remove_weight_shapes(source)
        quantize_dynamic(source, target, op_types_to_quantize=_DYNAMIC_OPERATORS, **shared)
        return
    operators = _COMPILED_OPERATORS if options.is_for_tensorrt else _OPERATORS
    shared["extra_options"] |= _SYMMETRIC if options.is_for_tensorrt else {}
    # Quantised outputs, above all the graph's, would be clipped to the range of the calibration.
    exact = operators if options.is_for_tensorrt else _EXACT_OUTPUTS
    shared["extra_options"]["OpTypesToExcludeOutputQuantization"] = exact
    quantize_static(
        source,
        target,
        _FeedReader(feeds),
        nodes_to_exclude=_products_of_activations(source),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8 if options.is_for_tensorrt else QuantType.QUInt8,
        op_types_to_quantize=operators,
        calibrate_method=_METHODS[options.calibration_method],
        **shared,
    )


def _products_of_activations(file: Path) -> list[str]:
    """Return the names of matrix products without constant weights, as in attention.

    A softmax in int8 keeps 127 steps of its few large values and none of its small ones.
    `MatMulConstBOnly` applies to dynamic int8 only.
    """
    graph = onnx.load(file, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    products = (node for node in graph.node if node.op_type == "MatMul")
    return [node.name for node in products if constants.isdisjoint(node.input)]


class _FeedReader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Yields the calibration data, one feed at a time."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._remaining = iter(feeds)

    def get_next(self) -> Feed | None:
        """Return the next feed, or None at the end."""
        return next(self._remaining, None)


def _is_large(model: Path) -> bool:
    files = model.parent.glob(f"{model.name}*")
    return sum(file.stat().st_size for file in files) > _MAX_EMBEDDED_BYTES


def run_session(engine: Any, feed: Feed) -> list[Any]:
    """Return all outputs of a session as arrays. Texts become arrays of objects."""
    return [np.asarray(output) for output in engine.run(None, _match_input_types(engine, feed))]


def _match_input_types(engine: Any, feed: Feed) -> Feed:
    """Convert the feed of an fp32 graph for a graph with fp16 inputs."""
    halves = {tensor.name for tensor in engine.get_inputs() if tensor.type == "tensor(float16)"}
    return {
        name: array.astype("float16") if name in halves else array for name, array in feed.items()
    }
