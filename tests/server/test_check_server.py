# SPDX-License-Identifier: Apache-2.0
"""`tritonctl check --url`: what a real Triton serves, against the repository that it reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.check_models.models import CONFIG, MODEL
from tests.server.plain_triton import PlainTriton
from tests.unit.checks.repositories import put
from tritonctl.checks.findings import CheckFinding
from tritonctl.checks.live.server import check_server, inspect_server
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]

IO = "".join(line for line in CONFIG.splitlines(keepends=True) if "put [" in line)
AUTO = """\
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute"""
CONTROL = "CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"
# Everything that Triton is known to fill in: none of these files says all of what is served.
PYTHON = 'backend: "python"\n'
BATCHED = f"{PYTHON}max_batch_size: 8\n"
CONFIGS = {
    "minimal": PYTHON + IO,
    "batched": f"{BATCHED}dynamic_batching {{ }}\n{IO}",
    "queues": f"""{BATCHED}dynamic_batching {{
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy {{ max_queue_size: 4 }}
}}
{IO}""",
    "groups": f"{PYTHON}instance_group [ {{ count: 2 }}, {{ kind: KIND_AUTO }} ]\n{IO}",
    "sequence": f"""{BATCHED}sequence_batching {{
  oldest {{ max_candidate_sequences: 4 }}
  control_input [ {{ name: "START" control [ {{ kind: {CONTROL} }} ] }} ]
}}
{IO}""",
    "optimised": f"""{PYTHON}optimization {{ eager_batching: true }}
version_policy {{ all {{ }} }}
parameters {{ key: "a" value {{ string_value: "b" }} }}
response_cache {{ enable: false }}
{IO}""",
    "ensemble": f"""platform: "ensemble"
{IO}ensemble_scheduling {{
  step [
    {{
      model_name: "minimal"
      model_version: -1
      input_map {{ key: "INPUT" value: "INPUT" }}
      output_map {{ key: "OUTPUT" value: "OUTPUT" }}
    }}
  ]
}}
""",
}
BROKEN = "raise ValueError('no weights')\n"


def files() -> dict[str, str]:
    made = {"optimised/2/model.py": MODEL, "fails/config.pbtxt": PYTHON + IO}
    made |= {
        "fails/1/model.py": BROKEN,
        "unread/config.pbtxt": "backnd: 1",
        "unread/1/model.py": "",
    }
    made |= {"auto/config.pbtxt": PYTHON, "auto/1/model.py": MODEL.replace("    def execute", AUTO)}
    for name, config in CONFIGS.items():
        made[f"{name}/config.pbtxt"] = config
        made[f"{name}/1/model.py"] = MODEL
    return made


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations that leave much to Triton."""
    return put(tmp_path_factory.mktemp("served") / "models", files())


@pytest.fixture(scope="module")
def plain(repository: Path) -> Iterator[PlainTriton]:
    """A server of that repository."""
    server = PlainTriton(repository, repository.parent / "log")
    yield server
    server.stop()


@pytest.fixture
def triton(request: pytest.FixtureRequest, plain: PlainTriton) -> PlainTriton:
    """It, alive."""
    return plain.ready(request.node)


@pytest.fixture
def edited(repository: Path, tmp_path: Path) -> Path:
    """A copy of what was loaded, to be edited: what a repository looks like some days later."""
    return shutil.copytree(repository, tmp_path / "models")


def found(triton: PlainTriton, repository: Path, family: str = "TCS0") -> list[CheckFinding]:
    """What is compared, less the three models that are wrong from the beginning."""
    report = check_server([repository], inspect_server([repository], Endpoint(triton.url)))
    return [
        finding
        for finding in report.findings
        if finding.rule.startswith(family)
        and not {"fails", "unread", "auto"}.intersection(Path(finding.path).parts)
    ]


def edit(repository: Path, model: str, old: str, new: str) -> None:
    file = repository / model / "config.pbtxt"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_what_triton_fills_in_is_no_difference(triton: PlainTriton, repository: Path) -> None:
    """Of eight kinds of configurations as they were loaded, nothing is told."""
    assert found(triton, repository) == []


def test_models_that_are_wrong_from_the_beginning(triton: PlainTriton, repository: Path) -> None:
    """Not loaded with Triton's own reason, not read, completed by model.py."""
    report = check_server([repository], inspect_server([repository], Endpoint(triton.url)))
    told = {f.rule: f for f in report.findings if f.rule < "TCS1"}
    assert sorted(told) == ["TCS02", "TCS03", "TCS08"]
    assert told["TCS02"].message == (
        "fails version 1 is UNAVAILABLE: Internal: ValueError: no weights"
    )
    assert told["TCS03"].path.endswith("unread")
    assert told["TCS08"].severity == "advice"
    for completed in ("max_batch_size: 4", "input.INPUT", "output.OUTPUT", "dynamic_batching"):
        assert completed in told["TCS08"].message


