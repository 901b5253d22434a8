# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest run` against a real Triton: what it leaves behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EXAMPLE, write_project
from tests.json_page import as_documented
from tests.servers import Handle
from tritonctl.loadtest.analysis.records import read_records
from tritonctl.loadtest.analysis.summary import read_summary
from tritonctl.project.schema import Project
from tritonctl.runtimes.server_state import Server

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("loadtest_environment")]

Cli = Callable[..., subprocess.CompletedProcess[str]]
PATIENCE = 120.0
STEPS = ["int8_tokenizer", "int8_engine", "int8_detokenizer"]


def _scenario(**changes: Any) -> tuple[str, str]:
    """A scenario on the command line: JSON is YAML."""
    scenario = {
        "model": "int8",
        "requests": [
            {
                "name": "short",
                "prompts": str(EXAMPLE / "prompts.jsonl"),
                "max_tokens": 8,
                "parameters": {"temperature": 0},
            }
        ],
        "arrivals": {"process": "constant", "rate": 25},
        "count": 50,
        "cool_down_seconds": 20,
    }
    return "--set", f"loadtests={json.dumps({'short': scenario | changes})}"


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# tritonctl, which gets SIGINT when it opens the file of the report.
INTERRUPTED_BY_ITSELF = """
import os, runpy, signal, sys
def interrupt(event, arguments):
    if event == "open" and ".report.html." in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
runpy.run_module("tritonctl", run_name="__main__", alter_sys=True)
"""


