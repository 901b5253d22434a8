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
from typing import TYPE_CHECKING

import pytest
from rich.console import Console as RichConsole

from tritonctl.console.build_view import BuildTable
from tritonctl.engines.build.stages import plan_stages
from tritonctl.host.process import process_started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.conftest import Cli, Sandbox, WaitUntil


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
        output, notes = process.communicate(timeout=30)
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
        process.communicate(timeout=30)
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
        _, notes = process.communicate(timeout=30)
    assert process.returncode == 130, notes
    pids = [pid for run in sandbox.builder_processes() for pid in run]
    wait_until(lambda: all(process_started(pid) is None for pid in pids))
    assert sandbox.files_below("engines", "staging") == []


def drawn(table: BuildTable) -> list[str]:
    console = RichConsole(file=io.StringIO(), width=100, force_terminal=False)
    console.print(table.table())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_table_tells_states_times_and_last_lines() -> None:
    """A row per stage: what waits, runs, is done, failed."""
    table = BuildTable(lambda _: None)
    table.planned("m", "quantise", done=True, expected=3.0)
    table.planned("m", "compile", done=False, expected=600.0)
    table.planned("n", "build", done=False, expected=None)
    with table.stage("m", "compile") as progress, progress.step("Building m") as step:
        step.update("[TRT] 40 % of [layers]")
        lines = drawn(table)
    assert lines[1].split() == ["✓", "m", "quantise", "up", "to", "date"]
    assert lines[2].split()[:5] == ["▶", "m", "compile", "0", "s"]
    assert "600 s" in lines[2] or "599 s" in lines[2]
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
    assert record["needed"] is True
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