@pytest.mark.parametrize(
    ("model", "old", "new", "line", "told"),
    [
        ("batched", "size: 8", "size: 4", 2, "max_batch_size is 4 here, and the server has 8"),
        ("groups", "count: 2", "count: 3", 2, "instance_group[0].count is 3 here"),
        ("queues", "max_queue_size: 4", "max_queue_size: 9", 6, "max_queue_size is 9 here"),
        ("optimised", '"b"', '"c"', 4, 'parameters.a is { string_value: "c" } here'),
        ("minimal", "dims: [ 4 ]", "dims: [ 5 ]", 2, "input[0].dims is [ 5 ] here"),
        ("batched", "dynamic_batching { }\n", "", 1, "dynamic_batching is not set here"),
        ("ensemble", "model_version: -1", "model_version: 1", 8, "model_version is 1 here"),
    ],
)
def test_edits_after_the_start(
    model: str, old: str, new: str, line: int, told: str, triton: PlainTriton, edited: Path
) -> None:
    """Each is found, at its line."""
    edit(edited, model, old, new)
    findings = found(triton, edited)
    assert {finding.rule for finding in findings} == {"TCS07"}
    assert told in findings[0].message, findings
    assert findings[0].line == line
    assert findings[0].path.endswith(f"{model}/config.pbtxt")


def test_loading_again_ends_a_difference(triton: PlainTriton, repository: Path) -> None:
    """In the repository that the server itself reads."""
    edit(repository, "batched", "{ }", "{ max_queue_delay_microseconds: 100 }")
    [finding] = found(triton, repository)
    assert finding.rule == "TCS07"
    triton.load("batched")
    assert found(triton, repository) == []
    edit(repository, "batched", "{ max_queue_delay_microseconds: 100 }", "{ }")
    triton.load("batched")


def test_versions(triton: PlainTriton, edited: Path) -> None:
    """One that came, one that went."""
    put(edited, {"minimal/2/model.py": MODEL})
    shutil.rmtree(edited / "optimised" / "2")
    told = {finding.rule: finding.message for finding in found(triton, edited)}
    assert told.pop("TCS04") == "version 2 is not served; the server has 1"
    assert told.pop("TCS05") in (
        "version 1 is served, and version_policy excludes it",
        "version 2 is served, and the repository no longer has it",
    )
    assert told == {}


def test_other_models(triton: PlainTriton, edited: Path) -> None:
    """One that the server has never seen, one that the repository does not have."""
    put(edited, {"fresh/config.pbtxt": PYTHON + IO, "fresh/1/model.py": MODEL})
    shutil.rmtree(edited / "groups")
    told = {finding.rule: finding for finding in found(triton, edited)}
    assert told["TCS01"].message == "the server does not know fresh"
    assert told["TCS06"].message == "the server has groups, and none of the given repositories does"
    assert told["TCS06"].path == f"grpc://{triton.url}"
    assert len(told) == 2


def test_an_unloaded_model(triton: PlainTriton, repository: Path) -> None:
    """A warning: somebody wanted it so."""
    triton.unload("queues")
    try:
        while found(triton, repository)[0].rule == "TCS02":  # it is UNLOADING
            time.sleep(0.05)
        [finding] = found(triton, repository)
        assert (finding.rule, finding.message) == ("TCS03", "queues was unloaded")
    finally:
        triton.load("queues")


def test_what_strangers_reach(triton: PlainTriton, repository: Path) -> None:
    """Of a server without restrictions everything, on loopback as advice; and its known holes."""
    told = {f.rule: f.severity for f in found(triton, repository, "TCS2")}
    assert told == dict.fromkeys(("TCS20", "TCS21", "TCS22", "TCS23", "TCS26"), "advice")


def test_command(triton: PlainTriton, edited: Path, cli: Cli) -> None:
    """Files and server in one report; exit code 6 for a difference."""
    for model in ("fails", "unread", "auto"):
        shutil.rmtree(edited / model)
    arguments = ("check", str(edited), "--url", triton.url, "--ignore", "TCS06")
    right = cli(*arguments, "--select", "TCS", cwd=edited)
    assert right.returncode == 0, right.stdout
    edit(edited, "batched", "size: 8", "size: 4")
    wrong = cli(*arguments, "--format", "json", cwd=edited.parent)
    assert wrong.returncode == 6
    [finding] = [f for f in json.loads(wrong.stdout)["findings"] if f["rule"] == "TCS07"]
    assert (finding["path"], finding["line"]) == ("models/batched/config.pbtxt", 2)


def test_the_project_s_own_server(
    speller_project: Project, speller_server: Server, cli: Cli
) -> None:
    """It serves what was rendered, and shows a stranger nothing but its release."""
    done = cli("check", "--url", "project", "--format", "json", cwd=speller_project.root)
    assert done.returncode == 0, done.stdout
    assert [f["rule"] for f in json.loads(done.stdout)["findings"]] == ["TCS26"]
    # By its address, without the token: the index is closed, clients' calls tell the same.
    repository = speller_project.repository
    seen = inspect_server([repository], Endpoint(speller_server.grpc_url))
    assert seen.index is None
    assert seen.unrestricted_api_groups == {"statistics"}
    assert [f.rule for f in check_server([repository], seen).findings] == ["TCS26"]
