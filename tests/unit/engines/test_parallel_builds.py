# SPDX-License-Identifier: Apache-2.0
"""Several models at once, the table that shows them, and the commands without running them."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from queue import Queue
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console as RichConsole

from tritonctl.cli.console.build_view import BuildTable, PlainBoard
from tritonctl.engines.builds.engine import Artefact
from tritonctl.engines.builds.parallel import build_engines
from tritonctl.engines.builds.plan import BuildPlan, plan_builds
from tritonctl.engines.builds.stages import plan_stages
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.conftest import Cli, Sandbox, WaitUntil


PATIENCE = 60.0


def add_models(sandbox: Sandbox, *names: str) -> None:
    for name in names:
        sandbox.data["models"][name] = sandbox.model()
    sandbox.write()


def gated(sandbox: Sandbox) -> Path:
    gate = sandbox.root / "gate"
    for model in sandbox.data["models"].values():
        model["engine"]["options"]["gate"] = str(gate)
    sandbox.write()
    return gate


def test_models_are_built_at_once(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """Both builders run before either may end."""
    add_models(sandbox, "a", "b")
    gate = gated(sandbox)
    with cli.start("build", "--jobs", "3", "--json") as process:
        wait_until(lambda: sandbox.run_count() == 3)
        gate.touch()
        output, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, notes
    assert {json.loads(line)["model"] for line in output.splitlines()} == {"a", "b", "speller"}
    assert "▶ a build" in notes
    assert "✓ b build" in notes


def test_one_at_a_time_by_default(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """Builds are large: two at once are the user's decision."""
    add_models(sandbox, "a")
    gate = gated(sandbox)
    with cli.start("build") as process:
        wait_until(lambda: sandbox.run_count() == 1)
        assert len(sandbox.files_below("staging")) > 0
        gate.touch()
        process.communicate(timeout=PATIENCE)
    assert sandbox.run_count() == 2


def test_a_failure_lets_the_others_finish(sandbox: Sandbox, cli: Cli) -> None:
    """What is ready is told; the exit code is the failure's."""
    add_models(sandbox, "a")
    sandbox.behave("refuses")
    done = cli("build", "--json")
    assert done.returncode == 5
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records[0]["model"] == "a"
    assert records[-1]["error"] == "BuildFailedError"


