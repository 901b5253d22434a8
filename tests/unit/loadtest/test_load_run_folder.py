# SPDX-License-Identifier: Apache-2.0
"""The folder of a load test: named, merged, written to on a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tritonctl.errors import UsageError
from tritonctl.loadtest.run.folder import JsonLinesWriter, create_run_folder, merge_records
from tritonctl.loadtest.run.workers import GeneratorWorkers, InterruptCounter
from tritonctl.project.schema import Project
from tritonctl.supervision.process_usage import ServerUsage

pytestmark = pytest.mark.timed


def _project(root: Path) -> Project:
    model = {"checkpoint": "weights", "engine": {"builder": "openvino", "precision": "int8"}}
    return Project.at(root, {"schema": "tritonctl/v1", "models": {"m": model}})


def test_new_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after time and scenario; two of one second differ."""
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    names = [create_run_folder(_project(tmp_path), "speller").name for _ in range(3)]
    assert names == ["20260102-030405-speller" + end for end in ("", "-2", "-3")]


def test_a_folder_of_one_s_own(tmp_path: Path) -> None:
    """Made if need be; one with something in it is refused."""
    wanted = tmp_path / "a" / "b"
    assert create_run_folder(_project(tmp_path), "s", wanted) == wanted
    (wanted / "x").touch()
    with pytest.raises(UsageError, match="is not empty"):
        create_run_folder(_project(tmp_path), "s", wanted)


def test_merging(tmp_path: Path) -> None:
    """By plan, then index; a cut line is left out, a worker without a file is no mistake."""
    lines = [json.dumps({"i": i, "planned": planned}) for i, planned in ((0, 5), (2, 9), (1, 5))]
    (tmp_path / "records-0.jsonl").write_text(f"{lines[1]}\n{lines[2]}\n" + '{"i": 7, "plan')
    (tmp_path / "records-2.jsonl").write_text(f"{lines[0]}\n")
    merge_records(tmp_path, 3)
    merged = (tmp_path / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["i"] for line in merged] == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.jsonl"]


def test_lines_survive_a_full_disk() -> None:
    """The first error is kept; the run it belongs to goes on."""
    lines = JsonLinesWriter(Path("/dev/full"))
    lines.write("{}")
    lines.write("{}")
    assert lines.error is not None
    assert lines.error.strerror == "No space left on device"
    lines.close()


def test_usage_of_a_server(tmp_path: Path) -> None:
    """Found by its shared-memory prefix; CPU only grows; None once it is gone."""
    stub = tmp_path / "triton_python_backend_stub"
    stub.symlink_to(sys.executable)
    prefix = f"tritonctl_test{os.getpid()}_"
    script = "import time\nend = time.time() + 600\nwhile time.time() < end: pass"
    with subprocess.Popen([stub, "-c", script, prefix]) as process:
        usage = ServerUsage(prefix)
        deadline = time.monotonic() + 60
        while (seen := usage.read()[0]) is None or seen == 0:
            assert time.monotonic() < deadline
            usage = ServerUsage(prefix)
        _, resident = usage.read()
        assert resident is not None
        assert resident > 1_000_000
        process.kill()
    assert usage.read() == (None, None)


def test_a_refused_plan_and_a_crash(tmp_path: Path) -> None:
    """What the generator says becomes the error; what it does not say, the end of its log."""
    refusal = json.dumps({"problem": "no prompts", "remedy": "name a file"})
    script = "import sys; print(sys.argv[1], file=sys.stderr); sys.exit(int(sys.argv[2]))"
    for number, (words, status, error, problem) in enumerate(
        (
            (refusal, "2", "ConfigurationError", "no prompts"),
            (refusal, "3", "ServerError", "no prompts"),
            ("Traceback: boom", "1", "HostError", "the load generator exited with status 1"),
        )
    ):
        workers = GeneratorWorkers()
        workers.start([sys.executable, "-c", script, words, status], tmp_path, number, 1)
        while workers.is_running:
            assert list(workers.read_progress(1)) == []
        found = workers.members[0].start_error()
        assert type(found).__name__ == error
        assert found.problem.startswith(problem)
        assert (found.details is None) == (status != "1")


def test_a_worker_that_says_something_else(tmp_path: Path) -> None:
    """What is no progress line is left out; one that never ends its tale is lost."""
    script = "print('hello'); print('{\"worker\": 0, \"t\": 1}'); print('[1]'); print('{\"wor')"
    workers = GeneratorWorkers()
    workers.start([sys.executable, "-c", script], tmp_path, 0, 1)
    heard: list[dict[str, object]] = []
    while workers.is_running:
        heard += [record for record, _ in workers.read_progress(1)]
    assert heard == [{"worker": 0, "t": 1}]
    assert (workers.members[0].has_started, workers.members[0].is_lost) == (True, True)


def test_nothing_is_left_over(tmp_path: Path) -> None:
    """Also of a generator that ignores being asked."""
    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    workers = GeneratorWorkers()
    workers.start([sys.executable, "-c", script], tmp_path, 0, 1)
    workers.terminate()
    assert workers.members[0].process.poll() is not None


def test_interruptions_are_counted() -> None:
    """Instead of ending us; afterwards they do again."""
    found = InterruptCounter()
    with found.capture_signals():
        os.kill(os.getpid(), 2)
        os.kill(os.getpid(), 15)
    assert found.count == 2
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), 2)
