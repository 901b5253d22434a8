# SPDX-License-Identifier: Apache-2.0
"""Configurations that do not fit the model's file, or that its backend cannot complete."""

from __future__ import annotations

from tests.strangers.configurations import STRICT_SERVER, TENSORS, Case, Files, cases, model
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.examples.onnx import INT32, Values, onnx_file

_INPUTS: Values = {"A": (INT32, ["n", 16]), "B": (INT32, ["n", 16])}
_OUTPUTS: Values = {"Y": (INT32, ["n", 16]), "Z": (INT32, ["n", 16])}
_FIXED: Values = {"A": (INT32, [16]), "B": (INT32, [16])}


def _one(name: str, kind: str = "TYPE_INT32", dims: str = "16") -> str:
    return f'{{ name: "{name}" data_type: {kind} dims: [ {dims} ] }}'


def _list(side: str, *tensors: str) -> str:
    return f"{side} [ {', '.join(tensors)} ]\n"


def onnx(
    *lists: str,
    batch: int = 8,
    inputs: Values = _INPUTS,
    outputs: Values = _OUTPUTS,
    more: str = "",
) -> Files:
    """A model over an ONNX graph, with these lists of tensors."""
    config = f'name: "m"\nmax_batch_size: {batch}\n{"".join(lists)}{more}'
    return {"m/config.pbtxt": config, "m/1/model.onnx": ExampleFile(onnx_file(inputs, outputs))}


BOTH = (_list("input", _one("A"), _one("B")), _list("output", _one("Y"), _one("Z")))
_A, _B, _Y, _Z = _one("A"), _one("B"), _one("Y"), _one("Z")
_LISTS = {
    "another dims of an input": (_list("input", _one("A", dims="16, 1"), _B), "TC213 TC211"),
    "another type of an input": (_list("input", _one("A", "TYPE_FP32"), _B), "TC208"),
    "an unknown input": (_list("input", _A, _one("C")), "TC206"),
    "an input too many": (_list("input", _A, _B, _one("C")), "TC206"),
    "an input too few": (_list("input", _B), "TC207"),
    "another dims of an output": (_list("output", _one("Y", dims="4"), _Z), "TC213"),
    "another type of an output": (_list("output", _one("Y", "TYPE_FP32"), _Z), "TC208"),
    "an unknown output": (_list("output", _Y, _one("X")), "TC206"),
}


def _completed(lists: str) -> tuple[str, ...]:
    """The list, with the other one as the graph has it."""
    return (lists, BOTH[1]) if lists.startswith("input") else (BOTH[0], lists)


def accelerator(name: str, parameters: str = "", side: str = "gpu") -> str:
    one = f'{side}_execution_accelerator [ {{ name: "{name}" {parameters} }} ]'
    return f"optimization {{ execution_accelerators {{ {one} }} }}\n"


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: "{value}" }}'


def graph_of(backend: str, file: str, more: str, lists: tuple[str, ...] = BOTH) -> Files:
    config = f'name: "m"\nbackend: "{backend}"\nmax_batch_size: 8\n{"".join(lists)}{more}'
    return {"m/config.pbtxt": config, f"m/1/{file}": ExampleFile(b"weights")}


_XML = """<net name="g" version="11"><layers>
<layer id="0" name="A" type="Parameter" version="opset1"><data shape="?,4" element_type="f32"/>
<output><port id="0" precision="FP32" names="A"><dim>-1</dim><dim>4</dim></port></output></layer>
<layer id="1" name="Y" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>-1</dim><dim>4</dim></port></input></layer>
</layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>
"""


def openvino(*lists: str, batch: int = 8, xml: str = _XML) -> Files:
    config = f'name: "m"\nbackend: "openvino"\nmax_batch_size: {batch}\n{"".join(lists)}'
    return {"m/config.pbtxt": config, "m/1/model.xml": xml, "m/1/model.bin": ExampleFile(b"")}


# Of sizes that are all fixed, as converters write it for one request at a time.
WHOLE_XML = _XML.replace('"?,4"', '"1,4"').replace("<dim>-1</dim>", "<dim>1</dim>")


