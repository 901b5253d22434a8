# SPDX-License-Identifier: Apache-2.0
"""`check` refuses what Triton refuses, for the same reason, and nothing that Triton loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judge import Candidate, Judge
from tests.strangers import (
    refused_by_backends,
    refused_by_core,
    refused_code,
    refused_graphs,
    refused_python,
)
from tests.strangers.accepted_configurations import ACCEPTED
from tests.strangers.configurations import CODE, SERVER, STRICT_SERVER, Case, Files
from tests.strangers.refused_ensembles import ENSEMBLES
from tests.strangers.refused_fields import FIELDS
from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.examples.files import Example
from tritonctl.checks.repository import CheckTarget

REFUSED = (
    *FIELDS,
    *ENSEMBLES,
    *refused_python.PYTHON,
    *refused_python.STRICT,
    *refused_graphs.GRAPHS,
    *refused_graphs.STRICT,
    *refused_by_core.CORE,
    *refused_by_backends.BACKENDS,
    *refused_code.REFUSED_CODE,
)
# Triton loads these; their requests fail, or nobody answers them.
FAILING = (*refused_by_core.UNANSWERED, *refused_code.FAILING_CODE)
# What another machine or release loads.
NAMED = (*refused_by_core.NAMED, *refused_code.NAMED_CODE)
# Of the backends, the server here has the Python backend alone.
_ELSEWHERE = ("onnxruntime", "openvino", "pytorch", "tensorrt", "tensorflow", "model_metrics")
_BY_NAME = "m.identity/config.pbtxt"
_IDENTITY, _PYTHON = 'backend: "identity"', 'backend: "python"'
# Tritonserver 2.51 kills itself over a circle of models.
_KILLS = "TC307"


def errors(folder: Path, case: Case) -> list[str]:
    """The rules of the errors that are found in a case."""
    report = check_repository(put(folder, case.files), case.target)
    return [finding.rule for finding in report.findings if finding.severity == "error"]


@pytest.mark.parametrize("case", [*REFUSED, *FAILING], ids=lambda case: case.name)
def test_refused_for_its_reason(case: Case, tmp_path: Path) -> None:
    """By one of the rules that name the mistake, and by no other."""
    found = set(errors(tmp_path, case))
    assert found
    assert found <= set(case.rules)


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_named(case: Case, tmp_path: Path) -> None:
    """By its rule, without an error."""
    findings = check_repository(put(tmp_path, case.files), case.target).findings
    assert [f.rule for f in findings if f.severity == "error"] == []
    assert set(case.rules) <= {finding.rule for finding in findings}


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
def test_accepted(case: Case, tmp_path: Path) -> None:
    """Without an error."""
    assert errors(tmp_path, case) == []


def test_names() -> None:
    """Each class is there once."""
    names = [case.name for case in (*REFUSED, *FAILING, *NAMED, *ACCEPTED)]
    assert len(names) == len(set(names))


def served(files: Example) -> Files:
    """The same over the Python backend, where only names and shapes matter."""
    changed: Files = {}
    for path, file in files.items():
        changed[path] = file.replace(_IDENTITY, _PYTHON) if isinstance(file, str) else file
        name, _, rest = path.partition("/")
        config = files.get(f"{name}/config.pbtxt")
        if rest.endswith("README") and isinstance(config, str) and _IDENTITY in config:
            changed[path.replace("README", "model.py")] = CODE.format("")
    return changed


def judged(cases: tuple[Case, ...], target: CheckTarget) -> Iterator[Case]:
    """Those for such a server that the one here can tell."""
    for case in cases:
        files = case.files.values()
        text = "".join(file for file in files if isinstance(file, str))
        unknown = any(name in text for name in _ELSEWHERE) or _BY_NAME in case.files
        whole = all(isinstance(file, str) for file in files)
        if case.target == target and whole and not unknown and _KILLS not in case.rules:
            yield case


@pytest.mark.server
@pytest.mark.parametrize(
    ("target", "options", "least"),
    [
        pytest.param(SERVER, (), 160, id="completing", marks=pytest.mark.exhaustive),
        pytest.param(STRICT_SERVER, ("--disable-auto-complete-config",), 5, id="strict"),
    ],
)
def test_the_server_says_the_same(
    target: CheckTarget, options: tuple[str, ...], least: int, tmp_path: Path
) -> None:
    """A real Triton refuses each of the refused ones, and loads each of the accepted ones."""
    cases = (*judged(REFUSED, target), *judged(ACCEPTED, target))
    judge = Judge(tmp_path, options=options)
    try:
        candidates = [
            Candidate.of(served(case.files), f"case{number}") for number, case in enumerate(cases)
        ]
        refusals = list(judge.refusals(candidates))
    finally:
        judge.stop()
    assert len(cases) >= least
    said = {case.name: why for case, why in zip(cases, refusals, strict=True)}
    assert [case.name for case in cases if bool(said[case.name]) != bool(case.rules)] == []
