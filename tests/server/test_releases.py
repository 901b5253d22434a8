# SPDX-License-Identifier: Apache-2.0
"""Releases on a real Triton: served by number, one in place of another, back without a build.

The engine replays one token, each release another: an answer tells who gave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import sample_tokenizers
from tests.server.replay import replay_project
from tests.server.test_reload import MODEL, NEW, NEWER, OLD, Load, answer, write_version
from tritonctl.engines.builds.engine import build_engine
from tritonctl.errors import ServerError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import scrape
from tritonctl.releases.publish import PublishedRelease, Trial, publish
from tritonctl.releases.store import stored_releases
from tritonctl.runtimes.health import check_health
from tritonctl.runtimes.lifecycle import running_server, stop
from tritonctl.runtimes.release_switch import rollback, serve_release
from tritonctl.runtimes.server_state import ServerFiles
from tritonctl.runtimes.staging_server import skip_smoke_test, smoke_test_release
from tritonctl.store.entries import verify

pytestmark = pytest.mark.server

unasked: Trial = partial(skip_smoke_test, reason="the test asks")


def _released(project: Project, letter: str, trial: Trial = unasked) -> PublishedRelease:
    write_version(project.root, letter)
    build_engine(project, MODEL, Silent())
    return publish(project, Silent(), trial)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two releases that nobody serves yet."""
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    project = replay_project(
        tmp_path_factory.mktemp("releases") / "project", {MODEL: (tokenizer, [])}
    )
    for letter in (OLD, NEW):
        _released(project, letter)
    yield project
    stop(project, Silent())


def _versions(project: Project) -> set[str]:
    """Those that have answered, by the metrics of the server."""
    metrics = scrape(running_server(project).metrics_url)
    return {
        version
        for version in ("1", "2", "3", "4")
        if metrics.total("nv_inference_request_success", model=f"{MODEL}_engine", version=version)
    }


def test_back_to_the_release_before(project: Project) -> None:
    """Streams go on, no request is lost; state, answers and metrics name the release."""
    state, started, switched = serve_release(project, "latest", Silent())
    assert (started, switched) == (True, None)
    assert state.release == stored_releases(project)[1].name
    assert (answer(state), _versions(project)) == (NEW, {"2"})
    load = Load(state.grpc_url, 4)
    with load.going_on():
        load.until(NEW, 4)
        done = rollback(project, None, Silent())
        load.until(OLD, 4)
    assert (done.restarted, done.gap_seconds, load.errors) == (None, 0, {})
    now = running_server(project)
    assert (now.release, now.pid) == (stored_releases(project)[0].name, state.pid)
    assert check_health(now).ready
    assert (answer(now), "1" in _versions(project)) == (OLD, True)
    with pytest.raises(UsageError, match="no release older than"):
        rollback(project, None, Silent())
    for stored in stored_releases(project):
        assert verify(stored, Silent()) == []


@pytest.mark.exhaustive
def test_forwards_and_a_release_that_fails(project: Project) -> None:
    """A bad one is not served; the killed server comes back with what it served."""
    serve_release(project, "1", Silent())
    _, started, switched = serve_release(project, "2", Silent())
    assert (started, switched is not None, answer(running_server(project))) == (False, True, NEW)
    published = _released(project, NEWER, smoke_test_release)
    asked = published.stored.manifest().smoke
    assert (asked.status, asked.passed > 0) == ("passed", True)
    code = project.root / "python_backends" / "replay_engine" / "model.py"
    sound = code.read_text(encoding="utf-8")
    code.write_text(sound + "\nraise RuntimeError('broken')\n", encoding="utf-8")
    try:
        with pytest.raises(ServerError):
            _released(project, NEWER, smoke_test_release)
        assert len(stored_releases(project)) == 3
        broken = _released(project, NEWER).stored
    finally:
        code.write_text(sound, encoding="utf-8")
    state = running_server(project)
    load = Load(state.grpc_url, 4)
    with load.going_on():
        load.until(NEW, 4)
        with pytest.raises(ServerError, match="stays deployed"):
            serve_release(project, str(broken.number), Silent())
        before = load.answers[NEW]
        load.until(NEW, before + 4)
    assert load.errors == {}
    assert running_server(project).release == stored_releases(project)[1].name
    link: Path = project.root / "releases" / "current"
    assert link.readlink().name == stored_releases(project)[1].name
    assert rollback(project, str(published.stored.number), Silent()).previous == state.release
    assert answer(running_server(project)) == NEWER
    record = json.loads(ServerFiles.of(project).state.read_text(encoding="utf-8"))
    assert (record["release"], record["switching_to"]) == (published.stored.name, "")
