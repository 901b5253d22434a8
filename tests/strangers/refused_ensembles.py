# SPDX-License-Identifier: Apache-2.0
"""Ensembles over models of any backend, which Triton refuses for how they are wired."""

from __future__ import annotations

from collections.abc import Mapping

from tests.strangers.configurations import TENSORS, Case, Files, cases, model
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.examples.onnx import FLOAT, onnx_file

Map = Mapping[str, str]


def step(name: str, takes: Map, gives: Map, version: int = -1) -> str:
    """A step, by its model's names of tensors and the ensemble's."""
    maps = [("input_map", takes), ("output_map", gives)]
    entries = [
        f'{field} {{ key: "{key}" value: "{value}" }}'
        for field, one in maps
        for key, value in one.items()
    ]
    return f'{{ model_name: "{name}" model_version: {version} {" ".join(entries)} }}'


def ensemble(*steps: str, config: str = f"max_batch_size: 2\n{TENSORS}", name: str = "m") -> Files:
    """An ensemble called `m` of these steps."""
    text = f'name: "{name}"\nplatform: "ensemble"\n{config}\n'
    return {
        f"{name}/config.pbtxt": text + f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}\n",
        f"{name}/1/README": "",
    }


def _tensors(side: str, names: tuple[str, ...], kind: str, dims: str) -> str:
    listed = ", ".join(f'{{ name: "{n}" data_type: {kind} dims: [ {dims} ] }}' for n in names)
    return f"{side} [ {listed} ]\n"


def inner(
    name: str,
    takes: tuple[str, ...] = ("X",),
    gives: tuple[str, ...] = ("Y",),
    *,
    batch: int = 4,
    kind: str = "TYPE_FP32",
    dims: str = "16",
    more: str = "",
    backend: str = "identity",
) -> Files:
    """A model that a step runs: of the backend that hands on what it gets."""
    tensors = _tensors("input", takes, kind, dims) + _tensors("output", gives, kind, dims)
    return model(f"max_batch_size: {batch}\n{tensors}{more}", backend, name=name)


A = inner("a")
WIDE = inner("wide", ("X", "Z"), ("Y", "W"))
FIRST, LAST = step("a", {"X": "IN"}, {"Y": "t"}), step("a", {"X": "t"}, {"Y": "OUT"})
_TWO_OUT = TENSORS + 'output [ { name: "MORE" data_type: TYPE_FP32 dims: [ 16 ] } ]\n'
_TWO_IN = TENSORS + 'input [ { name: "MORE" data_type: TYPE_FP32 dims: [ 16 ] } ]\n'
_STREAM = inner("stream", batch=0, more="model_transaction_policy { decoupled: true }\n")
_GRAPH = ExampleFile(onnx_file({"IN": (FLOAT, ["n", 16])}, {"OUT": (FLOAT, ["n", 16])}))
_PAIR = inner("pair", ("X", "Z"), ("Y",), batch=0)


def _versions(policy: str, *versions: int) -> Files:
    files = inner("a", more=policy)
    del files["a/1/README"]
    return files | {f"a/{version}/README": "" for version in versions}


def _asks(version: int) -> str:
    return step("a", {"X": "t"}, {"Y": "OUT"}, version)


