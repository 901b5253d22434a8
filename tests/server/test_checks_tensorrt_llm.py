# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl check` says of rendered TensorRT-LLM models, against a Triton that loads them.

The runtime is the stand-in of tests/fakes: what model.py refuses by itself is refused as on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge import Judge, proven
from tests.server.trtllm import trtllm_project
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import ExampleFile
from tritonctl.checks.repository import CheckTarget
from tritonctl.checks.rules import RULES
from tritonctl.host.progress import Silent
from tritonctl.repository.publish import render
from tritonctl.repository.server_environment import SERVER_VERSION

OURS = [rule for rule in RULES.values() if rule.family == "tensorrt_llm"]

pytestmark = pytest.mark.server

Files = dict[str, str | ExampleFile]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The engine's model, under the name `m`."""
    project = trtllm_project(tmp_path_factory.mktemp("p"), world="engine", version="1.2.1")
    render(project, Silent())
    folder = project.repository / "speller_engine"
    files: Files = {
        f"m/{path.relative_to(folder).as_posix()}": ExampleFile(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    config = (folder / "config.pbtxt").read_text(encoding="utf-8")
    return files | {"m/config.pbtxt": config.replace('"speller_engine"', '"m"', 1)}


@pytest.fixture(scope="module")
def one_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One server for all."""
    judge = Judge(tmp_path_factory.mktemp("judge"))
    yield judge
    judge.stop()


@pytest.fixture
def judge(one_judge: Judge, request: pytest.FixtureRequest) -> Judge:
    """As it is, or another one."""
    return proven(one_judge, request)


def said(folder: Path, files: Files) -> list[str]:
    """The rules of this family that have something to say."""
    found = check_repository(put(folder, files), rules=OURS).findings
    return [finding.rule for finding in found]


def with_parameter(files: Files, key: str, value: str) -> Files:
    """Another value for one parameter."""
    config = files["m/config.pbtxt"]
    assert isinstance(config, str)
    pattern = rf'(key: "{key}"\s+value \{{\s+string_value: ")[^\n]*"\n'
    changed, count = re.subn(pattern, lambda match: f'{match[1]}{value}"\n', config)
    assert count == 1, key
    return files | {"m/config.pbtxt": changed}


def without(files: Files, beginning: str) -> Files:
    """All but what lies there."""
    kept = {name: file for name, file in files.items() if not name.startswith(beginning)}
    assert kept != files
    return kept


def test_as_rendered(rendered: Files, judge: Judge, tmp_path: Path) -> None:
    """Clean, and it loads."""
    assert said(tmp_path, rendered) == []
    assert judge.refuses(rendered) == ""


def test_checkpoints_as_rendered(tmp_path: Path) -> None:
    """Of the PyTorch runtime, for the last release that has it and for an unknown one."""
    project = trtllm_project(tmp_path, world="pytorch", version="1.2.1")
    render(project, Silent())
    for target in (CheckTarget(), CheckTarget("2.71.0"), CheckTarget(SERVER_VERSION)):
        report = check_repository(project.repository, target, rules=OURS)
        assert (report.models, report.findings) == (4, ())


@pytest.mark.parametrize(
    ("key", "value", "rule", "reason"),
    [
        ("tensorrt_llm", "1.1.0", "TC727", "compiled by TensorRT-LLM 1.1.0"),
        ("kv_cache_config", '{\\"dtype\\": \\"fp8\\"}', "TC745", "kv_cache_config.dtype is fp8"),
    ],
)
def test_parameters(
    rendered: Files, judge: Judge, tmp_path: Path, key: str, value: str, rule: str, reason: str
) -> None:
    """Refused for the reason that was told before."""
    files = with_parameter(rendered, key, value)
    assert said(tmp_path, files) == [rule]
    assert reason in judge.refuses(files)


@pytest.mark.parametrize("name", ["engine", "llm_args.json", "tokenizer"])
def test_artefacts(rendered: Files, judge: Judge, tmp_path: Path, name: str) -> None:
    """Each of them is needed."""
    files = without(rendered, f"m/1/{name}")
    assert said(tmp_path, files) == ["TC729"]
    assert name in judge.refuses(files)
