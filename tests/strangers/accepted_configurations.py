# SPDX-License-Identifier: Apache-2.0
"""Configurations that Triton completes or takes as they are; none may have an error."""

from __future__ import annotations

from tests.strangers.configurations import STRICT_SERVER, TENSORS, Case, cases, model, replaced
from tests.strangers.refused_ensembles import FIRST, LAST, A, ensemble, inner, step
from tests.strangers.refused_graphs import (
    BOTH,
    WHOLE_XML,
    accelerator,
    graph_of,
    onnx,
    openvino,
    parameter,
)
from tests.strangers.refused_python import IN, OUT, RETURN, bare, completing
from tritonctl.checks.examples.onnx import INT32

_FILE = 'default_model_filename: "model.py"\n'
_MORE = 'input [ { name: "MORE" data_type: TYPE_FP32 dims: [ 16 ] } ]\n'
_ONE_BATCH = f"max_batch_size: 4\n{TENSORS}"
_START = '{{ name: "S__2" control [ {{ kind: CONTROL_SEQUENCE_START {}_false_true: [ 0, 1 ] }} ] }}'
_LIST = 'INPUTS = [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}]'


def _python() -> tuple[Case, ...]:
    later = '{"name": "IN", "data_type": "TYPE_FP32"}'
    return cases(
        {
            "everything added by the code": (completing(IN, OUT, RETURN, config=""), ""),
            "the same said again": (completing(IN, OUT, RETURN), ""),
            "a type left to the code": (
                completing(IN, OUT, RETURN, config=replaced('"IN" data_type: TYPE_FP32', '"IN"')),
                "",
            ),
            "dims left to the code": (
                completing(IN, OUT, RETURN, config=TENSORS.replace("dims: [ 16 ]", "", 2)),
                "",
            ),
            "an input that the code does not add": (
                completing(OUT, RETURN, config=f"{TENSORS}{_MORE}"),
                "",
            ),
            "an optional input": (
                completing(IN.replace("}", ', "optional": True}'), OUT, RETURN, config=""),
                "",
            ),
            "a larger batch": (
                completing("config.set_max_batch_size(8)", RETURN, config=_ONE_BATCH),
                "",
            ),
            "the same batcher": (
                completing(
                    "config.set_dynamic_batching()",
                    RETURN,
                    config=f"{_ONE_BATCH}dynamic_batching {{ }}",
                ),
                "",
            ),
            "a batcher": (
                completing("config.set_dynamic_batching()", RETURN, config=_ONE_BATCH),
                "",
            ),
            "the same policy": (
                completing(
                    'config.set_model_transaction_policy({"decoupled": False})',
                    RETURN,
                    config=f"{TENSORS}model_transaction_policy {{ decoupled: false }}",
                ),
                "",
            ),
            "a policy": (
                completing('config.set_model_transaction_policy({"decoupled": True})', RETURN),
                "",
            ),
            "a policy without a key": (
                completing("config.set_model_transaction_policy({})", RETURN),
                "",
            ),
            "a dictionary that gets its dims later": (
                completing(f"one = {later}", 'one["dims"] = [16]', "config.add_input(one)", RETURN),
                "",
            ),
            "a dictionary that is updated": (
                completing(
                    f"one = {later}", "one.update(dims=[16])", "config.add_input(one)", RETURN
                ),
                "",
            ),
            "a list of dictionaries": (
                completing(
                    _LIST.replace("[4]", "[16]"),
                    "for one in INPUTS:",
                    "    config.add_input(one)",
                    RETURN,
                ),
                "",
            ),
            "a list with what the file has": (
                completing(
                    _LIST,
                    'names = [known["name"] for known in config.as_dict()["input"]]',
                    "for one in INPUTS:",
                    '    if one["name"] not in names:',
                    "        config.add_input(one)",
                    RETURN,
                ),
                "",
            ),
            "a list after a return": (
                completing(
                    "if config:",
                    "    return config",
                    _LIST.replace('"dims"', '"shape"'),
                    "for one in INPUTS:",
                    "    config.add_input(one)",
                    RETURN,
                ),
                "",
            ),
            "everything added, and no configuration": (bare(IN, OUT, RETURN), ""),
            "a return in both branches": (
                completing("if not config:", "    return config", RETURN),
                "",
            ),
        }
    )


