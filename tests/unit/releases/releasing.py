# SPDX-License-Identifier: Apache-2.0
"""Releases for tests: published without a server, once for all who only look at them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.unit.conftest import MODEL, Sandbox, dict_at
from tritonctl.host.progress import Progress, Silent
from tritonctl.project.schema import Project
from tritonctl.releases import publish as publishing
from tritonctl.releases.manifest import SmokeTestSummary
from tritonctl.releases.publish import PublishedRelease, publish
from tritonctl.releases.store import StoredRelease, stored_releases
from tritonctl.repository.publish import RenderedRepository

__all__ = ["released_once", "releases", "uncompiled"]


def passed(project: Project, rendered: RenderedRepository, progress: Progress) -> SmokeTestSummary:
    """A trial that went well, of a server that the test does not start."""
    return SmokeTestSummary(status="passed", passed=1)


def released(sandbox: Sandbox, trial: Any = passed) -> PublishedRelease:
    """The sandbox as it is now, published."""
    return publish(sandbox.load(), Silent(), trial)


def change(sandbox: Sandbox, delay: int = 100) -> None:
    """Another content: one setting of a step."""
    batching = {"max_queue_delay_microseconds": delay}
    config = dict_at(sandbox.data, "models", MODEL, "serving", "config")
    config["tokenizer"] = {"dynamic_batching": batching}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode is no part of a release, and takes longer than the rest of it."""
    monkeypatch.setattr(publishing, "compile_python", lambda _: None)


@pytest.fixture(scope="session")
def released_once(tmp_path_factory: pytest.TempPathFactory, built_once: Sandbox) -> Sandbox:
    """A sandbox with two releases, to be copied from."""
    sandbox = Sandbox(tmp_path_factory.mktemp("released") / "project")
    sandbox.take_engine_of(built_once)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publishing, "compile_python", lambda _: None)
        released(sandbox)
        change(sandbox)
        released(sandbox)
    return sandbox


@pytest.fixture
def releases(built: Sandbox, released_once: Sandbox) -> list[StoredRelease]:
    """Two releases of the built sandbox, which is as the second one."""
    shutil.copytree(released_once.root / "releases", built.root / "releases")
    change(built)
    return stored_releases(built.load())
