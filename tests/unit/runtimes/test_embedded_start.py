# SPDX-License-Identifier: Apache-2.0
"""Starting an embedded server whose Triton dies while it starts; Triton itself is not here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tritonctl.errors import ServerError
from tritonctl.host import bundled
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.runtimes.embedded import lifecycle
from tritonctl.runtimes.server_log import explain_failure
from tritonctl.runtimes.server_state import ServerFiles

LOST_LOCK = """\
I1126 18:34:06.471415 19746 model_lifecycle.cc:839] "successfully loaded 'int8_detokenizer'"
terminate called after throwing an instance of 'boost::interprocess::lock_exception'
  what():  boost::interprocess::lock_exception
"""
OTHER = "terminate called after throwing an instance of 'std::bad_alloc'\n"


@dataclass
class Notes(Silent):
    """Progress that keeps its notes."""

    kept: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.kept.append(text)


@pytest.mark.parametrize(
    ("logs", "launched", "comes_up"),
    [
        ([""], 1, True),
        ([LOST_LOCK, ""], 2, True),
        ([LOST_LOCK, LOST_LOCK, ""], 2, False),
        ([OTHER, ""], 1, False),
        ([LOST_LOCK, OTHER, ""], 2, False),
    ],
)
def test_a_lost_lock_is_no_reason_to_give_up(
    logs: list[str], launched: int, comes_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton is started once more, and says so; anything else ends the command at once."""
    files = ServerFiles(tmp_path)
    left, stopped = iter(logs), []

    def launch(*_: object) -> str:
        files.log.write_text(next(left), encoding="utf-8")
        return "a server"

    def wait(*_: object) -> None:
        if files.log.read_text(encoding="utf-8"):
            raise explain_failure(files.log, "tritonserver exited during startup")

    for name in ("install_server", "refuse_missing_imports", "compile_python", "probe_models"):
        monkeypatch.setattr(lifecycle, name, lambda *_: SimpleNamespace())
    monkeypatch.setattr(lifecycle, "_launch", launch)
    monkeypatch.setattr(lifecycle, "_wait_until_ready", wait)
    monkeypatch.setattr(lifecycle, "stop", lambda *_: stopped.append(_))
    ports = [f"server.{name}_port=0" for name in ("grpc", "http", "metrics")]
    project = load_project(bundled.find("examples/number-speller"), overrides=ports)
    plan = SimpleNamespace(programs=(), backends=(), model_names=())
    rendered = cast("Any", SimpleNamespace(plan=plan, repository=tmp_path))
    notes = Notes()
    try:
        server: object = lifecycle.start(project, rendered, "{}", files, notes)
    except ServerError:
        server = None
    assert (server is not None) == comes_up
    assert len(logs) - len([*left]) == launched
    assert len(stopped) == launched - comes_up
    assert len(notes.kept) == launched - 1
