# SPDX-License-Identifier: Apache-2.0
"""`tritonctl build` as real processes: two at once, and every way of being interrupted."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.host.process import process_start_time

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox, WaitUntil


def _gated(sandbox: Sandbox) -> Path:
    """Make the builder wait for a file, which is returned."""
    gate = sandbox.root / "gate"
    sandbox.behave("ok", gate=str(gate))
    return gate


def _has_open(process: subprocess.Popen[str], path: Path) -> bool:
    try:
        return any(fd.readlink() == path for fd in Path(f"/proc/{process.pid}/fd").iterdir())
    except FileNotFoundError:  # a descriptor was closed while we looked
        return False


def test_two_builds_at_once_are_one(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """The second waits for the first and finds its engine: the builder runs once."""
    gate = _gated(sandbox)
    lock = sandbox.root / ".tritonctl" / "locks" / "build-speller.lock"
    with cli.start("build", "--json") as first, cli.start("build", "--json") as second:
        for process in (first, second):
            wait_until(lambda process=process: _has_open(process, lock))  # type: ignore[misc]
        wait_until(sandbox.run_count)
        gate.touch()
        answers = [json.loads(process.communicate(timeout=30)[0]) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert sorted(answer["built"] for answer in answers) == [False, True]
    assert len({answer["folder"] for answer in answers}) == 1
    assert sandbox.run_count() == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_build(
    sandbox: Sandbox, cli: Cli, wait_until: WaitUntil, number: signal.Signals
) -> None:
    """Ctrl-C, kill, a closed terminal: 130, no child left, nothing half-written, log kept."""
    _gated(sandbox)
    with cli.start("build") as process:
        wait_until(sandbox.run_count)
        process.send_signal(number)
        output, notes = process.communicate(timeout=30)
    assert process.returncode == 130
    assert output == ""
    assert "interrupted; no partial files remain" in notes
    assert "Traceback" not in notes
    (pids,) = sandbox.builder_processes()
    assert len(pids) == 2
    wait_until(lambda: all(process_start_time(pid) is None for pid in pids))
    assert sandbox.files_below("engines", "staging", "failed-builds") == [
        "failed-builds/speller.log"
    ]


def test_build_after_an_interrupted_one(sandbox: Sandbox, cli: Cli, wait_until: WaitUntil) -> None:
    """kill -9 leaves staging behind; the next build cleans up and succeeds."""
    gate = _gated(sandbox)
    with cli.start("build") as process:
        wait_until(sandbox.run_count)
        process.kill()
        process.communicate()
    assert sandbox.files_below("staging") != []
    gate.touch()
    wait_until(lambda: all(process_start_time(p) is None for p in sandbox.builder_processes()[0]))
    assert cli("build").returncode == 0
    assert sandbox.files_below("staging") == []
    assert sandbox.run_count() == 2


def test_a_build_without_a_network_installs_nothing(cli: Cli, tmp_path: Path) -> None:
    """Exit code 4 before anything is made, with what is missing and both ways to get it."""
    example = Path(__file__).parents[3] / "examples" / "number-speller"
    shutil.copytree(example, tmp_path / "mine", ignore=shutil.ignore_patterns(".tritonctl"))
    cache = tmp_path / "empty"
    done = cli("build", "--offline", "-C", tmp_path / "mine", TRITONCTL_CACHE_DIR=str(cache))
    assert done.returncode == 4
    said = " ".join(done.stderr.split())
    assert "the environment builder-openvino is not installed on this machine" in said
    assert re.search(r"`tritonctl build .*speller` once where there is a network", said)
    assert re.search(r"`tritonctl bundle .*FOLDER --builders` there", said)
    assert not cache.exists()


def test_what_was_proven_is_said(sandbox: Sandbox, cli: Cli) -> None:
    """The figures, the mistakes that were caught, and the user's own set before and after."""
    sandbox.behave("proves")
    text = " ".join(cli("build").stdout.split())
    assert "as library 1.0 on 24 inputs cosine 1; 1 planted mistakes were detected" in text
    assert "recall@10 94.0% of 50 (checkpoint 96.0%)" in text
    record = json.loads(cli("build", "--json").stdout)
    assert record["proof"]["figures"][0]["bound"] == 0.99999
