# SPDX-License-Identifier: Apache-2.0
"""A rollout with a shadow, all of it real: a candidate that answers otherwise is taken back.

The engine replays one token, each release another.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import sample_tokenizers
from tests.server.replay import replay_project
from tests.server.test_groups import HEADER, Users
from tests.server.test_reload import MODEL, NEW, OLD, write_version
from tritonctl.engines.build.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.releases.publish import publish
from tritonctl.rollout.journal import Phase
from tritonctl.rollout.shadow.found import Counts, read_found
from tritonctl.rollout.standing import Rollout, rollout
from tritonctl.rollout.starting import start
from tritonctl.rollout.steering import Source
from tritonctl.server.lifecycle import stop
from tritonctl.server.release_switch import serve_release
from tritonctl.server.trial import not_asked

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]
PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two releases, the second of which answers otherwise."""
    tokenizer = sample_tokenizers.byte_level(tmp_path_factory.mktemp("tokenizer"))
    folder = tmp_path_factory.mktemp("s") / "p"
    replay_project(folder, {MODEL: (tokenizer, [])})
    file = folder / "tritonctl.yaml"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["rollout"] = {
        "user_header": HEADER,
        "shadow": 0.5,
        "steps": [50, 100],
        "hold_seconds": 300.0,
    }
    data["gateway"] = {"port": 0, "admin_port": 0}
    file.write_text(json.dumps(data), encoding="utf-8")
    project = load_project(file)
    for letter in (OLD, NEW):
        write_version(project.root, letter)
        build_engine(project, MODEL, Silent())
        publish(project, Silent(), partial(not_asked, reason="the test asks"))
    yield project
    stop(project, Silent())


def ended(project: Project, number: int, folder: Path, compared: int) -> Rollout:
    """Once it has ended, or has compared so many."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = rollout(project, number)
        if found.state.ended or Counts.read(folder).compared >= compared:
            return found
        said = [file.read_text(encoding="utf-8") for file in folder.glob("*.log")]
        assert time.monotonic() < deadline, (found.state, Counts.read(folder), said)
        time.sleep(0.2)


def test_another_text_is_taken_back_by_the_shadow(project: Project) -> None:
    """Not one request has failed before, and no time is longer: only the texts are others."""
    serve_release(project, "1", Silent())
    users = Users(project)
    with users.asking():
        found = start(
            project,
            Source(project.root / "tritonctl.yaml", None, ()),
            "2",
            Silent(),
            breaking=False,
        )
        found = ended(project, found.number, found.folder, compared=1000)
    assert found.state.phase is Phase.ROLLED_BACK, found.state
    assert "answers differ" in str(found.state.end["reason"])
    lines = list(read_found(found.folder))
    assert lines
    assert {(line.measured.noise, line.measured.candidate) for line in lines} == {(0, 1)}
    # Of the streams that the candidate had when it was taken away.
    assert set(users.errors) <= {"StatusCode.INTERNAL", "StatusCode.UNAVAILABLE"}
