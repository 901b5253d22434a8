# SPDX-License-Identifier: Apache-2.0
"""Commands that end with another code than 0: one JSON object, which holds the outcome, too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.loadtest_records import SyntheticRun
from tritonctl.doctor.findings import DoctorFinding, DoctorReport
from tritonctl.errors import EXIT_INTERRUPTED
from tritonctl.loadtest.analysis.capacity import Capacity, CapacityTrial
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import MET, MISSED, Summary
from tritonctl.loadtest.run.capacity import CapacityRun
from tritonctl.loadtest.run.execution import LoadRun
from tritonctl.loadtest.run.jobs import LoadTarget
from tritonctl.runtimes.health import ServerHealth
from tritonctl.smoke.outcomes import SmokeOutcome, SmokeReport
from tritonctl.tuning.outcome import RateBracket, SearchOutcome
from tritonctl.tuning.trials import TrialRequest, TuningTrial

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Invoke
    from tests.unit.conftest import Sandbox


def _fails(
    invoke: Invoke, arguments: tuple[str, ...], error: str, code: int, problem: str
) -> dict[str, Any]:
    """Both voices say the same; the record is the only thing on standard output."""
    told = invoke(*arguments)
    assert told.exit_code == code, told.output
    assert f"error: {problem}" in told.stderr
    assert "  try: " in told.stderr
    done = invoke(*arguments, "--json")
    assert done.exit_code == code
    record: dict[str, Any] = json.loads(done.stdout)
    assert (record["error"], record["exit_code"]) == (error, code)
    assert problem in record["problem"]
    assert record["remedy"]
    assert f"error: {problem}" in done.stderr
    return record


def test_status(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that is not ready."""
    state = SimpleNamespace(
        pid=1,
        grpc_port=8001,
        grpc_url="127.0.0.1:8001",
        http_url="127.0.0.1:8000",
        metrics_url="127.0.0.1:8002",
        release="",
        readiness_url=None,
        http_address="127.0.0.1",
        http_port=1,  # nobody says what serves the models
        token=None,
    )
    health = ServerHealth(live=True, models={"speller": "LOADING", "speller_engine": "READY"})
    server = SimpleNamespace(state=state, health=health, container=None, crashes=(), api=None)
    monkeypatch.setattr("tritonctl.runtimes.lifecycle.server_statuses", lambda _: [server])
    record = _fails(invoke, ("status",), "ServerError", 7, "not ready: speller")
    assert record["ready"] is False
    assert record["models"]["speller"] == "LOADING"
    server.health = replace(health, live=False)
    _fails(invoke, ("status",), "ServerError", 7, "Triton does not answer at 127.0.0.1:8001")
    replicas = [
        SimpleNamespace(state=state, health=health, container="triton-2", crashes=(), api=None),
        SimpleNamespace(
            state=state, health=ServerHealth(True, {}), container="triton-1", crashes=(), api=None
        ),
    ]
    monkeypatch.setattr("tritonctl.runtimes.lifecycle.server_statuses", lambda _: replicas)
    _fails(invoke, ("status",), "ServerError", 7, "not ready: triton-2")


