# SPDX-License-Identifier: Apache-2.0
"""What the sources of Triton's compiled backends refuse, a case for each message.

Read for it: what onnxruntime, pytorch, openvino and tensorflow read when they load a model.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.strangers.configurations import TENSORS, Case, Files, cases
from tests.strangers.refused_by_core import control, sequences, string_parameter
from tests.strangers.refused_graphs import BOTH, accelerator, graph_of, onnx, openvino, parameter
from tritonctl.checks.examples.files import Example
from tritonctl.checks.examples.onnx import INT32, Values
from tritonctl.checks.repository import CheckTarget

_ON_GPU = CheckTarget(gpus=(24 << 30,))
_ONE = '{{ name: "{}" data_type: TYPE_INT32 dims: [ {} ] }}'
_GRAPH: Values = {"A": (INT32, ["n", 16]), "S": (INT32, ["n", 1])}
_STATE_IN: Values = {**_GRAPH, "P": (INT32, ["n", 4])}
_STATE_OUT: Values = {"Y": (INT32, ["n", 16]), "Q": (INT32, ["n", 4])}
_PAIR = 'state [ {{ input_name: "P" output_name: "Q" data_type: TYPE_{} dims: [ 4 ] }} ]'


def _stateful(
    one: str, states: str = "", inputs: Values = _GRAPH, outputs: Values = _STATE_OUT
) -> Files:
    lists = f"input [ {_ONE.format('A', 16)} ]\n", f"output [ {_ONE.format('Y', 16)} ]\n"
    return onnx(*lists, inputs=inputs, outputs=outputs, more=sequences(one, states=states))


_START = control("S", "START")
_ONNX: Mapping[str, tuple[Example, str]] = {
    **{
        f"{key} {value!r} for ONNX": (onnx(*BOTH, more=string_parameter(key, value)), "TC188")
        for key, value in (
            *(("execution_mode", "2"), ("execution_mode", "parallel")),
            *(("intra_op_thread_count", "four"), ("inter_op_thread_count", "")),
            *(("enable_mem_arena", "yes"), ("enable_mem_pattern", "2")),
            *(("cudnn_conv_algo_search", "3"), ("cudnn_conv_algo_search", "HEURISTIC")),
            *(("arena_extend_strategy", "2"), ("arena_extend_strategy", "kSameAsRequested")),
            ("share_session_between_instances", "maybe"),
        )
    },
    **{
        f"{key} {value!r} for {name}": (
            onnx(*BOTH, more=accelerator(name, parameter(key, value))),
            "TC199",
        )
        for name, key, value in (
            *(("tensorrt", "trt_dla_core", "a"), ("tensorrt", "trt_engine_cache_enable", "yes")),
            *(("tensorrt", "precision_mode", "fp16"), ("tensorrt", "unknown", "1")),
            ("cuda", "do_copy_in_default_stream", "yes"),
            ("cuda", "use_ep_level_unified_stream", "2"),
        )
    },
    "a control of another type": (
        _stateful(control("S", "START", "fp32_false_true: [ 0, 1 ]")),
        "TC257",
    ),
    "a control of another size": (
        _stateful(_START, inputs={**_GRAPH, "S": (INT32, ["n", 2])}),
        "TC257",
    ),
    "a control without a size": (
        _stateful(_START, inputs={**_GRAPH, "S": (INT32, ["n"])}),
        "TC257",
    ),
    "an id of another type": (
        _stateful(control("S", "CORRID", "data_type: TYPE_UINT64")),
        "TC257",
    ),
    "an absent control": (_stateful(control("T", "START")), "TC206 TC207"),
    "a control too few": (_stateful(_START, inputs={**_GRAPH, "R": (INT32, ["n", 1])}), "TC207"),
    "an absent state": (_stateful(_START, _PAIR.format("INT32")), "TC206"),
    "a state too few": (_stateful(_START, inputs=_STATE_IN), "TC207"),
    "a state of another type": (
        _stateful(_START, _PAIR.format("FP32"), inputs=_STATE_IN),
        "TC257",
    ),
}


def _torch(more: str, name: str = "A__0", result: str = "Y__0", kind: str = "FP32") -> Files:
    tensor = f"data_type: TYPE_{kind} dims: [ 16 ]"
    lists = (
        f'input [ {{ name: "{name}" {tensor} }} ]\n',
        f'output [ {{ name: "{result}" {tensor} }} ]\n',
    )
    return graph_of("pytorch", "model.pt", more, lists)


def _torch_state(name: str = "S__1", result: str = "S__1", kind: str = "FP32") -> str:
    one = f'input_name: "{name}" output_name: "{result}" data_type: TYPE_{kind} dims: [ 4 ]'
    return sequences(control("START__2", "START"), states=f"state [ {{ {one} }} ]")


_PYTORCH: Mapping[str, tuple[Example, str]] = {
    **{
        f"a control called {name}": (_torch(sequences(control(name, "START"))), "TC247")
        for name in ("START", "START__one")
    },
    **{
        f"an id of {kind} for PyTorch": (
            _torch(sequences(control("ID__1", "CORRID", f"data_type: TYPE_{kind}"))),
            "TC256",
        )
        for kind in ("UINT64", "UINT32", "STRING")
    },
    "a state's input without a position": (_torch(_torch_state(name="S")), "TC247"),
    "a state's output without a position": (_torch(_torch_state(result="S")), "TC247"),
    "a state, and inputs without a position": (_torch(_torch_state(), name="A"), "TC256"),
    "a state, and outputs without a position": (_torch(_torch_state(), result="Y"), "TC256"),
    "a state of UINT16": (_torch(_torch_state(kind="UINT16")), "TC256"),
    "a state of strings": (_torch(_torch_state(kind="STRING")), "TC256"),
    **{f"{kind} for PyTorch": (_torch("", kind=kind), "TC209") for kind in ("UINT16", "UINT64")},
    "strings for PyTorch": (_torch("", kind="STRING"), "TC219"),
    **{
        f"{key} {value!r} for PyTorch": (_torch(string_parameter(key, value)), "TC188")
        for key, value in (
            *(("DISABLE_OPTIMIZED_EXECUTION", "yes"), ("INFERENCE_MODE", "2")),
            *(("DISABLE_CUDNN", "no"), ("ENABLE_WEIGHT_SHARING", "y")),
            *(("ENABLE_CACHE_CLEANING", "maybe"), ("ENABLE_JIT_PROFILING", "")),
            *(("ENABLE_JIT_EXECUTOR", "x"), ("ENABLE_TENSOR_FUSER", "x")),
            *(("INTRA_OP_THREAD_COUNT", "four"), ("INTER_OP_THREAD_COUNT", "x")),
        )
    },
}
_IR = tuple(
    f'{side} [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
    for side, name in (("input", "A"), ("output", "Y"))
)
_OTHERS: Mapping[str, tuple[Example, str]] = {
    **{
        f"{key} {value!r} for OpenVINO": (openvino(*_IR, string_parameter(key, value)), "TC188")
        for key, value in (
            *(("INFERENCE_NUM_THREADS", "four"), ("COMPILATION_NUM_THREADS", "-1")),
            *(("HINT_BF16", "maybe"), ("NUM_STREAMS", "many"), ("PERFORMANCE_HINT", "fast")),
        )
    },
    "OpenVINO that places itself": (
        openvino(*_IR, "instance_group [ { kind: KIND_MODEL } ]\n"),
        "TC613",
    ),
    **{
        f"{key} {value!r} for TensorFlow": (
            graph_of("tensorflow", "model.graphdef", string_parameter(key, value), (TENSORS,)),
            "TC188",
        )
        for key, value in (("TF_NUM_INTRA_THREADS", "four"), ("TF_NUM_INTER_THREADS", "-1"))
    },
}
BACKENDS: tuple[Case, ...] = (
    *(case for group in (_ONNX, _PYTORCH, _OTHERS) for case in cases(group)),
    *cases(
        {
            "OpenVINO on a GPU": (
                openvino(*_IR, "instance_group [ { kind: KIND_GPU } ]\n"),
                "TC613",
            ),
            "OpenVINO where Triton chooses the GPU": (
                openvino(*_IR, "instance_group [ { count: 2 } ]\n"),
                "TC613",
            ),
        },
        _ON_GPU,
    ),
)
