# SPDX-License-Identifier: Apache-2.0
"""Fields that Triton's core refuses, whatever backend the model is for."""

from __future__ import annotations

from tests.strangers.configurations import TENSORS, Case, cases, model, replaced
from tritonctl.checks.repository import CheckTarget

_BATCHED = f"max_batch_size: 8\n{TENSORS}"
_WHOLE = f"max_batch_size: 0\n{TENSORS}"
_THREE = "priority_levels: 3 default_priority_level: 2"
_POLICY = "priority_queue_policy {{ key: {} value {{ }} }}"
# Of a sequence batcher's control inputs.
_START = '{ name: "S" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }'


def _reshaped(dims: str, shape: str, batch: int, side: str = "input") -> str:
    """Tensors of which one has a reshape."""
    new = f"dims: [ {dims} ] reshape {{ shape: [ {shape} ] }}"
    first, second = TENSORS.splitlines()
    changed = {"input": first, "output": second}[side].replace("dims: [ 16 ]", new)
    other = second if side == "input" else first
    return f"max_batch_size: {batch}\n{changed}\n{other}\n"


def _controls(*controls: str) -> str:
    return f"{_BATCHED}sequence_batching {{ control_input [ {', '.join(controls)} ] }}\n"


def _control(name: str, kind: str, values: str = "int32_false_true: [ 0, 1 ]") -> str:
    return f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }}'


def _priorities(settings: str) -> str:
    return f"{_BATCHED}dynamic_batching {{ {settings} }}\n"


def _group(settings: str) -> str:
    return f"{_BATCHED}instance_group [ {{ {settings} }} ]\n"


def _batch_input(kind: str, sources: str, target: str = '"N"') -> str:
    said = f"source_input: [ {sources} ]" if sources else ""
    one = f"kind: {kind} target_name: [ {target} ] data_type: TYPE_FP32 {said}"
    return f"{_WHOLE}batch_input [ {{ {one} }} ]\n"


def _batch_output(target: str, sources: str) -> str:
    said = f"source_input: [ {sources} ]" if sources else ""
    one = f"target_name: [ {target} ] kind: BATCH_SCATTER_WITH_INPUT_SHAPE {said}"
    return f"{_WHOLE}batch_output [ {{ {one} }} ]\n"


def _counts() -> dict[str, str]:
    kinds = {
        "element count": "BATCH_ELEMENT_COUNT",
        "accumulated count": "BATCH_ACCUMULATED_ELEMENT_COUNT",
        "accumulated count with zero": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
        "largest count": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    }
    return {
        f"{name} of {word}": _batch_input(kind, sources)
        for name, kind in kinds.items()
        for word, sources in (("nothing", ""), ("two inputs", '"IN", "IN"'))
    }


_RESHAPES = {
    f"{what}, {'batched' if batch else 'whole'}, {side}": _reshaped(dims, shape, batch, side)
    for what, dims, shape in (
        ("fewer elements after a reshape", "15", "2, 5"),
        ("more elements after a reshape", "6", "3, 1, 4"),
        ("an open dimension that is gone after a reshape", "2, -1", "2, 2"),
        ("elements moved across an open dimension", "3, -1", "1, -1, 3"),
        ("two open dimensions made of one", "2, -1", "2, -1, -1"),
    )
    for batch in (0, 4)
    for side in ("input", "output")
}
_ZEROS = {
    f"a reshape to size 0, {'batched' if batch else 'whole'}, {side}": _reshaped(
        "2, 2", "0", batch, side
    )
    for batch in (0, 4)
    for side in ("input", "output")
}

