# SPDX-License-Identifier: Apache-2.0
"""Threads of all models, rate limiters and BLS; other cases are in `cases/instances.yaml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.family == "instances"]

GIB = 1 << 30
NONE = CheckTarget("2.51.0", gpus=())
TWO = CheckTarget("2.51.0", gpus=(24 * GIB, 24 * GIB))
EIGHT_CORES = CheckTarget("2.51.0", cores=8, gpus=())


def reported(folder: Path, files: Example, target: CheckTarget = NONE) -> list[CheckFinding]:
    """Return the findings of the family's rules."""
    return list(check_repository(put(folder, files), target, rules=OURS).findings)


def marked(finding: CheckFinding) -> str:
    """Return the underlined text."""
    return finding.text[finding.column - 1 : finding.end - 1]


def onnx(extra: str, name: str = "m") -> dict[str, str]:
    """Return a model of ONNX Runtime without its model file."""
    config = CONFIG.replace('"python"', '"onnxruntime"').replace('"m"', f'"{name}"')
    return {f"{name}/config.pbtxt": config + extra}


THREADS = 'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{}" }} }}\n'


def test_threads_of_all_models(tmp_path: Path) -> None:
    """One finding lists the threads of each model, also if a model alone has too many."""
    once = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    files = {k: v for n in "abcdefgh" for k, v in onnx(once + THREADS.format(3), n).items()}
    [finding] = reported(tmp_path, files, EIGHT_CORES)
    assert finding.rule == "TC622"
    assert finding.message == (
        "the models together compute with 24 threads on 8 cores: "
        "a 3, b 3, c 3, d 3, e 3, f 3 and 2 more"
    )
    rules = [one.rule for one in reported(tmp_path, onnx(once + THREADS.format(9)), EIGHT_CORES)]
    assert sorted(rules) == ["TC620", "TC622"]


def resources(text: str, name: str = "m", count: int = 2) -> dict[str, str]:
    """Return a Python model with a rate limiter."""
    config = CONFIG.replace('"m"', f'"{name}"')
    limiter = f"kind: KIND_CPU count: {count} rate_limiter {{ {text} }}"
    return {
        f"{name}/config.pbtxt": f"{config}instance_group [ {{ {limiter} }} ]\n",
        f"{name}/1/model.py": MODEL,
    }


SLOT = 'resources [ { name: "SLOT" count: 1 } ]'
ASKING = RULES["TC652"].bad_example["m/1/model.py"]


def test_a_resource_that_an_ensemble_needs(tmp_path: Path) -> None:
    """A call of an ensemble waits for the resources of its steps."""
    ensemble = (
        'name: "e"\nplatform: "ensemble"\nmax_batch_size: 8\n'
        'ensemble_scheduling { step [ { model_name: "n" model_version: -1 } ] }\n'
    )
    files = resources(SLOT) | resources(SLOT, "n") | {"e/config.pbtxt": ensemble}
    assert isinstance(ASKING, str)
    files["m/1/model.py"] = ASKING.replace('"n"', '"e"').replace('["OUTPUT"]', "WANTED")
    [finding] = reported(tmp_path, files)
    assert finding.rule == "TC641"
    assert finding.message == (
        "it holds 1 SLOT while it waits for e → n, which needs 1: there are 1"
    )
    assert "--rate-limit-resource=SLOT:2" in finding.fix
    assert marked(finding) == '{ name: "SLOT" count: 1 }'


def test_sufficient_resources(tmp_path: Path) -> None:
    """A larger request of another model raises the limit; each device has its own."""
    assert isinstance(ASKING, str)
    more = resources(SLOT.replace("1", "2"), "o")
    files = resources(SLOT) | resources(SLOT, "n") | more | {"m/1/model.py": ASKING}
    assert reported(tmp_path / "a", files) == []
    files = resources(SLOT) | resources(SLOT, "n") | {"m/1/model.py": ASKING}
    files["n/config.pbtxt"] = files["n/config.pbtxt"].replace(
        "kind: KIND_CPU", "kind: KIND_GPU gpus: [ 1 ]"
    )
    assert reported(tmp_path / "b", files, TWO) == []


