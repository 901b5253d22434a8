# SPDX-License-Identifier: Apache-2.0
"""How settings become live: what fails on the way is told, and is not taken for success."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from tritonctl.errors import ServerError, SettingsRefusedError, TritonctlError
from tritonctl.host.progress import Silent
from tritonctl.protocol.model_config import Config
from tritonctl.tuning import tuned_server
from tritonctl.tuning.tuned_server import TunedServer

PLANNED: dict[str, Config] = {"m": {"name": "m", "max_batch_size": 8}}


class Noted(Silent):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)


class Control:
    """A server's model control. live: the configurations that it says it serves."""

    live: dict[str, Config] = PLANNED

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def config(self, name: str) -> Config:
        """What is live."""
        return self.live[name]


class Tuned(TunedServer):
    """A tuned server without a server."""

    failure: TritonctlError | None = None
    starts = 0
    is_alive = True

    @property
    def state(self) -> Any:
        """Some server."""
        return SimpleNamespace(endpoint="localhost:1")

    def _load(self, *_: object) -> tuple[tuple[str, ...], float]:
        if self.failure:
            raise self.failure
        return ("m",), 0.5

    def _start(self, *_: object) -> None:
        self.starts += 1


@pytest.fixture
def progress() -> Noted:
    """What is said."""
    return Noted()


@pytest.fixture
def tuned(progress: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuned:
    """A server that serves what is planned."""
    monkeypatch.setattr(tuned_server, "ModelControl", Control)
    monkeypatch.setattr(tuned_server, "plan_repository", lambda *_: None)
    monkeypatch.setattr(tuned_server, "planned_configs", lambda _: PLANNED)
    monkeypatch.setattr(tuned_server, "_model_files", lambda _: None)
    space: Any = SimpleNamespace(tuned_project=lambda _: None, artefacts={})
    return Tuned(space, tmp_path, progress)


def test_the_running_server_takes_them(tuned: Tuned, progress: Noted) -> None:
    """Nothing to say."""
    assert tuned.apply({}).loaded == ("m",)
    assert (tuned.starts, progress.notes) == (0, [])


def test_a_server_that_fails_over_them_is_told(tuned: Tuned, progress: Noted) -> None:
    """Why a new one starts: nobody has to guess where the minutes went."""
    tuned.failure = ServerError("m_engine does not unload", remedy="x")
    assert tuned.apply({}).restarted
    assert tuned.starts == 1
    assert progress.notes == ["m_engine does not unload: a new server starts with these settings"]


def test_a_new_server_is_checked_too(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that no server serves are not measured as if they were live."""
    tuned.failure = ServerError("m was loaded, but its live configuration is another", remedy="x")
    monkeypatch.setattr(Control, "live", {"m": {"name": "m", "max_batch_size": 4}})
    with pytest.raises(ServerError, match="live configuration differs from the plan"):
        tuned.apply({})
    assert tuned.starts == 1


def test_refused_settings_start_nothing(tuned: Tuned, progress: Noted) -> None:
    """The running server still has the earlier ones."""
    tuned.failure = SettingsRefusedError("m: no", remedy="x")
    with pytest.raises(SettingsRefusedError):
        tuned.apply({})
    assert (tuned.starts, progress.notes) == (0, [])
