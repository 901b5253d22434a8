# SPDX-License-Identifier: Apache-2.0
"""Instances: devices, threads, the rate limiter, and what Python models ask of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.findings import Finding
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES

OURS = [rule for rule in RULES.values() if rule.family == "instances"]

GIB = 1 << 30
NONE = Target("2.51.0", gpus=())
TWO = Target("2.51.0", gpus=(24 * GIB, 24 * GIB))
EIGHT_CORES = Target("2.51.0", cores=8, gpus=())


def reported(folder: Path, files: Example, target: Target = NONE) -> list[Finding]:
    """What the family's rules say."""
    return list(check_repository(put(folder, files), target, rules=OURS).findings)


def group(text: str, config: str = CONFIG) -> dict[str, str]:
    """The Python model with an instance group."""
    return {"m/config.pbtxt": f"{config}instance_group [ {{ {text} }} ]\n", "m/1/model.py": MODEL}


def marked(finding: Finding) -> str:
    """The text underlined."""
    return finding.text[finding.column - 1 : finding.end - 1]


@pytest.mark.parametrize(
    ("text", "target", "rules"),
    [
        ("kind: KIND_GPU", NONE, ["TC600"]),
        ("kind: KIND_GPU gpus: [ 0 ]", NONE, ["TC600"]),
        ("kind: KIND_GPU gpus: [ 0, 2, 3 ]", TWO, ["TC601", "TC601"]),
        ("kind: KIND_GPU gpus: [ -1 ]", TWO, ["TC601"]),
        ("kind: KIND_AUTO gpus: [ 0, 2 ]", TWO, ["TC602"]),
        ("gpus: [ 0 ]", NONE, ["TC602"]),
        ("kind: KIND_AUTO gpus: [ 1 ]", TWO, []),
        ("kind: KIND_GPU gpus: [ 7 ]", Target("2.51.0"), []),
        ("kind: KIND_GPU", Target("2.51.0"), []),
        ("kind: KIND_MODEL", NONE, []),
    ],
)
def test_devices(text: str, target: Target, rules: list[str], tmp_path: Path) -> None:
    """What the target lacks; nothing while its GPUs are unknown."""
    assert [finding.rule for finding in reported(tmp_path, group(text), target)] == rules


def test_the_place_of_a_device(tmp_path: Path) -> None:
    """The number itself, and what there is."""
    [finding] = reported(tmp_path, group("kind: KIND_GPU gpus: [ 0, 2 ]"), TWO)
    assert (finding.line, marked(finding)) == (6, "2")
    assert finding.message == "the target has no GPU 2, only 0 to 1"


def test_an_ensemble_has_no_instances(tmp_path: Path) -> None:
    """Its instance_group is another rule's."""
    config = CONFIG.replace('backend: "python"', 'platform: "ensemble"\nensemble_scheduling { }')
    assert reported(tmp_path, group("kind: KIND_GPU", config)) == []


@pytest.mark.parametrize("count", ["0", "-3"])
def test_counts(count: str, tmp_path: Path) -> None:
    """Of onnxruntime two are made on the CPU; nobody knows where the GPUs are unknown."""
    [finding] = reported(tmp_path / "a", group(f"kind: KIND_CPU count: {count}"))
    assert (marked(finding), finding.message) == (
        count,
        f"Triton ignores count: {count} and makes 1",
    )
    onnx = CONFIG.replace('"python"', '"onnxruntime"')
    files = {"m/config.pbtxt": f"{onnx}instance_group [ {{ count: {count} }} ]\n"}
    [finding] = reported(tmp_path / "b", files)
    assert finding.message == f"Triton ignores count: {count} and makes 2"
    [finding] = reported(tmp_path / "b", {}, Target("2.51.0"))
    assert finding.message.endswith("as many as without `count`")