@pytest.mark.parametrize(
    ("head", "model_name"),
    [
        ('NAME = "m"\n', "NAME"),
        ("", "self.name"),
        ("", '"m"'),
    ],
)
def test_model_names_in_constants(head: str, model_name: str, tmp_path: Path) -> None:
    """A model name may be a constant of the module or an attribute with one value."""
    assert isinstance(ASKING, str)
    initialize = '    def initialize(self, args):\n        self.name = "m"\n\n    def execute'
    code = head + ASKING.replace('"n"', model_name).replace("    def execute", initialize)
    files = {"m/config.pbtxt": CONFIG, "m/1/model.py": code}
    [finding] = reported(tmp_path / "once", files)
    assert finding.rule == "TC650"
    assert marked(finding).startswith("pb_utils.InferenceRequest(")
    again = code + '\nNAME = "n"\n\n\nclass B:\n    def f(self):\n        self.name = "x"\n'
    rules = [one.rule for one in reported(tmp_path / "again", files | {"m/1/model.py": again})]
    assert rules == (["TC650"] if model_name == '"m"' else [])


def test_circular_calls(tmp_path: Path) -> None:
    """A circle of calls is one finding; decoupled models that use threads are left alone."""
    assert isinstance(ASKING, str)
    one, two = (f"instance_group [ {{ kind: KIND_CPU count: {n} }} ]\n" for n in (1, 2))
    files = {
        "m/config.pbtxt": CONFIG + two,
        "m/1/model.py": ASKING,
        "n/config.pbtxt": CONFIG.replace('"m"', '"n"') + one,
        "n/1/model.py": ASKING.replace('"n"', '"m"'),
    }
    [finding] = reported(tmp_path / "a", files)
    assert finding.rule == "TC650"
    assert finding.message == "the only instance of a model waits for itself: m → n → m"
    files["n/config.pbtxt"] = files["n/config.pbtxt"].replace("count: 1", "count: 3")
    [finding] = reported(tmp_path / "b", files)
    assert (finding.rule, finding.line) == ("TC651", 9)
    assert "2 concurrent requests hold" in finding.message
    files |= {f"{name}/config.pbtxt": CONFIG.replace('"m"', f'"{name}"') for name in "mn"}
    [finding] = reported(tmp_path / "of unknown size", files, CheckTarget())
    assert finding.rule == "TC651"
    assert "as many concurrent requests as instances hold" in finding.message
    in_a_thread = ASKING.replace("    def execute", "    def work").replace('"n"', '"m"')
    files = {
        "m/config.pbtxt": CONFIG + "model_transaction_policy { decoupled: true }\n",
        "m/1/model.py": in_a_thread + "\n    def execute(self, requests):\n        self.start()\n",
    }
    assert reported(tmp_path / "c", files) == []


def test_unknown_models_and_tensors_of_a_call(tmp_path: Path) -> None:
    """Unknown models and tensors are reported, with the most similar name."""
    assert isinstance(ASKING, str)
    files = {"m/config.pbtxt": CONFIG, "m/1/model.py": ASKING.replace('"n"', '"spelller"')}
    files |= {"speller/config.pbtxt": CONFIG.replace('"m"', '"speller"')}
    [finding] = reported(tmp_path / "a", files)
    assert (finding.rule, finding.fix) == ("TC652", "did you mean speller?")
    code = ASKING.replace('"n"', '"speller"').replace(
        "inputs=[tensor]", 'inputs=[pb_utils.Tensor("IN", tensor.as_numpy())]'
    )
    [finding] = reported(tmp_path / "b", files | {"m/1/model.py": code})
    assert (finding.rule, finding.message) == ("TC653", "speller has no input IN")
    unknown = code.replace('"IN"', "name").replace('["OUTPUT"]', "names")
    assert reported(tmp_path / "c", files | {"m/1/model.py": unknown}) == []


def test_sequential_calls(tmp_path: Path) -> None:
    """Sequential calls are reported at the first, except in coroutines."""
    assert isinstance(ASKING, str)
    twice = ASKING.replace("answer = asked.exec()", "answer = asked.exec() or asked.exec()")
    files = {
        "m/config.pbtxt": CONFIG,
        "m/1/model.py": twice,
        "n/config.pbtxt": CONFIG.replace('"m"', '"n"'),
    }
    [finding] = reported(tmp_path / "a", files)
    assert (finding.rule, marked(finding)) == ("TC656", "asked.exec()")
    assert finding.message.startswith("execute waits for 2 responses one after the other")
    coroutine = twice.replace("def execute", "async def execute")
    assert reported(tmp_path / "b", files | {"m/1/model.py": coroutine}) == []
    assert reported(tmp_path / "c", files, CheckTarget("2.51.0")) == []