CONFIGS: tuple[tuple[dict[str, str], str], ...] = (
    (_RESHAPES, "TC164"),
    (_ZEROS, "TC163"),
    (
        {
            f"a scalar without a batch, {side}": _reshaped("1", "", 0, side)
            for side in ("input", "output")
        },
        "TC165",
    ),
    (
        {
            "a size of 0, input": "max_batch_size: 8\n"
            + replaced("[ 16 ] } ]\nout", "[ 3, 0 ] } ]\nout"),
            "a size of 0, output": TENSORS[:60] + TENSORS[60:].replace("[ 16 ]", "[ 0 ]"),
            "a size of -2, input": replaced("[ 16 ] } ]\nout", "[ -2 ] } ]\nout"),
        },
        "TC163",
    ),
    ({"no data type": replaced('"IN" data_type: TYPE_FP32', '"IN"')}, "TC161"),
    ({"no dims": replaced("dims: [ 16 ] } ]\nout", "} ]\nout")}, "TC162"),
    ({"no name of an input": replaced('name: "IN" ', "")}, "TC160"),
    ({"no name of an output": replaced('name: "OUT" ', "")}, "TC160"),
    (
        {
            "an image of one dimension": replaced(
                "FP32 dims: [ 16 ] } ]\nout", "FP32 format: FORMAT_NCHW dims: [ 16 ] } ]\nout"
            ),
        },
        "TC166",
    ),
    ({"a max_batch_size below 0": f"max_batch_size: -1\n{TENSORS}"}, "TC170"),
    (
        {
            "a preferred size over the largest": _priorities("preferred_batch_size: [ 9 ]"),
            "a preferred size of 0": _priorities("preferred_batch_size: [ 0 ]"),
        },
        "TC171",
    ),
    (
        {
            "priorities without a default": _priorities("priority_levels: 3"),
            "a default over the lowest priority": _priorities(
                "priority_levels: 3 default_priority_level: 5"
            ),
            "a queue policy for priority 0": _priorities(f"{_THREE} {_POLICY.format(0)}"),
            "a queue policy for a priority too many": _priorities(f"{_THREE} {_POLICY.format(4)}"),
        },
        "TC172",
    ),
    (
        {
            "order kept over three priorities": _priorities(
                "preserve_ordering: true priority_levels: 3 default_priority_level: 2"
            ),
            "order kept, and late requests last": _priorities(
                "preserve_ordering: true default_queue_policy "
                "{ timeout_action: DELAY default_timeout_microseconds: 1000 }"
            ),
            "order kept, and late requests of a priority last": _priorities(
                "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
                "priority_queue_policy { key: 1 value "
                "{ timeout_action: DELAY default_timeout_microseconds: 1000 } }"
            ),
        },
        "TC173",
    ),
    (_counts(), "TC175"),
    ({"a count of an unknown input": _batch_input("BATCH_ELEMENT_COUNT", '"NONE"')}, "TC175"),
    (
        {
            "a scattered output named twice": _batch_output('"OUT", "OUT"', '"IN"'),
            "a scattered output without a source": _batch_output('"OUT"', ""),
            "a scattered output with two sources": _batch_output('"OUT"', '"IN", "IN"'),
            "a scattered output with an unknown source": _batch_output('"OUT"', '"NONE"'),
            "an unknown scattered output": _batch_output('"NONE"', '"IN"'),
        },
        "TC176",
    ),
    (
        {
            "two ends of a sequence": _controls(_START, _control("A", "END"), _control("B", "END")),
            "two starts of a sequence": _controls(_START, _control("A", "START")),
            "two readies of a sequence": _controls(_control("A", "READY"), _control("B", "READY")),
            "one tensor for two controls": _controls(_START, _control("S", "READY")),
        },
        "TC181",
    ),
    ({"a control without values": _controls(_START, _control("A", "READY", ""))}, "TC182"),
    (
        {
            "GPUs for instances on the CPU": _group("kind: KIND_CPU gpus: [ 0 ]"),
            "GPUs for a model that places itself": _group("kind: KIND_MODEL gpus: [ 0 ]"),
        },
        "TC190",
    ),
    (
        {
            "a GPU below 0": _group("kind: KIND_GPU gpus: [ -1 ]"),
            "a GPU below 0 in the second group": (
                f"{_BATCHED}instance_group [ {{ kind: KIND_CPU }} ]\n"
                "instance_group [ { kind: KIND_GPU gpus: [ 0, -1 ] } ]"
            ),
            "a GPU below 0 where Triton chooses": _group("gpus: [ -3 ]"),
        },
        "TC198",
    ),
    (
        {
            "steps in a model that is no ensemble": (
                f'{_BATCHED}ensemble_scheduling {{ step [ {{ model_name: "a" model_version: -1 '
                'input_map { key: "A" value: "IN" } output_map { key: "B" value: "OUT" } } ] }'
            ),
        },
        "TC301",
    ),
    (
        {"a runtime above the backend's folder": f'{_BATCHED}runtime: "../other/libtriton_x.so"'},
        "TC159",
    ),
    ({"a runtime by its whole path": f'{_BATCHED}runtime: "/opt/libtriton_x.so"'}, "TC159"),
    ({"a runtime that is no library": f'{_BATCHED}runtime: "the_backend"'}, "TC159"),
    ({"a runtime in Python of a library": f'{_BATCHED}runtime: "model.py"'}, "TC159"),
)
FIELDS: tuple[Case, ...] = (
    *(
        case
        for configs, rules in CONFIGS
        for case in cases({name: (model(config), rules) for name, config in configs.items()})
    ),
    *cases(
        {
            "kept answers of a stream": (
                model(
                    f"{TENSORS}model_transaction_policy {{ decoupled: true }}\n"
                    "response_cache { enable: true }\n",
                    "identity",
                ),
                "TC174",
            ),
        }
    ),
    *cases(
        {
            "a GPU that the machine does not have": (
                model(_group("kind: KIND_GPU gpus: [ 42 ]")),
                "TC601",
            ),
        },
        CheckTarget(gpus=(24 << 30,)),
    ),
)