@contextmanager
def _started(
    project: Project, folder: Path, *arguments: str, program: Sequence[str] = ("-m", "tritonctl")
) -> Iterator[subprocess.Popen[str]]:
    """A run that is under way: its first answers have come."""
    command = [sys.executable, *program, "loadtest", "run", "--output", str(folder)]
    with subprocess.Popen(
        [*command, *arguments],
        cwd=project.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _wait_until(lambda: _answers(folder) > 0, process)
            yield process
        finally:
            process.kill()


def _answers(folder: Path) -> int:
    try:
        return sum(line["done"] for line in _lines(folder / "progress.jsonl")[-2:])
    except FileNotFoundError:
        return 0


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _generators(folder: Path) -> dict[int, int]:
    """The process ids of a run's generators, by worker."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = file.read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(folder) in arguments and any(a.endswith("generator.py") for a in arguments):
            found[int(arguments[arguments.index("--worker") + 1])] = int(file.parent.name)
    return found


@pytest.fixture
def project(speller_project: Project, speller_server: Server) -> Project:
    """The project of the running server."""
    del speller_server
    return speller_project


def test_a_run(project: Project, cli: Cli) -> None:
    """Every file of the folder; the summary on standard output; what the server itself counted."""
    done = cli("loadtest", "run", *_scenario(workers=2), "--json", cwd=project.root)
    told = as_documented("loadtest run", done.stdout)
    folder = Path(told.pop("folder"))
    assert folder.parent == project.state / "loadtests"
    summary = read_summary(folder)
    # On a busy machine the generator may be late: the run is then no measurement, and says so.
    assert done.returncode == (9 if not summary.valid else 8 if summary.failed else 0)
    kept = _json(folder / "summary.json")
    assert {name: told[name] for name in kept} == kept
    assert (summary.reason, summary.counts.unsent) == ("complete", 0)

    records = read_records(folder)
    assert [record.index for record in records] == list(range(50))
    assert {record.worker for record in records} == {0, 1}
    assert not list(folder.glob("records-*.jsonl"))
    assert all(record.outcome == "ok" and record.output_tokens for record in records)

    assert {line["worker"] for line in _lines(folder / "progress.jsonl")} == {0, 1}
    first, *_, last = _lines(folder / "server.jsonl")
    assert set(first["models"]) == {"int8", *STEPS}
    assert last["models"]["int8"]["success"] - first["models"]["int8"]["success"] == 50
    assert last["cpu"] > first["cpu"]
    assert last["rss_bytes"] > 10_000_000
    assert "tritonctl_active_streams" in last["engine"]

    facts = _json(folder / "facts.json")
    assert (facts["scenario"], facts["ensemble"]) == ("short", STEPS)
    assert facts["server"]["version"] == "2.51.0"
    assert facts["models"]["int8_engine"]["max_batch_size"] > 0
    assert facts["workers"] == 2
    assert _json(folder / "plan.json")["started_at"] is not None


def test_an_impossible_slo(project: Project, cli: Cli, tmp_path: Path) -> None:
    """A gate: exit code 8, the promise and its figures in words; Locust sends as well."""
    run = ("loadtest", "run", "--output", str(tmp_path / "run"), "--count", "30")
    scenario = _scenario(slo={"ttft_p99_ms": 0.001})
    done = cli(*run, "--generator", "locust", *scenario, cwd=project.root)
    assert done.returncode == (8 if read_summary(tmp_path / "run").valid else 9)
    assert _json(tmp_path / "run" / "facts.json")["generator"]["engine"] == "locust"
    assert len(read_records(tmp_path / "run")) == 30
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    said = " ".join(done.stdout.split())  # lines end where the terminal does
    assert "MISSED ttft_p99_ms 0.001 ms: 100 % [" in said
    assert f"results: {tmp_path / 'run'}" in done.stdout
    assert "short: constant 25/s, 30 requests" in done.stderr


def test_interrupted(project: Project, tmp_path: Path) -> None:
    """Ctrl-C: nothing more is sent, what was measured is kept and summarised; exit code 130."""
    folder = tmp_path / "run"
    with _started(project, folder, *_scenario(count=5000)) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"the measurements so far are in {folder}" in err
    assert "(interrupted)" in out
    summary = read_summary(folder)
    assert summary.reason == "interrupted"
    assert summary.counts.ok == len(read_records(folder)) > 0
    assert summary.counts.unsent > 4000


def test_interrupted_while_the_report_is_written(project: Project, tmp_path: Path) -> None:
    """The run is whole: its figures are told all the same, and where they are; exit code 130."""
    folder = tmp_path / "run"
    program = ("-c", INTERRUPTED_BY_ITSELF)
    with _started(project, folder, *_scenario(count=30), program=program) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "no report was written" in err
    assert f"the measurements so far are in {folder}" in err
    assert f"results: {folder}" in out
    assert read_summary(folder).counts.ok == 30
    assert not list(folder.glob("*report.html*"))


def test_a_lost_worker(project: Project, tmp_path: Path) -> None:
    """Killed outright: the other one goes on, and the run is no valid measurement."""
    folder = tmp_path / "run"
    with _started(project, folder, *_scenario(count=100, workers=2)) as process:
        os.kill(_generators(folder)[1], signal.SIGKILL)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 9, err
    assert "worker 1 was lost (status -9)" in err
    assert "INVALID   worker 1 was lost" in out
    assert sum(record.worker == 0 for record in read_records(folder)) == 50
    assert _json(folder / "facts.json")["lost_workers"] == [1]


def test_the_server_dies(life: Handle, tmp_path: Path) -> None:
    """The run ends by itself; what was measured until then is kept, the failures are named."""
    folder = tmp_path / "run"
    with _started(life.project, folder, *_scenario(count=5000)) as process:
        life.kill()
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 7, err
    assert "the run ended early, server gone" in err
    summary = read_summary(folder)
    assert summary.reason == "server gone"
    assert summary.counts.ok > 0
    assert summary.counts.unsent > 4000
    assert summary.errors
    assert "(server gone)" in out


@pytest.mark.parametrize(
    ("arguments", "code", "problem", "remedy"),
    [
        (("--model", "nobody"), 2, "nobody", "int8"),
        (("--url", "127.0.0.1:1"), 7, "127.0.0.1:1", "tritonctl up"),
        (("--rate", "1", "--concurrency", "1"), 2, "exclude each other", "drop one of the two"),
    ],
)
def test_refused(
    project: Project, cli: Cli, arguments: tuple[str, ...], code: int, problem: str, remedy: str
) -> None:
    """Told before anything is sent; no folder of a run that was none."""
    before = set((project.state / "loadtests").glob("*"))
    done = cli("loadtest", "run", *_scenario(), *arguments, "--json", cwd=project.root)
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"]) == (code, code)
    assert problem in told["problem"]
    assert remedy in told["remedy"]
    assert set((project.state / "loadtests").glob("*")) == before


def test_an_empty_prompt_file(project: Project, cli: Cli, tmp_path: Path) -> None:
    """Found by the generator, told by the command."""
    (tmp_path / "none.jsonl").write_text("")
    requests = [{"prompts": str(tmp_path / "none.jsonl")}]
    done = cli("loadtest", "run", *_scenario(requests=requests), "--json", cwd=project.root)
    assert done.returncode == 3
    assert "none.jsonl" in json.loads(done.stdout)["problem"]


def test_no_server(speller_project: Project, cli: Cli, tmp_path: Path) -> None:
    """The command that starts one."""
    (tmp_path / "tritonctl.yaml").write_text(
        (speller_project.root / "tritonctl.yaml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    done = cli("loadtest", "run", *_scenario(), cwd=tmp_path)
    assert done.returncode == 7
    assert "no server is running for this project" in done.stderr
    assert "tritonctl up" in done.stderr


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[str]:
    """An endpoint that answers one request at a time, each in 10 ms: at most 100 per second."""
    with _mock(tmp_path, "--servers", "1", "--ttft", "10") as url:
        yield url


@contextmanager
def _mock(folder: Path, *arguments: str) -> Iterator[str]:
    """An endpoint whose latencies are known; answers of one token."""
    command = [sys.executable, "-m", "tritonctl", "loadtest", "mock", "--itl", "0", "--tokens", "1"]
    with subprocess.Popen(
        [*command, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["grpc"]
        finally:
            process.terminate()


def test_capacity(cli: Cli, mock: str, tmp_path: Path) -> None:
    """120 per second cannot hold; every trial is a run of its own, kept; then 1.2 times as much."""
    write_project(tmp_path, {"mock": "int8"})
    scenario = _scenario(model="mock", slo={"e2e_p99_ms": 400})
    search = ("--lowest", "60", "--resolution", "1", "--duration", "2", "--url", mock)
    run = ("loadtest", "capacity", "--output", str(tmp_path / "runs"))
    done = cli(*run, *search, *scenario, "--json", cwd=tmp_path)
    told = as_documented("loadtest capacity", done.stdout)
    kept = _json(tmp_path / "runs" / "capacity.json")
    assert {name: told[name] for name in kept} == kept
    trials, overload = told["trials"], told["overload"]
    if told["rate"] is None:  # so busy a machine that not even half of it held: told as such
        code = 8 if any(trial["valid"] for trial in trials) else 9
        assert (done.returncode, told["missed_at"], told["ended"]) == (code, 60, "lowest")
        assert ([trial["holds"] for trial in trials], overload) == ([False, False], None)
    else:
        assert (done.returncode, told["rate"], told["missed_at"]) == (0, 60, 120)
        assert [trial["holds"] for trial in trials][-2:] == [False, False]  # what bounds: twice
        assert True in [trial["holds"] for trial in trials]
        assert overload["rate"] == 72
    for trial in (*trials, *([overload] if overload else [])):
        folder = tmp_path / "runs" / trial["folder"]
        assert folder.name.endswith(f"-{trial['rate']:g}rps")
        assert len(read_records(folder)) > 0
        assert (read_summary(folder).slo_verdict == "met") <= trial["holds"]


@pytest.mark.exhaustive
def test_a_server_that_dies_during_a_search(tmp_path: Path) -> None:
    """What was measured until then is told and kept; no rate is called missed for it."""
    write_project(tmp_path, {"mock": "int8"})
    mock = [sys.executable, "-m", "tritonctl", "loadtest", "mock"]
    run = [sys.executable, "-m", "tritonctl", "loadtest", "capacity", "--output", "runs", "--json"]
    given = _scenario(model="mock", slo={"e2e_p99_ms": 2e4})
    search = ["--lowest", "30", "--duration", "4", *given]
    pipe: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(mock, **pipe) as endpoint:
        assert endpoint.stdout is not None
        url = json.loads(endpoint.stdout.readline())["grpc"]
        with subprocess.Popen([*run, *search, "--url", url], **pipe) as process:
            _wait_until(lambda: any(tmp_path.glob("runs/02-*/progress.jsonl")), process)
            endpoint.kill()
            out, _ = process.communicate(timeout=3 * PATIENCE)
    told = json.loads(out)
    kept = _json(tmp_path / "runs" / "capacity.json")
    assert {name: told[name] for name in kept} == kept
    assert told["problem"] == "the search ended early, server gone"
    assert (process.returncode, told["ended"]) == (7, "server gone")
    assert (told["rate"], told["missed_at"], len(told["trials"])) == (30, None, 1)
    assert len(list((tmp_path / "runs").glob("0*"))) == 2


def test_two_servers_in_turns(cli: Cli, mock: str, tmp_path: Path) -> None:
    """The slower one is told; every run of both is kept, the order reversed each round."""
    write_project(tmp_path, {"mock": "int8"})
    scenario = _scenario(model="mock", count=60)
    with _mock(tmp_path, "--ttft", "300") as slow:
        command = ("loadtest", "compare", mock, slow, "--rounds", "3", *scenario, "--json")
        done = cli(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = as_documented("loadtest compare", done.stdout)
    ttft = next(change for change in told["changes"] if change["name"] == "ttft_p50_ms")
    # Whether that is beyond chance, a busy machine may leave open: 60 requests have no bound then.
    assert ttft["right"]["value"] > 2 * ttft["left"]["value"], ttft
    plans = {
        side: [
            _json(tmp_path / ".tritonctl" / "loadtests" / name / "plan.json")
            for name in sorted(told[side])
        ]
        for side in ("left", "right")
    }
    for side, url in (("left", mock), ("right", slow)):
        assert [plan["endpoint"]["url"] for plan in plans[side]] == [url] * 3
        assert [plan["seed"] for plan in plans[side]] == [1, 2, 3]
    assert cli("loadtest", "compare", mock, told["left"][0], cwd=tmp_path).returncode == 2