@pytest.mark.parametrize(
    "code",
    [
        'self.model = load().to("cpu")',
        'self.model = load().to("cuda:" + args["model_instance_device_id"])',
        "self.engine = Engine(args)\n        self.model = load().cuda()",
        'self.model = load(device_map="auto").to("cuda")',
        'self.devices = {"cuda": 1}',
    ],
)
def test_python_instances_with_a_gpu_of_their_own(code: str, tmp_path: Path) -> None:
    """Or that may have one: what is given `args`, or chooses in another way."""
    initialize = f"    def initialize(self, args):\n        {code}\n\n    def execute"
    files = group("kind: KIND_GPU") | {"m/1/model.py": MODEL.replace("    def execute", initialize)}
    assert reported(tmp_path, files, TWO) == []


@pytest.mark.parametrize(
    "call",
    [
        "load().cuda()",
        'torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        'load(device="cuda:0")',
    ],
)
def test_python_instances_all_on_the_first(call: str, tmp_path: Path) -> None:
    """Told in model.py, once."""
    initialize = f"    def initialize(self, args):\n        self.a = {call}\n\n    def execute"
    files = group("kind: KIND_GPU") | {"m/1/model.py": MODEL.replace("    def execute", initialize)}
    [finding] = reported(tmp_path, files, TWO)
    assert (finding.rule, finding.line) == ("TC609", 6)
    assert finding.path.endswith("m/1/model.py")
    assert marked(finding) in (call, '"cuda"', '"cuda:0"')
    assert reported(tmp_path, {}, Target("2.51.0", gpus=(24 * GIB,))) == []


ACCELERATOR = (
    "optimization { execution_accelerators { "
    'gpu_execution_accelerator [ { name: "tensorrt" } ] } }\n'
)


@pytest.mark.parametrize(
    ("group", "target", "rules"),
    [
        ("{ kind: KIND_MODEL }", NONE, ["TC610"]),
        ("{ kind: KIND_CPU }", Target("2.51.0"), ["TC611"]),
        ("{ kind: KIND_AUTO }", NONE, ["TC611"]),
        ("{ kind: KIND_AUTO }", TWO, []),
        ("{ kind: KIND_AUTO }", Target("2.51.0"), []),
        ("{ kind: KIND_CPU }, { kind: KIND_GPU }", TWO, []),
    ],
)
def test_onnxruntime_on_the_cpu(
    group: str, target: Target, rules: list[str], tmp_path: Path
) -> None:
    """What it does with KIND_MODEL, and without."""
    findings = reported(tmp_path, onnx(f"instance_group [ {group} ]\n{ACCELERATOR}"), target)
    assert [finding.rule for finding in findings] == rules


def onnx(extra: str, name: str = "m") -> dict[str, str]:
    """A model of onnxruntime; its file is looked at by others."""
    config = CONFIG.replace('"python"', '"onnxruntime"').replace('"m"', f'"{name}"')
    return {f"{name}/config.pbtxt": config + extra}


THREADS = 'parameters {{ key: "intra_op_thread_count" value {{ string_value: "{}" }} }}\n'


def test_threads_of_onnxruntime(tmp_path: Path) -> None:
    """Instances times threads; where nothing is said, two instances with a thread per core."""
    [finding] = reported(tmp_path / "a", onnx(THREADS.format(6)), EIGHT_CORES)
    assert finding.message == "2 instances with 6 threads each are 12 threads on 8 cores"
    assert finding.fix == "set 4 threads each, or fewer instances"
    assert (finding.rule, finding.line) == ("TC620", 6)
    [finding] = reported(tmp_path / "b", onnx(""), EIGHT_CORES)
    assert (finding.rule, marked(finding)) == ("TC621", '"onnxruntime"')
    [finding] = reported(tmp_path / "b", onnx(THREADS.format(0)), EIGHT_CORES)
    assert finding.rule == "TC621"
    for text in (THREADS.format(4), "instance_group [ { kind: KIND_CPU count: 1 } ]\n"):
        assert reported(tmp_path / "c", onnx(text), EIGHT_CORES) == []


@pytest.mark.parametrize(
    "target",
    [Target("2.51.0"), Target("2.51.0", cores=8), Target("2.51.0", cores=8, gpus=(GIB,))],
)
def test_threads_on_the_cpu_alone(target: Target, tmp_path: Path) -> None:
    """KIND_AUTO with a GPU, or perhaps with one, takes no threads that we know of."""
    assert reported(tmp_path, onnx(THREADS.format(64)), target) == []