def test_interrupted_builds_end_together(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """Ctrl-C reaches the builders of every thread."""
    add_models(sandbox, "a")
    gated(sandbox)
    with cli.start("build", "--jobs", "2") as process:
        wait_until(lambda: sandbox.run_count() == 2)
        process.terminate()
        _, notes = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, notes
    pids = [pid for run in sandbox.builder_processes() for pid in run]
    wait_until(lambda: all(process_start_time(pid) is None for pid in pids))
    assert sandbox.files_below("engines", "staging") == []


class Builds:
    """In the place of the builder: each build begins, and ends when the test says so."""

    def __init__(self, project: Project, jobs: int) -> None:
        self._project, self._jobs = project, jobs
        self._begun: Queue[str] = Queue()
        self._ends: dict[str, Queue[Exception | None]] = {n: Queue() for n in project.models}
        self.ready: Queue[str] = Queue()

    def build(self, plan: BuildPlan, *_: object, **__: object) -> Artefact:
        """Until it is ended, with that error if there is one."""
        name = plan.name
        self._begun.put(name)
        if error := self._ends[name].get(timeout=PATIENCE):
            raise error
        return cast("Artefact", name.upper())

    def end(self, name: str, error: Exception | None = None) -> None:
        """One of those that run."""
        self._ends[name].put(error)

    def begun(self, count: int) -> set[str]:
        """The next that begin."""
        return {self._begun.get(timeout=PATIENCE) for _ in range(count)}

    def none_begins(self) -> bool:
        """Whether nothing else was begun."""
        return self._begun.empty()

    def run(self) -> None:
        """All of them."""
        plans = plan_builds(self._project, list(self._project.models), Silent())
        board = PlainBoard(lambda _: None)
        made = build_engines(
            list(plans.values()), Silent(), board, jobs=self._jobs, run_one=self.build
        )
        for name, artefact in made:
            assert str(artefact) == name.upper()
            self.ready.put(name)


@pytest.fixture
def builds(sandbox: Sandbox) -> Callable[[int], Builds]:
    """Of the models speller, a, b and c."""
    add_models(sandbox, "a", "b", "c")
    return lambda jobs: Builds(sandbox.load(), jobs)


def test_as_many_at_once_as_there_are_jobs(builds: Callable[[int], Builds]) -> None:
    """The next begins when one ends; engines come in the order in which they get ready."""
    two = builds(2)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(two.run)
        assert two.begun(2) == {"speller", "a"}
        assert two.none_begins()
        two.end("a")
        assert two.ready.get(timeout=PATIENCE) == "a"
        assert two.begun(1) == {"b"}
        two.end("speller")
        assert two.ready.get(timeout=PATIENCE) == "speller"
        assert two.begun(1) == {"c"}
        assert two.none_begins()
        for name in ("c", "b"):
            two.end(name)
            assert two.ready.get(timeout=PATIENCE) == name
        done.result(PATIENCE)


def test_after_a_failure_nothing_else_begins(
    builds: Callable[[int], Builds], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is let finish and told; the first failure is raised."""
    looks: Queue[None] = Queue()  # one each time that what has ended before is dealt with

    def wait_and_tell(*arguments: Any, **options: Any) -> Any:
        looks.put(None)
        return wait(*arguments, **options)

    monkeypatch.setattr("tritonctl.engines.builds.parallel.wait", wait_and_tell)
    three = builds(3)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(three.run)
        assert three.begun(3) == {"speller", "a", "b"}
        looks.get(timeout=PATIENCE)
        three.end("a", ValueError("a is wrong"))
        looks.get(timeout=PATIENCE)  # else b could be the first to be seen, and c would begin
        three.end("b")
        assert three.ready.get(timeout=PATIENCE) == "b"
        three.end("speller", ValueError("so is speller"))
        with pytest.raises(ValueError, match="a is wrong"):
            done.result(PATIENCE)
        assert three.none_begins()


def drawn(table: BuildTable, width: int = 100) -> list[str]:
    console = RichConsole(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table.table())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_table_tells_states_times_and_last_lines() -> None:
    """A row per stage: what waits, runs, is done, failed."""
    now = [50.0]
    table = BuildTable(lambda _: None, clock=lambda: now[0])
    table.planned("m", "quantise", done=True, expected=3.0)
    table.planned("m", "compile", done=False, expected=600.0)
    table.planned("n", "build", done=False, expected=None)
    with table.stage("m", "compile") as progress, progress.step("Building m") as step:
        step.update("[TRT] 40 % of [layers]")
        now[0] += 12.4
        lines = drawn(table)
        step.update("a long line of a tool that says what it is doing right now, and where")
        narrow = drawn(table, width=60)
    assert narrow[0].split() == ["model", "stage", "elapsed", "left"]
    assert narrow[2].startswith("▶  m      compile   12 s     588 s  a long line")
    assert lines[1].split() == ["✓", "m", "quantise", "up", "to", "date"]
    assert lines[2].split()[:5] == ["▶", "m", "compile", "12", "s"]
    assert "588 s" in lines[2]
    assert lines[2].endswith("[TRT] 40 % of [layers]")
    assert lines[3].split() == ["·", "n", "build"]
    with pytest.raises(ZeroDivisionError), table.stage("n", "build"):
        raise ZeroDivisionError
    assert [line.split()[0] for line in drawn(table)[1:]] == ["✓", "✓", "✗"]


def test_the_table_on_a_real_terminal(sandbox: Sandbox) -> None:
    """Drawn on the terminal's stderr; the result comes after it, on stdout."""
    sandbox.write()
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tritonctl", "build", "--json"]
    with subprocess.Popen(
        command, cwd=sandbox.root, stdout=subprocess.PIPE, stderr=follower, text=True
    ) as process:
        os.close(follower)
        screen = b""
        while part := read(leader):
            screen += part
        output = process.communicate()[0]
    assert process.returncode == 0
    assert json.loads(output)["model"] == "speller"
    assert b"speller" in screen
    assert "✓".encode() in screen


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side is closed
        return b""


def test_dry_run_prints_the_command_and_runs_nothing(sandbox: Sandbox, cli: Cli) -> None:
    """Argument for argument what the build runs."""
    sandbox.write()
    done = cli("build", "--dry-run")
    assert done.returncode == 0, done.stderr
    title, line = done.stdout.splitlines()
    assert title == "# speller: scripted, int8, runner current"
    command = shlex.split(line)
    assert command[:2] == [sys.executable, str(sandbox.root / "builders/scripted/build.py")]
    assert sandbox.run_count() == 0
    assert sandbox.files_below("engines", "staging") == []
    assert cli("build").returncode == 0
    assert "up to date" in cli("build", "--dry-run").stdout
    record = json.loads(cli("build", "--dry-run", "--force", "--json").stdout)
    assert record["required"] is True
    assert record["commands"] == [command]


def test_dry_run_in_a_container(sandbox: Sandbox, cli: Cli) -> None:
    """The whole `docker run`, on a machine that needs no Docker; --runner chooses it."""
    image = "models.speller.engine.target.image=registry/image@sha256:0"
    sandbox.write()
    done = cli("build", "--dry-run", "--runner", "container", "--set", image)
    assert done.returncode == 0, done.stderr
    command = shlex.split(done.stdout.splitlines()[1])
    assert command[1] == "run"
    assert command[command.index("--network") + 1] == "none"
    assert "registry/image@sha256:0" in command
    checkpoint = sandbox.checkpoint
    assert f"type=bind,source={checkpoint},target={checkpoint},readonly" in command


def test_dry_run_of_a_tensorrt_plan(sandbox: Sandbox, cli: Cli) -> None:
    """TensorRT's image of the release, with the GPUs; the request names the compute capability."""
    (sandbox.root / "graph.onnx").write_bytes(b"onnx")
    engine = {
        "builder": "tensorrt",
        "precision": "fp16",
        "target": {"release": "26.07", "gpu": "L4"},
    }
    model = {"task": "tensors", "checkpoint": "graph.onnx", "engine": engine}
    sandbox.data["models"] = {"plan": model}
    sandbox.write()
    done = cli("build", "--dry-run")
    assert done.returncode == 0, done.stderr
    command = shlex.split(done.stdout.splitlines()[1])
    assert "nvcr.io/nvidia/tensorrt:26.07-py3" in command
    assert command[command.index("--gpus") + 1] == "all"
    request = plan_stages(sandbox.load(), "plan")[0].request
    assert request.target is not None
    assert request.target.compute_capability == "8.9"