def test_smoke(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models whose checks failed; how to repeat one is the evidence."""
    outcomes = (
        SmokeOutcome("speller", "answers", "pass", "a text"),
        SmokeOutcome("speller", "ends", "fail", "two finals", {"inputs": []}, "tritonctl smoke x"),
    )
    report = SmokeReport("127.0.0.1:1", outcomes)
    monkeypatch.setattr("tritonctl.smoke.run.smoke_server", lambda *_: report)
    arguments = ("smoke", "--url", "127.0.0.1:1")
    record = _fails(invoke, arguments, "ServerError", 7, "1 of 2 checks failed: speller")
    assert record["failed"] == 1
    assert len(record["checks"]) == 2
    assert "repeat: tritonctl smoke x" in record["details"]


def test_doctor(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, and the command that helps first."""
    report = DoctorReport(
        [
            DoctorFinding("disk", "ok", "plenty", required=True),
            DoctorFinding("C library", "missing", "musl", "use Debian", required=True),
            DoctorFinding("GPU", "missing", "none"),
        ]
    )
    monkeypatch.setattr("tritonctl.doctor.examine", lambda *_: report)
    record = _fails(invoke, ("doctor",), "HostError", 4, "missing: C library")
    assert record["remedy"] == "use Debian"
    assert len(record["findings"]) == 3


def test_artefacts_verify(invoke: Invoke, built: Sandbox) -> None:
    """The artefact, and the command that makes it again."""
    [weights] = (built.root / ".tritonctl" / "engines").glob("*/*/engine/*.bin")
    weights.write_bytes(b"other")
    record = _fails(invoke, ("artefacts", "verify"), "RepositoryError", 6, "damaged: speller/")
    assert record["remedy"] == "make it again: `tritonctl build --force speller`"
    [findings] = record["artefacts"].values()
    assert findings[0]["path"].endswith(".bin")


def test_check(invoke: Invoke, tmp_path: Path) -> None:
    """Findings stay what they are in every format; the error is on standard error."""
    (tmp_path / "models" / "broken").mkdir(parents=True)
    (tmp_path / "models" / "broken" / "config.pbtxt").write_text("nam: 1", encoding="utf-8")
    done = invoke("check", str(tmp_path / "models"), "--format", "json")
    assert done.exit_code == 6
    first = next(f for f in json.loads(done.stdout)["findings"] if f["severity"] == "error")
    assert "error" in done.stderr
    assert f"`tritonctl check --explain {first['rule']}`" in done.stderr


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    """Of a load test that met its SLO."""
    SyntheticRun(rate=20, seconds=5).write(tmp_path / "run")
    made = summarise(tmp_path / "run")
    return replace(made, valid=True, invalid_because=(), slo_verdict=MET)


LOADTEST = ("loadtest", "run", "--no-report")


def _loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, summary: Summary, interrupted: bool = False
) -> None:
    done = LoadRun(tmp_path / "run", summary, interrupted=interrupted)
    scenario = SimpleNamespace(protocol="grpc")
    monkeypatch.setattr("tritonctl.loadtest.run.plan.select_scenario", lambda *_: ("s", scenario))
    monkeypatch.setattr("tritonctl.loadtest.run.plan.Overrides.apply_to", lambda _, it: it)
    target = LoadTarget("127.0.0.1:8001")
    monkeypatch.setattr("tritonctl.loadtest.run.jobs.resolve_target", lambda *_: target)
    monkeypatch.setattr("tritonctl.loadtest.run.jobs.create_load_job", lambda *_, **__: None)
    monkeypatch.setattr("tritonctl.loadtest.run.execution.run_load", lambda *_: done)


