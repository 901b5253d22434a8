# SPDX-License-Identifier: Apache-2.0
"""What the sources of Triton's core refuse, a case for each message.

Read for it: `model_config_utils`, `model`, `backend_model`, `backend_model_instance`,
`sequence_batch_scheduler` and `sequence_state`, and what the Python backend reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.strangers.configurations import TENSORS, Case, Files, cases, model
from tests.strangers.refused_graphs import BOTH, graph_of, onnx
from tritonctl.checks.examples.files import Example, ExampleFile

_BATCHED = f"max_batch_size: 8\n{TENSORS}"
_INIT = 'data_type: TYPE_FP32 dims: [ 4 ] name: "a"'
_NOTHING = 'input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 4 ]'


def _python(more: str) -> Files:
    return model(f"{_BATCHED}{more}\n")


def _changed(old: str, new: str) -> Files:
    files = _python("")
    config = str(files["m/config.pbtxt"])
    assert old in config, old
    return files | {"m/config.pbtxt": config.replace(old, new, 1)}


def _input(more: str) -> Files:
    return _changed('"IN" data_type', f'"IN" {more} data_type')


def _output(more: str) -> Files:
    return _changed('"OUT" data_type', f'"OUT" {more} data_type')


def control(name: str, kind: str, values: str = "int32_false_true: [ 0, 1 ]") -> str:
    return f'{{ name: "{name}" control [ {{ kind: CONTROL_SEQUENCE_{kind} {values} }} ] }}'


def sequences(*controls: str, states: str = "") -> str:
    return f"sequence_batching {{ control_input [ {', '.join(controls)} ] {states} }}\n"


def _state(initial: str = "", more: str = "", base: str = _NOTHING) -> str:
    first = f"initial_state: {{ {initial} }}" if initial else ""
    return f"state [ {{ {base} {more} {first} }} ]"


def _states(*states: str) -> Files:
    return _python(sequences(states=" ".join(states)))


def string_parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def _plan(more: str, tensors: str = TENSORS) -> Files:
    config = f'name: "m"\nplatform: "tensorrt_plan"\nmax_batch_size: 8\n{tensors}{more}'
    return {"m/config.pbtxt": config, "m/1/model.plan": ExampleFile(b"weights" * 40)}


def _warm_up(content: str, more: str = "", key: str = "IN") -> Files:
    sample = f'inputs {{ key: "{key}" value: {{ {content} }} }}'
    return _python(f'{more}model_warmup [ {{ name: "w" batch_size: 1 {sample} }} ]')


_CONTROLS: Mapping[str, tuple[Example, str]] = {
    "a cache and sequences": (
        _python("sequence_batching { }\nresponse_cache { enable: true }"),
        "TC174",
    ),
    **{
        f"a control with {count} values of {kind}": (
            _python(sequences(control("A", "START", f"{kind}_false_true: [ {values} ]"))),
            "TC182",
        )
        for kind, value in (("int32", "0"), ("fp32", "0"), ("bool", "false"))
        for count, values in ((1, value), (3, f"{value}, {value}, {value}"))
    },
    "a control of two types": (
        _python(sequences(control("A", "END", "int32_false_true: [0, 1] fp32_false_true: [0, 1]"))),
        "TC182",
    ),
    "an id with values": (
        _python(
            sequences(control("A", "CORRID", "data_type: TYPE_UINT64 int32_false_true: [0, 1]"))
        ),
        "TC182",
    ),
    **{
        f"an id of {kind}": (
            _python(sequences(control("A", "CORRID", f"data_type: TYPE_{kind}"))),
            "TC183",
        )
        for kind in ("FP32", "INT16", "INVALID")
    },
    **{
        f"sequences that prefer {sizes}": (
            _python(f"sequence_batching {{ oldest {{ preferred_batch_size: [ {sizes} ] }} }}"),
            "TC171",
        )
        for sizes in ("0", "-1", "4, 9")
    },
    **{
        f"a slot utilization of {share}": (
            _python(f"sequence_batching {{ direct {{ minimum_slot_utilization: {share} }} }}"),
            "TC184",
        )
        for share in ("1.5", "-0.5")
    },
}
_STATES: Mapping[str, tuple[Example, str]] = {
    "two first states": (
        _states(
            _state(f"{_INIT} zero_data: true", f"initial_state: {{ {_INIT} zero_data: true }}")
        ),
        "TC185",
    ),
    **{
        f"a first state with {name}": (_states(_state(content)), rules)
        for name, content, rules in (
            ("another type", f"{_INIT.replace('FP32', 'INT32')} zero_data: true", "TC185"),
            ("no name", f"{_INIT.partition('name')[0]} zero_data: true", "TC185"),
            ("another rank", f"{_INIT.replace('[ 4 ]', '[ 4, 1 ]')} zero_data: true", "TC185"),
            ("an open size", f"{_INIT.replace('[ 4 ]', '[ -1 ]')} zero_data: true", "TC185"),
            ("another size", f"{_INIT.replace('[ 4 ]', '[ 5 ]')} zero_data: true", "TC185"),
            ("nothing in it", _INIT, "TC185"),
            ("an absent file", f'{_INIT} data_file: "x"', "TC022"),
        )
    },
    "a first state with a short file": (
        _states(_state(f'{_INIT} data_file: "x"')) | {"m/initial_state/x": "abc"},
        "TC023",
    ),
    "two first states of one input": (
        _states(
            _state(f"{_INIT} zero_data: true"),
            _state(f"{_INIT} zero_data: true", base=_NOTHING.replace('"T"', '"U"')),
        ),
        "TC185",
    ),
}
_TENSORS: Mapping[str, tuple[Example, str]] = {
    "a shape tensor as input": (_input("is_shape_tensor: true"), "TC167"),
    "a shape tensor as output": (_output("is_shape_tensor: true"), "TC167"),
    "a non-linear input": (_input("is_non_linear_format_io: true"), "TC167"),
    "a non-linear output": (_output("is_non_linear_format_io: true"), "TC167"),
    **{
        f"a non-linear {side} of one dimension": (
            _plan("", TENSORS.replace(f'"{name}" d', f'"{name}" is_non_linear_format_io: true d')),
            "TC166",
        )
        for side, name in (("input", "IN"), ("output", "OUT"))
    },
    "an image of 2 dims": (
        _changed("FP32 dims: [ 16 ]", "FP32 format: FORMAT_NHWC dims: [4, 4]"),
        "TC166",
    ),
    **{
        f"the profile {profile!r}": (
            _plan(f'instance_group [ {{ profile: "{profile}" }} ]'),
            "TC191",
        )
        for profile in ("abc", "-1", "")
    },
    "a profile for ONNX": (onnx(*BOTH, more='instance_group [ { profile: "0" } ]'), "TC191"),
    "a profile for Python": (_python('instance_group [ { profile: "0" } ]'), "TC191"),
    **{
        f"a batch input of {kind or 'no type'}": (
            _python(
                f'batch_input [ {{ kind: BATCH_ELEMENT_COUNT target_name: "N" {kind} '
                'source_input: "IN" } ]'
            ),
            "TC175",
        )
        for kind in ("data_type: TYPE_INT64", "")
    },
    **{
        f"{kind} of {source or 'nothing'}": (
            _python(
                f'batch_input [ {{ kind: {kind} target_name: "N" {source} '
                "data_type: TYPE_INT32 } ]"
            ),
            "TC175",
        )
        for kind in ("BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN")
        for source in ("", 'source_input: "OUT"')
    },
    "an absent file of labels": (_output('label_filename: "labels.txt"'), "TC020"),
    "TensorFlow without its platform": (
        graph_of("tensorflow", "my.pb", 'default_model_filename: "my.pb"\n', (TENSORS,)),
        "TC152",
    ),
}
_WARM_UPS: Mapping[str, tuple[Example, str]] = {
    f"a warm-up with {name}": (_warm_up(content, *more), rules)
    for name, content, rules, *more in (
        ("an open size", "data_type: TYPE_FP32 dims: [ -1 ] zero_data: true", "TC192"),
        ("nothing in it", "data_type: TYPE_FP32 dims: [ 16 ]", "TC192"),
        ("an absent file", 'data_type: TYPE_FP32 dims: [ 16 ] input_data_file: "x"', "TC022"),
        ("another type", "data_type: TYPE_INT32 dims: [ 16 ] zero_data: true", "TC193"),
        ("another size", "data_type: TYPE_FP32 dims: [ 8 ] zero_data: true", "TC193"),
        ("another rank", "data_type: TYPE_FP32 dims: [ 16, 1 ] zero_data: true", "TC193"),
        (
            "an input too few",
            *("data_type: TYPE_FP32 dims: [ 16 ] zero_data: true", "TC193"),
            'input [ { name: "B" data_type: TYPE_FP32 dims: [ 1 ] } ]\n',
        ),
        (
            "an unknown input",
            *("data_type: TYPE_FP32 dims: [ 16 ] zero_data: true", "TC193", "", "NONE"),
        ),
    )
}
_AGENT = "model_repository_agents {{ agents [ {{ {} }} ] }}"
_STRATEGY = string_parameter("TRITON_BATCH_STRATEGY_PATH", "/absent/batchstrategy.so")
_FOLDER = "$$TRITON_MODEL_DIRECTORY/env"
_FILES: Mapping[str, tuple[Example, str]] = {
    "a batching strategy of sequences": (_python(f"{_STRATEGY}sequence_batching {{ }}"), "TC196"),
    "an agent without a name": (
        _python(_AGENT.format('parameters { key: "a" value: "b" }')),
        "TC034",
    ),
    "no agents": (_python("model_repository_agents { }"), "TC155"),
    **{
        f"a checksum of {key}": (
            _python(_AGENT.format(f'name: "checksum" parameters {{ key: "{key}" value: "00" }}')),
            "TC034",
        )
        for key in ("MD5:1/model.py", "MD5:1/absent.py", "SHA256:1/model.py")
    },
    "an absent environment": (_python(string_parameter("EXECUTION_ENV_PATH", _FOLDER)), "TC025"),
    "a text as environment": (
        _python(string_parameter("EXECUTION_ENV_PATH", _FOLDER)) | {"m/env": "text"},
        "TC035",
    ),
    "an environment without activate": (
        _python(string_parameter("EXECUTION_ENV_PATH", _FOLDER)) | {"m/env/lib/x": ""},
        "TC025",
    ),
    "an unknown place of inputs": (
        _python(string_parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe")),
        "TC195",
    ),
}
CORE: tuple[Case, ...] = tuple(
    case for group in (_CONTROLS, _STATES, _TENSORS, _WARM_UPS, _FILES) for case in cases(group)
)
# Triton loads these, and no request is answered.
UNANSWERED: tuple[Case, ...] = cases(
    {
        "a growing state of two buffers": (
            _states(_state(more="use_growable_memory: true")),
            "TC189",
        ),
        "a growing state on the CPU": (
            _python(
                "instance_group [ { kind: KIND_CPU } ]\n"
                + sequences(
                    states=_state(
                        more="use_growable_memory: true use_same_buffer_for_input_output: true"
                    )
                )
            ),
            "TC189",
        ),
    }
)
# What another machine or release may load: no error, and yet named.
NAMED: tuple[Case, ...] = cases(
    {
        "labels outside of the model": (
            _output('label_filename: "../shared/labels.txt"')
            | {
                "shared/labels.txt": "a\n" * 16,
                "shared/config.pbtxt": 'backend: "x"',
                "shared/1/x": "",
            },
            "TC038",
        ),
        "an absent batching strategy": (_python(f"{_STRATEGY}dynamic_batching {{ }}"), "TC036"),
        "an absent environment elsewhere": (
            _python(string_parameter("EXECUTION_ENV_PATH", "/absent/env.tar.gz")),
            "TC036",
        ),
        "an environment in the working directory": (
            _python(string_parameter("EXECUTION_ENV_PATH", "env.tar.gz")),
            "TC026",
        ),
        "an absent library of operations": (
            onnx(*BOTH, more='model_operations { op_library_filename: "/absent/libops.so" }'),
            "TC036",
        ),
    }
)
