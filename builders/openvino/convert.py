# SPDX-License-Identifier: Apache-2.0
"""Exports, compresses and saves a transformers model.

Importing this module imports torch, OpenVINO and optimum-intel, which takes seconds. The build
does it after the checks of checkpoint.py.
"""

import gc
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from folders import ENGINE
from options import OpenvinoOptions
from precisions import PRECISIONS, DecoderPrecision

# The libraries below read these on import: this module never uses the network.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import nncf
import openvino
import torch
from optimum.exporters.openvino import model_configs
from optimum.exporters.openvino.convert import export_from_model
from optimum.intel.openvino.configuration import OVConfig

# optimum-intel 2.2.0 refuses transformers later than those that it tested a model with. The engines
# of builder.toml's architectures equal that of requirements.txt token for token.
for _kind in vars(model_configs).values():
    if getattr(_kind, "MAX_TRANSFORMERS_VERSION", None):
        _kind.MAX_TRANSFORMERS_VERSION = "5.5.99"

_EXPORT_FOLDER = Path(".exported")
_MODEL_XML = "openvino_model.xml"

# Triton's names (model_config.proto, DataType) of OpenVINO's element types.
_TRITON_TYPES = {
    "boolean": "TYPE_BOOL",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "f16": "TYPE_FP16",
    "bf16": "TYPE_BF16",
    "f32": "TYPE_FP32",
}


def export_model(model: Any) -> None:
    """Write `model` as a stateful OpenVINO graph in fp32, which contains its KV cache."""
    warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
    export_from_model(
        model,
        _EXPORT_FOLDER,
        task="text-generation-with-past",
        ov_config=OVConfig(dtype="fp32"),
        stateful=True,
        preprocessors=[],
    )
    # The traced module and its patches hold a second copy of the weights until collected.
    gc.collect()


def compress_model(name: str, options: OpenvinoOptions) -> dict[str, list[dict[str, Any]]]:
    """Write engine/openvino_model.{xml,bin} in the precision `name` from the exported graph.

    Returns:
        The graph's inputs and outputs: name, Triton data type, dims (-1 where dynamic).
    """
    precision = PRECISIONS[name]
    model = openvino.Core().read_model(_EXPORT_FOLDER / _MODEL_XML)
    tensors = {"inputs": _specs(model.inputs), "outputs": _specs(model.outputs)}
    model = _compress(model, precision, options)
    # The exporter writes other hints here (an f16 KV cache). A graph loaded without our
    # properties should also behave as evaluated.
    hints = {name: str(value) for name, value in precision.properties.items()}
    model.set_rt_info(hints, ["runtime_options"])
    fp16 = precision.weights == "f16"
    openvino.save_model(model, ENGINE / _MODEL_XML, compress_to_fp16=fp16)
    shutil.rmtree(_EXPORT_FOLDER)
    return tensors


def _compress(model: Any, precision: DecoderPrecision, options: OpenvinoOptions) -> Any:
    if precision.weights == "int8_asym":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    if precision.weights == "int4_asym":
        # ADJUST: where a row is not a multiple of the group, that layer gets the largest smaller
        # group (not below 32), or int8 if no group fits; the default would fail the build.
        advanced = nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
        )
        return nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_ASYM,
            group_size=options.group_size,
            ratio=options.ratio,
            advanced_parameters=advanced,
        )
    return model


def _specs(ports: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": port.any_name,
            "data_type": _TRITON_TYPES[port.element_type.get_type_name()],
            "dims": [dim.get_length() if dim.is_static else -1 for dim in port.get_partial_shape()],
        }
        for port in ports
    ]
