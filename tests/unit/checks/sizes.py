# SPDX-License-Identifier: Apache-2.0
"""Repositories of any size: the same thing again and again, by how often."""

from __future__ import annotations

from collections.abc import Callable

from tests.check_models.models import MODEL
from tritonctl.checks.examples.files import Example

LARGEST = 2**63 - 1
HEAD = 'backend: "python" max_batch_size: 8\n'
TENSORS = (
    'input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
    'output [ { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
)
_CODE = (
    "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"
    "class TritonPythonModel:\n    def execute(self, requests):\n"
)


def python(config: str, code: str = MODEL, name: str = "m") -> Example:
    """A model of the Python backend."""
    return {f"{name}/config.pbtxt": config, f"{name}/1/model.py": code}


INNER = python(HEAD + TENSORS, name="inner")


def step(model: str, read: str, written: str) -> str:
    """A step of an ensemble."""
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "A" value: "{read}" }} '
        f'output_map {{ key: "B" value: "{written}" }} }}\n'
    )


def ensemble(steps: str, name: str = "m") -> Example:
    """An ensemble with the tensors of a model `inner`."""
    text = f'platform: "ensemble" max_batch_size: 8\n{TENSORS}ensemble_scheduling {{\n{steps}}}\n'
    return {f"{name}/config.pbtxt": text, f"{name}/1/.keep": ""}


def chain(model: str, count: int) -> str:
    """Steps that each read what the one before wrote, from A to B."""
    names = ["A", *(f"t{i}" for i in range(1, count)), "B"]
    return "".join(step(model, names[i], names[i + 1]) for i in range(count))


def _config(
    each: Callable[[int], str], before: str = "", after: str = ""
) -> Callable[..., Example]:
    return lambda n: python(HEAD + TENSORS + before + "".join(map(each, range(n))) + after)


def _steps(each: Callable[[int, int], str]) -> Callable[[int], Example]:
    return lambda n: {**INNER, **ensemble("".join(each(i, n) for i in range(n)))}


def _nested(inner: Callable[[int, int], str], steps: int = 1) -> Callable[[int], Example]:
    """Ensembles in each other: each has so many steps of the next one."""

    def repository(n: int) -> Example:
        made = dict(INNER)
        for i in range(n):
            names = ["A", *(f"t{k}" for k in range(1, steps)), "B"]
            body = "".join(step(inner(i, n), names[k], names[k + 1]) for k in range(steps))
            made |= ensemble(body, f"e{i}")
        return made

    return repository


def _all_in_all(n: int) -> Example:
    made: dict[str, object] = {}
    side = int(n**0.5)
    for i in range(side):
        body = "".join(step(f"e{k}", "A", f"t{k}") for k in range(side))
        made |= ensemble(body, f"e{i}")
    return made  # type: ignore[return-value]


def _body(each: Callable[[int], str], decoupled: bool = False) -> Callable[[int], Example]:
    policy = "model_transaction_policy { decoupled: true }\n" if decoupled else ""
    return lambda n: python(
        HEAD + TENSORS + policy,
        _CODE + "".join(f"        {each(i)}\n" for i in range(n)) + "        return []\n",
    )


# What grows, by name: a repository for each size.
GROWING: dict[str, Callable[[int], Example]] = {
    "dims": lambda n: python(HEAD + TENSORS.replace("4", ", ".join([str(LARGEST)] * n))),
    "texts": lambda n: python(
        HEAD + TENSORS.replace("4", ", ".join("7" * n)).replace("FP32", "STRING")
    ),
    "tensors": _config(lambda i: f'input {{ name: "I{i}" data_type: TYPE_FP32 dims: [ 4 ] }}\n'),
    "wrong tensors, one line": _config(lambda _: "input { dims: [ 0 ] } "),
    "groups": _config(lambda _: "instance_group { kind: KIND_GPU count: 2147483647 gpus: [7] } "),
    "GPUs": _config(lambda i: f"{i}, {i}, ", "instance_group { gpus: [ ", "0 ] }"),
    "parameters": _config(
        lambda i: f'parameters {{ key: "p{i}" value {{ string_value: "x" }} }}\n'
    ),
    "placeholders": _config(
        lambda i: f'parameters {{ key: "p{i}" value {{ string_value: "${{v{i}}}" }} }} '
    ),
    "unknown fields": _config(lambda i: f"inptu{i}: 1\n"),
    "controls": _config(
        lambda i: f'control_input {{ name: "C{i}" control {{ kind: CONTROL_SEQUENCE_START }} }} ',
        "sequence_batching { ",
        "}",
    ),
    "states": _config(
        lambda i: f'state {{ input_name: "i{i}" output_name: "o{i}" dims: [ {LARGEST}, 9 ] }} ',
        "sequence_batching { ",
        "}",
    ),
    "warm-up": _config(
        lambda i: (
            f'inputs {{ key: "A{i}" value {{ data_type: TYPE_FP32 dims: [ {LARGEST}, 4 ] '
            'input_data_file: "f" } } '
        ),
        'model_warmup { name: "w" batch_size: 4294967295 ',
        "}",
    ),
    "samples": _config(lambda i: f'model_warmup {{ name: "w{i}" batch_size: 9 }} '),
    "chain": lambda n: {**INNER, **ensemble(chain("inner", n))},
    "chain of itself": lambda n: ensemble(chain("m", n)),
    "chain backwards": lambda n: {
        **INNER,
        **ensemble("\n".join(chain("inner", n).splitlines()[::-1])),
    },
    "ring of steps": _steps(lambda i, n: step("inner", f"t{i}", f"t{(i + 1) % n}")),
    "many rings": _steps(lambda i, _: step("inner", f"t{i}", f"t{i ^ 1}")),
    "steps on their own": _steps(lambda i, _: step("inner", f"t{i}", f"t{i}")),
    "one tensor read": _steps(lambda i, _: step("inner", "A", f"t{i}")),
    "one tensor written": _steps(lambda *_: step("inner", "A", "B")),
    "nested": _nested(lambda i, n: f"e{i + 1}" if i + 1 < n else "inner"),
    "nested twice": _nested(lambda i, n: f"e{i + 1}" if i + 1 < n else "inner", steps=2),
    "nested in a ring": _nested(lambda i, n: f"e{(i + 1) % n}", steps=2),
    "all in all": _all_in_all,
    "models": lambda n: {
        name: text for i in range(n) for name, text in python(HEAD, name=f"m{i}").items()
    },
    "tensors made": _body(lambda i: f'x{i} = pb_utils.Tensor("B", np.zeros(4))'),
    "senders": _body(
        lambda _: "s = requests[0].get_response_sender(); s.send(None)", decoupled=True
    ),
    "requests": _body(
        lambda i: f'r{i} = pb_utils.InferenceRequest(model_name="m", inputs=[]).exec()'
    ),
}
# Texts that readers could go over again and again, each of so many characters or more.
LONG: dict[str, Callable[[int], str]] = {
    "a string that is not closed": lambda n: 'name: "' + '\\"' * n,
    "Jinja's braces": lambda n: "{{ " * n,
    "a template's tags": lambda n: "<% " * n,
    "pieces of a string": lambda n: "name: " + '"x" ' * n,
    "digits": lambda n: "max_batch_size: " + "9" * n,
    "digits of a float": lambda n: (
        "sequence_batching { direct { minimum_slot_utilization: " + "9" * n + " } }"
    ),
    "messages in each other": lambda n: "a {" * n,
    "findings on one line": lambda n: "input { dims: [ 0 ] } " * (n // 100),
}