GRAPHS: tuple[Case, ...] = cases(
    {
        **{name: (onnx(*_completed(one)), rules) for name, (one, rules) in _LISTS.items()},
        **{f"{name}, in one list": (onnx(one), rules) for name, (one, rules) in _LISTS.items()},
        "a batch of a graph without": (onnx(BOTH[0], inputs=_FIXED), "TC210"),
        "a batch of a graph without, both lists": (onnx(*BOTH, inputs=_FIXED), "TC210"),
        "a batch that only an output lacks": (
            onnx(BOTH[0], outputs={"Y": (INT32, [16])}),
            "TC210",
        ),
        "an unknown input of an OpenVINO graph": (
            openvino(_list("input", _one("C", "TYPE_FP32", "4"))),
            "TC206",
        ),
        "an unknown output of an OpenVINO graph": (
            openvino(_list("output", _one("C", "TYPE_FP32", "4"))),
            "TC206",
        ),
        "other dims of an OpenVINO graph": (
            openvino(_list("input", _one("A", "TYPE_FP32", "7"))),
            "TC213",
        ),
        **{
            f"other whole dims of an {side} of an OpenVINO graph": (
                openvino(_list(side, _one(name, "TYPE_FP32", "1, 256")), batch=0, xml=WHOLE_XML),
                "TC213",
            )
            for side, name in (("input", "A"), ("output", "Y"))
        },
        "a ragged input of a graph that takes rows": (
            onnx(BOTH[0].replace("dims", "allow_ragged_batch: true dims", 1), BOTH[1]),
            "TC217",
        ),
        "PyTorch without inputs": (graph_of("pytorch", "model.pt", "", BOTH[1:]), "TC243"),
        "PyTorch without outputs": (graph_of("pytorch", "model.pt", "", BOTH[:1]), "TC243"),
        "PyTorch without a tensor": (graph_of("pytorch", "model.pt", "", ()), "TC243"),
        "a misspelt platform beside a file that tells": (
            {
                "m/config.pbtxt": 'name: "m"\nplatform: "onnxruntim"\n'
                f'default_model_filename: "model.onnx"\nmax_batch_size: 8\n{"".join(BOTH)}',
                "m/1/model.onnx": ExampleFile(onnx_file(_INPUTS, _OUTPUTS)),
            },
            "TC152",
        ),
        "a misspelt platform beside a savedmodel": (
            {
                "m/config.pbtxt": 'name: "m"\nplatform: "tensorflo"\n'
                f'default_model_filename: "model.savedmodel"\nmax_batch_size: 8\n{TENSORS}',
                "m/1/model.savedmodel/saved_model.pb": ExampleFile(b"x"),
            },
            "TC152",
        ),
        "a misspelt platform alone": (
            {
                "m/config.pbtxt": f'name: "m"\nplatform: "onnxruntim"\n{TENSORS}',
                "m/1/model.onnx": ExampleFile(onnx_file(_INPUTS, _OUTPUTS)),
            },
            "TC151",
        ),
        "no backend and no file that tells": (
            {"m/config.pbtxt": f'name: "m"\n{TENSORS}', "m/1/weights.bin": ExampleFile(b"x")},
            "TC150",
        ),
        "no version": ({"m/config.pbtxt": f'name: "m"\nbackend: "identity"\n{TENSORS}'}, "TC002"),
        "another file name than the backend's": (
            {
                "m/config.pbtxt": f'name: "m"\nplatform: "tensorflow_savedmodel"\n{TENSORS}',
                "m/1/my_model/saved_model.pb": ExampleFile(b"x"),
            },
            "TC004",
        ),
        "another name than the folder": (
            model(TENSORS) | {"m/config.pbtxt": f'name: "n"\nbackend: "python"\n{TENSORS}'},
            "TC001",
        ),
        "an unknown accelerator for GPUs": (onnx(*BOTH, more=accelerator("warp")), "TC199"),
        "an unknown accelerator for the CPU": (
            onnx(*BOTH, more=accelerator("warp", side="cpu")),
            "TC199",
        ),
        "TensorRT as an accelerator for the CPU": (
            onnx(*BOTH, more=accelerator("tensorrt", side="cpu")),
            "TC199",
        ),
        "an unknown parameter of TensorRT": (
            onnx(*BOTH, more=accelerator("tensorrt", parameter("segment_size", "1"))),
            "TC199",
        ),
        "a workspace that is no number": (
            onnx(*BOTH, more=accelerator("tensorrt", parameter("max_workspace_size_bytes", "abc"))),
            "TC199",
        ),
        "an unknown precision": (
            onnx(*BOTH, more=accelerator("tensorrt", parameter("precision_mode", "FP4"))),
            "TC199",
        ),
        "an unknown accelerator for TensorFlow": (
            graph_of("tensorflow", "model.graphdef", accelerator("warp")),
            "TC199",
        ),
        "an accelerator on the CPU for TensorFlow": (
            graph_of("tensorflow", "model.graphdef", accelerator("openvino", side="cpu")),
            "TC199",
        ),
        "an unknown parameter of TensorRT for TensorFlow": (
            graph_of(
                "tensorflow",
                "model.graphdef",
                accelerator("tensorrt", parameter("segment_size", "1")),
            ),
            "TC199",
        ),
        "a segment that is no number for TensorFlow": (
            graph_of(
                "tensorflow",
                "model.graphdef",
                accelerator("tensorrt", parameter("minimum_segment_size", "abc")),
            ),
            "TC199",
        ),
        "an unknown way to allocate for TensorRT": (
            graph_of(
                "tensorrt",
                "model.plan",
                'parameters { key: "execution_context_allocation_strategy" '
                'value: { string_value: "SOMEHOW" } }\n',
                (TENSORS,),
            ),
            "TC199",
        ),
        **{
            f"a metric without {lacking}": (
                model(f"{TENSORS}model_metrics {{ metric_control [ {{ {text} }} ] }}"),
                "TC158",
            )
            for lacking, text in {
                "its identifier": "histogram_options { buckets: [ 1 ] }",
                "its family": ("metric_identifier { } histogram_options { buckets: [ 1 ] }"),
                "options": 'metric_identifier { family: "f" }',
                "buckets": 'metric_identifier { family: "f" } histogram_options { }',
            }.items()
        },
    }
)
STRICT: tuple[Case, ...] = cases(
    {
        "a graph without a configuration, strictly": (
            {"m/1/model.onnx": ExampleFile(onnx_file(_INPUTS, _OUTPUTS))},
            "TC029",
        ),
        "a graph's inputs left out, strictly": (onnx(BOTH[1]), "TC243"),
        "a graph's outputs left out, strictly": (onnx(BOTH[0]), "TC243"),
        "a type left out, strictly": (
            onnx(BOTH[0].replace("data_type: TYPE_INT32", "", 1), BOTH[1]),
            "TC161",
        ),
    },
    STRICT_SERVER,
)