def test_a_load_test_that_missed_its_slo(
    invoke: Invoke, summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 8 with the promises that were broken; the figures are in the same record."""
    _loaded(monkeypatch, tmp_path, summary)
    assert invoke(*LOADTEST).exit_code == 0
    slo = (replace(summary.slo[0], verdict=MISSED, why="12 % took longer"), *summary.slo[1:])
    _loaded(monkeypatch, tmp_path, replace(summary, slo=slo, slo_verdict=MISSED))
    problem = f"the SLO is missed: {slo[0].name}: 12 % took longer"
    record = _fails(invoke, LOADTEST, "SloMissedError", 8, problem)
    assert record["counts"]["sent"] == summary.counts.sent
    assert record["folder"] == str(tmp_path / "run")


@pytest.mark.parametrize(("verdict", "code"), [(MET, 0), (MISSED, 8)])
def test_a_report_that_cannot_be_written(
    invoke: Invoke,
    summary: Summary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
    code: int,
) -> None:
    """A bug in the page costs the page: verdict, folder and exit code are those of the run."""
    slo = (replace(summary.slo[0], verdict=verdict, why="as measured"),)
    _loaded(monkeypatch, tmp_path, replace(summary, slo=slo, slo_verdict=verdict))

    def fail(folder: Path) -> None:
        raise KeyError("success")

    monkeypatch.setattr("tritonctl.loadtest.report.page.write_report", fail)
    told = invoke("loadtest", "run")
    assert told.exit_code == code, told.output
    assert f"{verdict.upper():<9} {slo[0].name}" in told.stdout
    assert f"results: {tmp_path / 'run'}" in told.stdout
    assert "no report was written: KeyError: 'success', a bug in tritonctl" in told.stderr


def test_a_load_test_that_measured_nothing(
    invoke: Invoke, summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 9, and why."""
    invalid = replace(summary, valid=False, invalid_because=("worker 1 was lost",))
    _loaded(monkeypatch, tmp_path, invalid)
    problem = "no valid measurement: worker 1 was lost"
    assert _fails(invoke, LOADTEST, "InvalidMeasurementError", 9, problem)["valid"] is False


@pytest.mark.parametrize(
    ("reason", "error", "code"),
    [("server gone", "ServerError", 7), ("disk full", "HostError", 4)],
)
def test_a_load_test_that_ended_early(
    reason: str,
    error: str,
    code: int,
    invoke: Invoke,
    summary: Summary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what ended it."""
    _loaded(monkeypatch, tmp_path, replace(summary, reason=reason))
    record = _fails(invoke, LOADTEST, error, code, f"the run ended early, {reason}")
    assert record["reason"] == reason


def test_an_interrupted_load_test(
    invoke: Invoke, summary: Summary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is in the record."""
    _loaded(monkeypatch, tmp_path, summary, interrupted=True)
    problem = f"interrupted; the measurements so far are in {tmp_path / 'run'}"
    record = _fails(invoke, LOADTEST, "InterruptionError", EXIT_INTERRUPTED, problem)
    assert record["scenario"] == summary.scenario


@pytest.mark.parametrize(
    ("ended", "valid", "error", "code", "problem"),
    [
        ("lowest", True, "SloMissedError", 8, "no rate keeps the SLO"),
        ("lowest", False, "InvalidMeasurementError", 9, "no rate gave a valid measurement"),
        ("server gone", True, "ServerError", 7, "the search ended early"),
        ("interrupted", True, "InterruptionError", 130, "interrupted; the measurements so far"),
    ],
)
def test_capacity(
    ended: str,
    valid: bool,
    error: str,
    code: int,
    problem: str,
    invoke: Invoke,
    summary: Summary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search's own record with the error."""
    _loaded(monkeypatch, tmp_path, summary)
    done = CapacityRun(
        tmp_path, Capacity(None, 1.0, ended, (CapacityTrial(1.0, MISSED, valid=valid),)), None
    )
    runner = SimpleNamespace(search=lambda _: done)
    monkeypatch.setattr("tritonctl.loadtest.run.capacity.CapacityRunner", lambda *_, **__: runner)
    assert _fails(invoke, ("loadtest", "capacity"), error, code, problem)["ended"] == ended


def test_an_interruption(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any verb."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tritonctl.project.file.load_project", interrupted)
    _fails(invoke, ("render",), "InterruptionError", 130, "interrupted; no partial files")


def test_a_bug(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log file is named."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("tritonctl.project.file.load_project", broken)
    record = _fails(
        invoke, ("render",), "UnexpectedError", 1, "unexpected error: this is a bug in tritonctl"
    )
    assert "RuntimeError: surprise" in Path(record["remedy"].split()[-1]).read_text("utf-8")


def test_a_usage_error(invoke: Invoke) -> None:
    """Typer's words on standard error, and a record beside them."""
    done = invoke("logs", "--nonsense", "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout) == {
        "schema": "tritonctl.error/1",
        "error": "UsageError",
        "exit_code": 2,
        "problem": "No such option: --nonsense",
        "remedy": "tritonctl logs --help",
        "details": None,
    }
    assert "No such option: --nonsense" in done.stderr
    assert invoke("logs", "--nonsense").stdout == ""


TUNE = ("tune",)


def _tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: SearchOutcome) -> None:
    space = SimpleNamespace(model="speller", knobs=(), base={})
    found = SimpleNamespace(outcome=outcome, space=space, worth_it=False, overlay={})
    edit = SimpleNamespace(difference="")
    job = SimpleNamespace(model="speller")
    monkeypatch.setattr("tritonctl.loadtest.run.plan.select_scenario", lambda *_: ("s", job))
    monkeypatch.setattr("tritonctl.tuning.tuner.tune", lambda *_: found)
    monkeypatch.setattr("tritonctl.tuning.report.write_report", lambda _: tmp_path / "page")
    monkeypatch.setattr("tritonctl.tuning.report.to_record", lambda _: {"trials": 0})
    monkeypatch.setattr(
        "tritonctl.tuning.report.conclusion_sentences", lambda _: ["today: unknown"]
    )
    monkeypatch.setattr("tritonctl.tuning.report.step_rows", lambda _: [])
    monkeypatch.setattr("tritonctl.tuning.write_back.create_project_edit", lambda *_: edit)


def test_a_session_that_tried_nothing(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 9 where the time ended first; one that found nothing worth a trial is done."""
    standing = RateBracket({}, 0.0, 0.0)
    outcome = SearchOutcome(standing, standing, False, "", (), (), (), complete=False)
    _tuned(monkeypatch, tmp_path, outcome)
    problem = (
        "no other settings were tested: the budget of 30 minutes ended before the current ones"
    )
    assert _fails(invoke, TUNE, "InvalidMeasurementError", 9, problem)["trials"] == 0
    assert "`tritonctl tune s --resume --budget 120`" in " ".join(invoke(*TUNE).stderr.split())
    trial = TuningTrial(TrialRequest({}, 1.0, 1.0), "met", 0.0, 0.0, 0.1, 1, 1.0)
    _tuned(monkeypatch, tmp_path, replace(outcome, trials=(trial,)))
    assert "minutes ended with the current ones" in invoke(*TUNE).stderr
    _tuned(monkeypatch, tmp_path, replace(outcome, complete=True))
    assert invoke(*TUNE).exit_code == 0