def test_another_library_s_threads(tmp_path: Path) -> None:
    """OpenVINO under onnxruntime has its own."""
    accelerator = (
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
    )
    assert reported(tmp_path, onnx(THREADS.format(64) + accelerator), EIGHT_CORES) == []


def test_threads_of_all_models(tmp_path: Path) -> None:
    """Told once, with each one's share; those that are too many alone are not counted again."""
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


@pytest.mark.parametrize(
    "line",
    [
        "torch.set_num_threads(4)",
        "torch.set_num_threads(os.cpu_count() // 2)",
        'os.environ["OMP_NUM_THREADS"] = "2"',
        'DEVICE = "cuda"',
    ],
)
def test_python_models_that_see_to_their_threads(line: str, tmp_path: Path) -> None:
    """Or compute on a GPU, whatever their kind says."""
    code = MODEL.replace("\n\n\nclass", f"\nimport os\nimport torch\n\n{line}\n\n\nclass")
    files = group("kind: KIND_CPU count: 2") | {"m/1/model.py": code}
    assert reported(tmp_path, files, EIGHT_CORES) == []


def resources(text: str, name: str = "m", count: int = 2) -> dict[str, str]:
    """A Python model with a rate limiter."""
    config = CONFIG.replace('"m"', f'"{name}"')
    limiter = f"kind: KIND_CPU count: {count} rate_limiter {{ {text} }}"
    return {
        f"{name}/config.pbtxt": f"{config}instance_group [ {{ {limiter} }} ]\n",
        f"{name}/1/model.py": MODEL,
    }


SLOT = 'resources [ { name: "SLOT" count: 1 } ]'
ASKING = RULES["TC652"].bad["m/1/model.py"]


def test_resources_over_an_ensemble(tmp_path: Path) -> None:
    """The way goes through it; the resource's place is marked."""
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


def test_resources_that_are_enough(tmp_path: Path) -> None:
    """When a third model needs more there is more; on another device nobody waits."""
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
def test_names_of_models_asked(head: str, model_name: str, tmp_path: Path) -> None:
    """A constant of the file or of the model, if it is set only once."""
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


def test_circles(tmp_path: Path) -> None:
    """Over other models, told once; not of decoupled models that hand their requests on."""
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
    assert "2 requests at once" in finding.message
    in_a_thread = ASKING.replace("    def execute", "    def work").replace('"n"', '"m"')
    files = {
        "m/config.pbtxt": CONFIG + "model_transaction_policy { decoupled: true }\n",
        "m/1/model.py": in_a_thread + "\n    def execute(self, requests):\n        self.start()\n",
    }
    assert reported(tmp_path / "c", files) == []


def test_what_is_asked(tmp_path: Path) -> None:
    """The nearest name of a model; the names of tensors that are written there."""
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


def test_several_answers_one_after_the_other(tmp_path: Path) -> None:
    """Told at the first; not of coroutines, of one answer, or where the instances are unknown."""
    assert isinstance(ASKING, str)
    twice = ASKING.replace("answer = asked.exec()", "answer = asked.exec() or asked.exec()")
    files = {
        "m/config.pbtxt": CONFIG,
        "m/1/model.py": twice,
        "n/config.pbtxt": CONFIG.replace('"m"', '"n"'),
    }
    [finding] = reported(tmp_path / "a", files)
    assert (finding.rule, marked(finding)) == ("TC656", "asked.exec()")
    assert finding.message.startswith("execute waits for 2 answers one after the other")
    coroutine = twice.replace("def execute", "async def execute")
    assert reported(tmp_path / "b", files | {"m/1/model.py": coroutine}) == []
    assert reported(tmp_path / "c", files, Target("2.51.0")) == []


def test_python_without_bls(tmp_path: Path) -> None:
    """Calls of exec that are something else, and files that cannot be read."""
    other = MODEL + "\n\ndef f(cursor):\n    cursor.exec('select')\n    exec('x')\n"
    assert reported(tmp_path / "a", python_model() | {"m/1/model.py": other}) == []
    assert reported(tmp_path / "b", python_model() | {"m/1/model.py": "def ("}) == []