ENSEMBLES: tuple[Case, ...] = cases(
    {
        "a circle of two ensembles": (
            ensemble(step("n", {"IN": "IN"}, {"OUT": "OUT"}))
            | ensemble(step("m", {"IN": "IN"}, {"OUT": "OUT"}), name="n"),
            "TC307",
        ),
        "an ensemble that calls itself": (
            ensemble(FIRST, step("m", {"IN": "t"}, {"OUT": "OUT"})) | A,
            "TC307",
        ),
        "an ensemble without a scheduler": (
            {"m/config.pbtxt": f'name: "m"\nplatform: "ensemble"\n{TENSORS}', "m/1/README": ""},
            "TC302",
        ),
        "an ensemble without a step": (ensemble() | A, "TC302"),
        "an ensemble with a backend": (
            ensemble(FIRST, LAST, config=f'backend: "onnxruntime"\n{TENSORS}') | A,
            "TC301",
        ),
        "an ensemble with instances": (
            ensemble(FIRST, LAST, config=TENSORS + "instance_group [ { count: 1 } ]") | A,
            "TC303",
        ),
        "an ensemble with an optimisation": (
            ensemble(FIRST, LAST, config=TENSORS + "optimization { priority: PRIORITY_MAX }") | A,
            "TC303",
        ),
        "an ensemble with a warm-up": (
            ensemble(FIRST, LAST, config=TENSORS + 'model_warmup [ { name: "w" batch_size: 1 } ]')
            | A,
            "TC303",
        ),
        "other types on both sides of a step": (
            ensemble(FIRST, step("b", {"X": "t"}, {"Y": "OUT"}))
            | A
            | inner("b", kind="TYPE_INT32"),
            "TC324",
        ),
        "other dims on both sides of a step": (
            ensemble(FIRST, step("b", {"X": "t"}, {"Y": "OUT"})) | A | inner("b", dims="4, 4, 1"),
            "TC325",
        ),
        "a larger batch than a step's": (
            ensemble(
                FIRST, step("b", {"X": "t"}, {"Y": "OUT"}), config=f"max_batch_size: 3\n{TENSORS}"
            )
            | A
            | inner("b", batch=2),
            "TC331",
        ),
        "a step that reads two streams": (
            ensemble(
                step("stream", {"X": "IN"}, {"Y": "s"}),
                step("stream", {"X": "IN"}, {"Y": "t"}),
                step("pair", {"X": "s", "Z": "t"}, {"Y": "OUT"}),
                config=TENSORS,
            )
            | _STREAM
            | _PAIR,
            "TC341",
        ),
        "an ensemble that answers with two streams": (
            ensemble(
                step("stream", {"X": "IN"}, {"Y": "OUT"}),
                step("stream", {"X": "IN"}, {"Y": "MORE"}),
                config=_TWO_OUT,
            )
            | _STREAM,
            "TC341",
        ),
        "an input that the step's model does not have": (
            ensemble(FIRST, step("wide", {"X": "t", "Z": "t", "OTHER": "IN"}, {"Y": "OUT"}))
            | A
            | WIDE,
            "TC321",
        ),
        "a misspelt input of a step": (
            ensemble(FIRST, step("wide", {"X": "t", "ZZ": "IN"}, {"Y": "OUT"})) | A | WIDE,
            "TC321",
        ),
        "an output that the step's model does not have": (
            ensemble(FIRST, step("wide", {"X": "t", "Z": "IN"}, {"Q": "OUT"})) | A | WIDE,
            "TC322",
        ),
        "an input of a step that is not mapped": (
            ensemble(FIRST, step("wide", {"X": "t"}, {"Y": "OUT"})) | A | WIDE,
            "TC323",
        ),
        "the same over a Python model": (
            ensemble(FIRST, step("b", {"X": "t"}, {"Y": "OUT"}))
            | A
            | inner("b", ("X", "Z"), ("Y", "W"), backend="python"),
            "TC323",
        ),
        "a step without an input": (ensemble(FIRST, step("a", {}, {"Y": "OUT"})) | A, "TC304"),
        "a step without an output": (ensemble(FIRST, step("a", {"X": "t"}, {})) | A, "TC304"),
        "a step without an output, whose tensor is read": (
            ensemble(step("a", {"X": "IN"}, {}), LAST) | A,
            "TC304",
        ),
        "a step without a model": (ensemble(step("", {"X": "IN"}, {"Y": "OUT"})) | A, "TC304"),
        "a model that is not there": (
            ensemble(FIRST, step("b", {"X": "t"}, {"Y": "OUT"})) | A,
            "TC305",
        ),
        "a version that is not there": (
            ensemble(FIRST, _asks(2)) | _versions("version_policy { all { } }\n", 1, 3),
            "TC306",
        ),
        "a version that the policy leaves out": (
            ensemble(FIRST, _asks(2))
            | _versions("version_policy { specific { versions: [ 1, 3 ] } }\n", 1, 2, 3),
            "TC306",
        ),
        "a version that is no longer the latest": (
            ensemble(FIRST, _asks(1)) | _versions("", 1, 3),
            "TC306",
        ),
        "one output for two tensors": (
            ensemble(
                FIRST,
                step("wide", {"X": "t", "Z": "t"}, {"Y": "u", "W": "u"}),
                step("a", {"X": "u"}, {"Y": "OUT"}),
            )
            | A
            | WIDE,
            "TC313",
        ),
        "two tensors for one input": (
            {
                **ensemble(FIRST, LAST),
                **A,
                "m/config.pbtxt": str(ensemble(FIRST, LAST)["m/config.pbtxt"]).replace(
                    'input_map { key: "X" value: "t" }',
                    'input_map { key: "X" value: "t" } input_map { key: "X" value: "IN" }',
                ),
            },
            "TC314 TC315 TC108",
        ),
        "a tensor that nothing writes": (
            ensemble(FIRST, step("wide", {"X": "t", "Z": "u"}, {"Y": "OUT"})) | A | WIDE,
            "TC311",
        ),
        "a tensor that nothing reads": (
            ensemble(step("wide", {"X": "IN", "Z": "IN"}, {"Y": "OUT", "W": "t"})) | WIDE,
            "TC314",
        ),
        "an input that nothing reads": (
            ensemble(FIRST, LAST, config=f"max_batch_size: 2\n{_TWO_IN}") | A,
            "TC315",
        ),
        "an output that nothing writes": (
            ensemble(FIRST, LAST, config=f"max_batch_size: 2\n{_TWO_OUT}") | A,
            "TC312",
        ),
        "an output made of itself": (
            ensemble(FIRST, LAST, step("a", {"X": "MORE"}, {"Y": "MORE"}), config=_TWO_OUT) | A,
            "TC316",
        ),
        "an output made of what nothing writes": (
            ensemble(FIRST, LAST, step("a", {"X": "u"}, {"Y": "MORE"}), config=_TWO_OUT) | A,
            "TC311",
        ),
        "steps in a model of a custom backend": (
            model(f"{TENSORS}ensemble_scheduling {{ step [ {FIRST}, {LAST} ] }}\n", "identity") | A,
            "TC301",
        ),
        "steps and instances in a model of another backend": (
            model(
                f"max_batch_size: 2\n{TENSORS}ensemble_scheduling {{ step [ {LAST} ] }}\n"
                "instance_group [ { kind: KIND_GPU } ]\n",
                "onnxruntime",
            )
            | {"m/1/model.onnx": _GRAPH},
            "TC301",
        ),
        "steps in a model of the Python backend": (
            model(f"{TENSORS}ensemble_scheduling {{ }}\n"),
            "TC301",
        ),
    }
)
