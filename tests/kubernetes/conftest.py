# SPDX-License-Identifier: Apache-2.0
"""A project with a release, whose chart the tests render."""

from __future__ import annotations

import pytest

from tests.kubernetes.charts import Chart
from tests.unit.conftest import Sandbox, built_once
from tests.unit.releases.releasing import released
from tritonctl.releases import publish as publishing
from tritonctl.releases.store import stored_releases
from tritonctl.runtimes.kubernetes.chart import render_chart

__all__ = ["built_once"]  # a fixture

KEYS = ("alice.key", "gateway.crt", "gateway.key")


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory, built_once: Sandbox) -> Sandbox:
    """A project with gateway, tenants and frontend, and one release."""
    sandbox = Sandbox(tmp_path_factory.mktemp("kubernetes") / "demo")
    sandbox.take_engine_of(built_once)
    sandbox.data |= {
        "gateway": {
            "tenants": {"alice": {"api_key_file": "alice.key"}},
            "tls": {"certificate": "gateway.crt", "key": "gateway.key"},
        },
        "frontend": {},
    }
    for name in KEYS:
        (sandbox.root / name).write_text("not a real one\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publishing, "compile_python", lambda _: None)
        released(sandbox)
    return sandbox


@pytest.fixture(scope="session")
def chart(serving: Sandbox) -> Chart:
    """Of its release."""
    project = serving.load()
    return Chart(render_chart(project, stored_releases(project)[-1]))
