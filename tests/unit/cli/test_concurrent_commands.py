# SPDX-License-Identifier: Apache-2.0
"""Two commands at the same time: every pair of the page that waits or is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tritonctl.errors import ServerError
from tritonctl.host.files import exclusive
from tritonctl.host.process import process_start_time
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.releases.store import LOCK, releases_folder
from tritonctl.repository.publish import _lock as render_lock
from tritonctl.runtimes.deployed_release import release_lock
from tritonctl.runtimes.measurement_locks import load_testing, tuning
from tritonctl.runtimes.server_state import EmbeddedServer, ServerFiles, write_state

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "concurrent-commands.md"
Hold = Callable[[Project], AbstractContextManager[None]]
LOAD = ["loadtest run", "loadtest capacity"]


def held(lock: Callable[[Project], Path]) -> Hold:
    """What another process holds while it works."""
    return lambda project: exclusive(lock(project), Silent(), "work")


def rendering(project: Project) -> AbstractContextManager[None]:
    return exclusive(render_lock(project.repository), Silent(), "work")


def load_test(project: Project) -> AbstractContextManager[None]:
    return load_testing(project, Silent())


SERVER = held(lambda project: ServerFiles.of(project).lock)
BUILD = held(lambda project: project.state / "locks" / "build-speller.lock")
PUBLISHING = held(lambda project: releases_folder(project) / LOCK)


def serving(project: Project) -> AbstractContextManager[None]:
    return release_lock(project, Silent())


# While this is held, the command says that it waits for it.
WAITS: dict[tuple[str, str], tuple[Hold, str, str]] = {
    ("build", "build"): (BUILD, "build speller --force", "to build speller"),
    ("render", "render"): (rendering, "render", "to render"),
    ("render", "up"): (rendering, "up", "to render"),
    ("up", "down"): (SERVER, "down", "to start or stop the server"),
    ("up", "reload"): (SERVER, "reload speller", "to start, stop or reload the server"),
    ("releases publish", "releases publish"): (
        PUBLISHING,
        "releases publish",
        "to publish a release",
    ),
    ("up --release", "releases rollback"): (serving, "releases rollback", "to serve a release"),
    ("up --release", "releases prune"): (serving, "releases prune", "to serve a release"),
}
TUNED = "`tritonctl tune` changes this server's settings"
REFUSED: dict[tuple[str, str], tuple[Hold, str]] = {
    **{("tune", each): (tuning, TUNED) for each in (*LOAD, "up", "down", "tune")},
    **{("tune", each): (tuning, TUNED) for each in ("reload", "releases rollback")},
    ("tune", "rollout start"): (tuning, TUNED),
    **{(each, "tune"): (load_test, "a load test of this server runs") for each in LOAD},
}
ARGUMENTS = {"reload": "reload speller", "rollout start": "rollout start 1"}


@pytest.fixture
def recorded(built: Sandbox) -> Project:
    """A project with a server's record, whose process lives and whose ports are closed."""
    (built.root / "prompts.jsonl").write_text('{"text_input": "1"}\n', encoding="utf-8")
    built.data["loadtests"] = {
        "short": {
            "model": "speller",
            "requests": [{"prompts": "prompts.jsonl"}],
            "arrivals": {"process": "constant", "rate": 1},
            "duration_seconds": 1,
            "slo": {"ttft_p99_ms": 500},
        }
    }
    built.write()
    project = built.load()
    server = EmbeddedServer(
        pid=os.getpid(),
        process_started=process_start_time(os.getpid()) or 0,
        address="127.0.0.1",
        grpc_port=1,
        http_port=1,
        metrics_port=1,
        repository="/r",
        models=["speller"],
        settings="{}",
        shm_prefix="p_",
        exit_timeout_seconds=30,
    )
    write_state(ServerFiles.of(project), server)
    return project


@pytest.mark.parametrize("pair", REFUSED, ids=" beside ".join)
def test_refused(pair: tuple[str, str], recorded: Project, cli: Cli) -> None:
    """Before anything is touched: what runs, and how to end it."""
    hold, told = REFUSED[pair]
    state = ServerFiles.of(recorded).state.read_bytes()
    with hold(recorded):
        done = cli(*ARGUMENTS.get(pair[1], pair[1]).split())
    assert done.returncode == 7, done.stderr
    assert told in " ".join(done.stderr.split())
    if pair[0] == "tune":
        assert f"kill -INT {os.getpid()}" in " ".join(done.stderr.split())
    assert ServerFiles.of(recorded).state.read_bytes() == state


@pytest.mark.parametrize("pair", WAITS, ids=" beside ".join)
def test_waits(pair: tuple[str, str], built: Sandbox, cli: Cli) -> None:
    """It says for what, and goes on once the other has ended."""
    hold, command, told = WAITS[pair]
    with hold(built.load()):
        process = cli.start(*command.split())
        assert process.stderr is not None
        assert any(told in line for line in process.stderr)
        assert process.poll() is None
        process.send_signal(2)
    process.communicate(timeout=60)


def test_two_load_tests(recorded: Project) -> None:
    """The second goes on, and says so."""
    notes: list[str] = []
    progress = Silent()
    progress.note = notes.append  # type: ignore[assignment,method-assign]
    with load_testing(recorded, Silent()), load_testing(recorded, progress):
        assert ["another load test" in note for note in notes] == [True]


def test_tune_waits_for_the_last_load_test(recorded: Project) -> None:
    """The second of two goes on when the first has ended."""
    first = load_testing(recorded, Silent())
    first.__enter__()
    with load_testing(recorded, Silent()):
        first.__exit__(None, None, None)
        with pytest.raises(ServerError, match="a load test"), tuning(recorded):
            pass
    with tuning(recorded):
        pass


def test_a_killed_command_holds_nothing(recorded: Project) -> None:
    """The file of a lock that nobody holds stays, and refuses nothing."""
    with tuning(recorded):
        pass
    with (
        load_testing(recorded, Silent()),
        pytest.raises(ServerError, match="a load test"),
        tuning(recorded),
    ):
        pass
    with tuning(recorded):
        pass


def test_the_page_has_these_pairs() -> None:
    """No pair is told that is not tested, here or where the command is."""
    rows = re.findall(
        r"^\| (`.*?) \| (`.*?) \| (waits|refused) \|$", PAGE.read_text(), re.MULTILINE
    )
    told = {
        (first, second, outcome)
        for left, right, outcome in rows
        for first in re.findall("`([^`]*)`", left)
        for second in re.findall("`([^`]*)`", right)
    }
    tested = {(*pair, "refused") for pair in REFUSED} | {(*pair, "waits") for pair in WAITS}
    assert tested <= told, tested - told
    # tests/unit/rollout/test_verbs.py and tests/unit/bulk.
    elsewhere = {("rollout", "up --release"), ("rollout", "releases rollback"), ("embed", "embed")}
    refused = {(first, second) for first, second, outcome in told if outcome == "refused"}
    assert refused == {*REFUSED} | elsewhere
