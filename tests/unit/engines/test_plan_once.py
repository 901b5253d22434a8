# SPDX-License-Identifier: Apache-2.0
"""A command resolves, checks and hashes each model once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import Cli, Sandbox
from tritonctl.engines.builds import fingerprint, plan, preflight, stages
from tritonctl.host.files import sha256


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order: `resolve speller`, `check speller`, `hash FILE`."""
    made: list[str] = []

    def recorded(what: str, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made.append(f"{what} {arguments[position]}")
            return function(*arguments)

        return call

    resolve = recorded("resolve", stages.resolve_build, 1)
    monkeypatch.setattr(stages, "resolve_build", resolve)
    monkeypatch.setattr(plan, "resolve_build", resolve)
    monkeypatch.setattr(plan, "check_requests", recorded("check", preflight.check_requests, 1))
    monkeypatch.setattr(fingerprint, "sha256", recorded("hash", sha256, 0))
    return made


def test_build_plans_each_model_once(sandbox: Sandbox, cli: Cli, calls: list[str]) -> None:
    """Every request is checked before the first file is hashed, and no file is hashed twice."""
    sandbox.data["models"]["other"] = dict(sandbox.data["models"]["speller"])
    sandbox.load()
    assert cli("build", "--quiet").returncode == 0
    names = ("other", "speller")
    assert calls[:4] == [f"{what} {name}" for what in ("resolve", "check") for name in names]
    hashed = Counter(call for call in calls[4:] if call.startswith("hash "))
    assert set(calls[4:]) == set(hashed)
    checkpoint = [call for call in hashed if Path(call.split()[1]).parent.name == "checkpoint"]
    assert checkpoint
    assert all(hashed[call] == 1 for call in checkpoint)


def test_render_plans_each_model_once(built: Sandbox, cli: Cli, calls: list[str]) -> None:
    """Rendering looks for the engine of each model, and asks no builder."""
    assert cli("render", "--quiet").returncode == 0
    assert [call for call in calls if not call.startswith("hash ")] == ["resolve speller"]