ACCEPTED: tuple[Case, ...] = (
    *_python(),
    *cases(
        {
            "an ensemble in an ensemble": (
                ensemble(step("n", {"IN": "IN"}, {"OUT": "OUT"}))
                | ensemble(FIRST, LAST, name="n")
                | A,
                "",
            ),
            "a batch that becomes a dimension": (
                ensemble(
                    FIRST,
                    step("b", {"X": "t"}, {"Y": "OUT"}),
                    config=TENSORS.replace("[ 16 ]", "[ 4, 16 ]"),
                )
                | A
                | inner("b", dims="4, 16", batch=0),
                "",
            ),
            "an output of a step that is not mapped": (
                ensemble(step("b", {"X": "IN"}, {"Y": "OUT"})) | inner("b", gives=("Y", "Z")),
                "",
            ),
            "only the inputs of a graph": (onnx(BOTH[0]), ""),
            "only the outputs of a graph": (onnx(BOTH[1]), ""),
            "only whole shapes of the inputs of a graph": (
                onnx(BOTH[0], batch=0, inputs={"A": (INT32, [16]), "B": (INT32, [16])}),
                "",
            ),
            "a graph and no more than its batch": (onnx(), ""),
            "only some outputs of a graph": (
                onnx(BOTH[0], 'output [ { name: "Y" data_type: TYPE_INT32 dims: [ 16 ] } ]\n'),
                "",
            ),
            "a graph with instances on the CPU": (
                onnx(more="instance_group [ { kind: KIND_CPU } ]\n"),
                "",
            ),
            "only the outputs of an OpenVINO graph": (
                openvino('output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'),
                "",
            ),
            "only whole shapes of the inputs of an OpenVINO graph": (
                openvino(
                    'input [ { name: "A" data_type: TYPE_FP32 dims: [ 1, 4 ] } ]\n',
                    batch=0,
                    xml=WHOLE_XML,
                ),
                "",
            ),
            **{
                f"a control of {kind} for PyTorch": (
                    graph_of(
                        "pytorch",
                        "model.pt",
                        f"sequence_batching {{ control_input [ {_START.format(kind)} ] }}\n",
                        (
                            BOTH[0].replace('"A"', '"A__0"').replace('"B"', '"B__1"'),
                            BOTH[1].replace('"Y"', '"Y__0"').replace('"Z"', '"Z__1"'),
                        ),
                    ),
                    "",
                )
                for kind in ("int32", "fp32", "bool")
            },
            "TensorRT as an accelerator": (
                onnx(
                    *BOTH,
                    more=accelerator(
                        "tensorrt",
                        parameter("precision_mode", "FP16")
                        + parameter("max_workspace_size_bytes", "18446744073709551614")
                        + parameter("trt_engine_cache_enable", "True"),
                    ),
                ),
                "",
            ),
            "CUDA as an accelerator": (
                onnx(
                    *BOTH, more=accelerator("cuda", parameter("cudnn_conv_use_max_workspace", "0"))
                ),
                "",
            ),
            "OpenVINO as an accelerator": (
                onnx(*BOTH, more=accelerator("openvino", side="cpu")),
                "",
            ),
            "an accelerator out of a library": (
                onnx(*BOTH, more=accelerator("FastPluginExecutionProvider", side="cpu")),
                "",
            ),
            "TensorRT as an accelerator for TensorFlow": (
                graph_of(
                    "tensorflow",
                    "model.graphdef",
                    accelerator("tensorrt", parameter("minimum_segment_size", "1")),
                ),
                "",
            ),
            "a way to allocate for TensorRT": (
                graph_of(
                    "tensorrt",
                    "model.plan",
                    'parameters { key: "execution_context_allocation_strategy" '
                    'value: { string_value: "ON_PROFILE_CHANGE" } }\n',
                    (TENSORS,),
                ),
                "",
            ),
            "profiles of TensorRT": (
                graph_of(
                    "tensorrt",
                    "model.plan",
                    'instance_group [ { profile: "0" }, { profile: "1" } ]\n',
                    (),
                ),
                "",
            ),
            "a model that places itself": (
                graph_of(
                    "tensorflow", "model.graphdef", "instance_group { kind: KIND_MODEL }\n", ()
                ),
                "",
            ),
            "the backend in the model's name": (
                {
                    "m.identity/config.pbtxt": f"max_batch_size: 4\n{TENSORS}",
                    "m.identity/1/README": "",
                },
                "",
            ),
            "a metric with its buckets": (
                model(
                    f"{TENSORS}model_metrics {{ metric_control [ {{ "
                    'metric_identifier { family: "f" } histogram_options { buckets: [ 1 ] } } ] }'
                ),
                "",
            ),
            "the backend's own library": (model(f'{TENSORS}runtime: "libtriton_python.so"'), ""),
            "the same by way of its folder": (
                model(f'{TENSORS}runtime: "../python/libtriton_python.so"'),
                "",
            ),
            "a runtime in Python": (
                graph_of("pytorch", "model.py", 'runtime: "model.py"\n', ()),
                "",
            ),
            "a platform of one's own beside model.py": (
                model(TENSORS) | {"m/config.pbtxt": f'platform: "mine"\n{_FILE}{TENSORS}'},
                "",
            ),
        }
    ),
    *cases(
        {
            "whole, strictly": (model(TENSORS), ""),
            "a graph with both lists, strictly": (onnx(*BOTH), ""),
            "an auto_complete_config that nobody calls": (completing(IN, OUT), ""),
        },
        STRICT_SERVER,
    ),
)
